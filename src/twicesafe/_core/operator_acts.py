"""One audit entry for an operator's action on the whole store, such as a re-encryption.

An audit trail belongs to a key, so the action gets a new key, in twicesafe's own scope. The record
of that key is completed and has no result, so it needs no encryption. Like other records, it is
kept for the retention of the policy.
"""

from __future__ import annotations

from typing import Final

from .._values.keys import Key, new_owner, uuid7
from .._values.own_records import OURS
from .commands import Flow
from .operations import operate
from .protocol import ClaimRequest, Resolve

__all__ = ["audited_act"]

_LEASE: Final = 30_000
_UNLIMITED: Final = 1 << 30


def audited_act(act: str, by: str, why: str, retention: int) -> Flow[None]:
    """Write who acted and why. ``act`` names the action, such as "reencrypt"."""
    key = Key(f"{act}-{uuid7()}", scope=(OURS, "operators"), absolute=True)
    yield ClaimRequest(key, new_owner(), _LEASE, _UNLIMITED)
    yield from operate(key, Resolve(key.id, by, why, retention, None))
