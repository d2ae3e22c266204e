"""What a test has logged, for a fixture that looks when the test is over.

Then `caplog.text` and `caplog.records` are empty: pytest keeps the lines of each phase apart.
"""

from __future__ import annotations

import logging

import pytest

__all__ = ["logged"]

_format = logging.Formatter().format


def logged(caplog: pytest.LogCaptureFixture, *names: str) -> bytes:
    """The lines of the test with their tracebacks; of these loggers, or of all."""
    lines = (r for r in caplog.get_records("call") if not names or r.name in names)
    return "\n".join(map(_format, lines)).encode()
