"""A new session on the server: detect a connection pooler, and set up the session if it is ours.

A pooler shares server sessions among its clients. Then a statement that we prepared may be another
client's, and we must not change settings of the session. So this is checked before the first request.
"""

from __future__ import annotations

from typing import Final

from ...errors import ConfigurationError, StoreError
from ...stores._base import Program
from ..sql.commands import Query, atomically
from .programs import PostgresPrograms

__all__ = ["BY_INDEX", "set_up_session"]

_READ_COMMITTED: Final = "set_config('default_transaction_isolation', 'read committed', false)"
"""Every statement gets a new snapshot. At a higher level, statements that meet would fail."""

BY_INDEX: Final = "set_config('enable_seqscan', 'off', false)"
"""For sessions that keep their plans: a plan made for a small table must not read all of a large one."""


def set_up_session(
    programs: PostgresPrograms, pid: int, keeps_plans: bool, where: str
) -> Program[bool]:
    """Set up the session of a new connection. False: there is a pooler, so the session is not ours.

    `pid` is the server process that the connection reported when it was opened. A pooler invents a
    number, which differs from that of the process that answers.
    """
    is_ours = f"pg_backend_pid() = {pid:d}"
    settings = (_READ_COMMITTED, BY_INDEX) if keeps_plans else (_READ_COMMITTED,)
    setup = ", ".join(f"CASE WHEN {is_ours} THEN {each} END" for each in settings)
    ours, level, *_ = (
        yield Query(f"SELECT {is_ours}, current_setting('default_transaction_isolation'), {setup}")
    )[0]
    if not ours:
        if level != "read committed":
            raise ConfigurationError(
                f"{where} has default_transaction_isolation = '{level}', and twicesafe cannot change "
                "it behind a connection pooler; change the default of this role: "
                "ALTER ROLE … SET default_transaction_isolation = 'read committed'"
            )
        yield from _require_transactions(programs, where)
    return ours  # type: ignore[no-any-return]


def _require_transactions(programs: PostgresPrograms, where: str) -> Program[None]:
    """A pooler that changes the session after every statement allows no transactions."""
    try:
        yield from atomically(programs.clock(), programs.begin)
    except StoreError as error:
        if "transaction blocks not allowed" not in str(error.__cause__):
            raise
        raise ConfigurationError(
            f"connection pooler detected at {where}; it pools by statement, which allows no "
            "transactions: set it to pool by transaction or by session"
        ) from error
