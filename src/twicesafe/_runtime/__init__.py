"""Runtimes: perform the commands of flows, blocking, on an event loop or in a transaction; renew leases."""
