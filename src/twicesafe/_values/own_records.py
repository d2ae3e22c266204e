"""The scopes of records that twicesafe keeps for itself, beside those of senders.

They are about the store: which secret hides its keys, how far a follower came, which region serves
a home, who swept it last. They are no answers to senders, so they are neither archived nor
re-encrypted, and have no home among regions.
"""

from __future__ import annotations

from typing import Final

__all__ = ["FOLLOW_SCOPE", "OURS", "REGISTER_SCOPE", "is_own"]

OURS: Final = "twicesafe"
REGISTER_SCOPE: Final = "twicesafe.regions"
FOLLOW_SCOPE: Final = "twicesafe.follow"

_FIRST: Final = {(OURS,), (REGISTER_SCOPE,), (FOLLOW_SCOPE,)}


def is_own(scope: tuple[str, ...]) -> bool:
    """Whether this is the scope of a record of twicesafe itself."""
    return scope[:1] in _FIRST
