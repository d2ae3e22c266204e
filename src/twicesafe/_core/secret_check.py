"""Refuses a secret for hidden keys that differs from the one that the store's records were made with.

The secret is part of every identity. With another one, no key would find its record, and all work
would run again. So the first claim of a process first claims `CHECK_KEY`, whose fingerprint is the
check value of the secret.

A store without that record is new, or its keys were readable until now. In a store with readable keys, too,
hidden keys would find no record, so it is refused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

from .._values.hidden_keys import CHECK_KEY, HiddenKeys, is_hidden
from .._values.keys import new_owner
from .._values.own_records import is_own
from .._values.records import Row
from ..errors import ConfigurationError
from .durable.run_requests import FOREVER
from .protocol import Abandon, Browse, ClaimRequest, Complete, Read, Verdict

__all__ = ["check_secret", "problem_with_secret"]

_LEASE: Final = 30_000
_UNLIMITED: Final = 1 << 30
_LOOKED_AT: Final = 100
"""How many of the newest records may have a readable key, if the store is not known yet."""
_ANOTHER: Final = (
    "the records of this store were made with another secret of hidden keys: with this one no key would find its "
    "record, and all work would run again; use the secret that the store was made with"
)
_READABLE: Final = (
    "this store has records with readable keys, which hidden keys would not find: their work would run "
    "again; use hidden_keys with a new store, or when the retention of these records is over and they are swept"
)


def check_secret(hidden: HiddenKeys) -> Generator[Any, Any, None]:
    """Yields requests to the store; raises `ConfigurationError` if nothing may be claimed there."""
    owner = new_owner()
    answer = yield ClaimRequest(CHECK_KEY, owner, _LEASE, _UNLIMITED, fingerprint=hidden.check)
    if answer.verdict is Verdict.REPLAY:
        return
    if answer.verdict is Verdict.MISMATCH:
        raise ConfigurationError(_ANOTHER)
    # BUSY: another process looks at the same time. Both look, and one of them records it.
    page = yield Browse(_LOOKED_AT)
    won = answer.verdict is Verdict.WON
    if any(map(_is_readable, page.rows)):
        if won:
            yield Abandon(CHECK_KEY.id, owner, 0)
        raise ConfigurationError(_READABLE)
    if won:
        yield Complete(CHECK_KEY.id, owner, answer.fence, FOREVER, b"null")


def problem_with_secret(hidden: HiddenKeys | None) -> Generator[Any, Any, str]:
    """The same for the doctor, which only reads; empty: all is well."""
    row = yield Read(CHECK_KEY.id)
    if row is None or row.fingerprint is None:
        return ""
    if hidden is None:
        return (
            "the keys of this store are hidden, and this URL has no hidden_keys: from here no key finds its "
            "record, and its work would run again"
        )
    return "" if row.fingerprint == hidden.check else _ANOTHER


def _is_readable(row: Row) -> bool:
    """A forgotten record has no text, and our own are not keys of senders."""
    return bool(row.value) and not is_hidden(row.value) and not is_own(row.scope)
