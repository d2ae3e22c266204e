"""Runtimes: perform the commands of flows, blocking or on an event loop, and renew leases."""
