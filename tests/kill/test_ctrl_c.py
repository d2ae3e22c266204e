"""Ctrl-C at any moment, on every engine: real signals into the thread of a worker that lives on.

An interrupt is not a crash: the worker records what it did, and gives back what it did not begin.
Between two lines of Python that cannot be promised, so a few claims are left to end by their
leases. Nothing is lost for it: neither a record, nor a connection, nor a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

INTERRUPTS = 20


def test_ctrl_c_at_any_moment(store_url: str, seed: int, run_script: Callable[..., Any]) -> None:
    seen = run_script("ctrl_c.py", store_url, seed, INTERRUPTS)
    assert seen["interrupts"] == INTERRUPTS
    assert seen["answered"]
    assert (seen["effects"], seen["done twice"], seen["never done"]) == (1, [], [])
