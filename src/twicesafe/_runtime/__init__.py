"""Runtimes: perform what flows ask for, blocking or on an event loop, and keep leases alive."""
