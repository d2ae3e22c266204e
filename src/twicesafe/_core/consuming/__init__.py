"""Consuming: messages from a broker are handled, recorded, and only then acknowledged."""
