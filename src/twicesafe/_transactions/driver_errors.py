"""What a driver's error means in the caller's transaction, and what the caller should do."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final, Literal, TypeAlias

from ..errors import (
    AtomicityBrokenError,
    SchemaVersionError,
    StillInProgressError,
    StoreError,
    StoreUnavailableError,
    TwicesafeError,
    UsageError,
)

__all__ = ["Dialect", "causes", "explain", "is_of_database"]

Dialect: TypeAlias = Literal["sqlite", "postgresql", "mysql"]

_WAITED: Final[dict[Dialect, AbstractSet[object]]] = {
    "postgresql": {"55P03", "40001", "40P01"},
    "mysql": {1205, 1213, 1020},
    "sqlite": {"SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_BUSY_SNAPSHOT", "SQLITE_BUSY_TIMEOUT"},
}
"""Another transaction held the row, or changed it after our snapshot."""
_NO_TABLE: Final[dict[Dialect, AbstractSet[object]]] = {
    "postgresql": {"42P01"},
    "mysql": {1146},
    "sqlite": set(),
}
_ENDED: Final[dict[Dialect, AbstractSet[object]]] = {
    "postgresql": {"25P02", "25P01", "3B001"},
    "mysql": {1305},
    "sqlite": set(),
}
_ENDED_TEXTS: Final = (
    "no such savepoint",  # SQLite
    "closed transaction inside context manager",  # SQLAlchemy: committed, or rolled back
    "This Connection is closed",  # SQLAlchemy: by the caller; one that is lost is called invalid
)
_READ_ONLY: Final[dict[Dialect, AbstractSet[object]]] = {
    "postgresql": {"25006"},
    "mysql": {1290, 1792, 1836, 3100},
    "sqlite": {"SQLITE_READONLY"},
}
"""The transaction or its server takes no writes: perhaps a demoted primary, so a retry may help."""
_REFUSED: Final[dict[Dialect, tuple[str, ...]]] = {
    "postgresql": ("22", "23", "42", "44", "54", "P0"),
    "sqlite": (
        "SQLITE_AUTH", "SQLITE_CONSTRAINT", "SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_MISUSE",
        "SQLITE_RANGE", "SQLITE_TOOBIG",
    ),
}  # fmt: skip
"""The database understood the statement and refuses it: a retry does not help."""
_NO_ANSWER_MYSQL: Final = frozenset(
    {
        *(0, 1053, 1077, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2006, 2013, 2014, 2055),
        4031,  # the connection is lost, as are those above
        *(1021, 1037, 1038, 1041, 1114, 1135, 1206),  # no disk space, no memory
        *(1040, 1047, 1203, 1226, 1467, 1637),  # too busy, or not ready
        *(1180, 1181, 1317, 1969, 3024),  # a failed commit, a cancelled or timed-out statement
    }
)
"""Its error numbers have no classes, so the ones that say nothing about the statement are listed."""
_VALUES: Final = ("DataError", "NotSupportedError", "OverflowError", "UnicodeEncodeError")
_BY_DRIVER: Final[dict[Dialect, tuple[str, ...]]] = {
    "postgresql": (*_VALUES, "ProgrammingError"),
    "mysql": (*_VALUES, "ProgrammingError"),
    "sqlite": _VALUES,  # a closed connection is a ProgrammingError there
}
"""Errors without a code by which a driver refuses a statement before it is sent."""


def explain(dialect: Dialect, error: Exception) -> TwicesafeError:
    """Our error for a driver's error: what happened and what the caller should do."""
    code, text = None, ""
    for cause in causes(error):
        code, text = _code_of(dialect, cause), _text_of(cause)
        if code is not None:
            break
    if "can only be used in that same thread" in text:  # of sqlite3
        return UsageError(
            "this connection belongs to another thread (a step with a timeout runs in its own thread); connect "
            "with check_same_thread=False"
        )
    if code in _WAITED[dialect]:
        return StillInProgressError(
            "another transaction holds this key (or, on SQLite, the database), or changed it "
            f"meanwhile ({text}); roll back, and have the message redelivered",
            retry_after=0.5,
        )
    if code in _NO_TABLE[dialect] or "no such table" in text:
        return SchemaVersionError(
            "the database of this connection has no twicesafe tables; open the inbox on the same "
            f"database, or run there: twicesafe migrate ({text})"
        )
    if code in _ENDED[dialect] or any(said in text for said in _ENDED_TEXTS):
        return AtomicityBrokenError(f"the transaction ended or changed meanwhile: {text}")
    if code in _READ_ONLY[dialect]:
        return StoreUnavailableError(
            f"this transaction is read-only, so the statement wrote nothing ({text}); use a connection that may write, "
            "to the primary"
        )
    if _is_refused(dialect, error, code):
        return StoreError(f"the database refused a statement in your transaction: {text}")
    return StoreUnavailableError(
        f"the database did not answer inside your transaction: {text or type(error).__name__}; "
        "it may have been committed: the next delivery of the same key finds out"
    )


def is_of_database(dialect: Dialect, error: BaseException) -> bool:
    """Whether it comes from a statement that the database refused, which may have rolled back the
    whole transaction."""
    seen: BaseException | None = error
    while seen is not None:
        for cause in causes(seen):
            # MySQL's code is a number in front, which an OSError has, too.
            is_drivers = dialect != "mysql" or any(
                c.__name__ == "Error" for c in type(cause).__mro__
            )
            if is_drivers and _code_of(dialect, cause) is not None:
                return True
        seen = seen.__context__
    return False


def _is_refused(dialect: Dialect, error: Exception, code: Any) -> bool:
    """Whether the database or the driver refuses this statement for good. A time-out, a cancelled
    statement or a full disk says nothing about the statement.
    """
    if code is None:
        return any(type(cause).__name__ in _BY_DRIVER[dialect] for cause in causes(error))
    if dialect == "mysql":
        return code not in _NO_ANSWER_MYSQL
    return str(code).startswith(_REFUSED[dialect])


def _text_of(error: BaseException) -> str:
    """DETAIL may contain the row, and a result must not end up in a log."""
    return " ".join(str(error).split()).partition(" DETAIL:")[0][:300]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error and what it wraps: SQLAlchemy keeps it in ``orig``, Django in ``__cause__``."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = getattr(error, "orig", None) or error.__cause__


def _code_of(dialect: Dialect, error: BaseException) -> Any:
    if dialect == "postgresql":
        return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    if dialect == "sqlite":
        return getattr(error, "sqlite_errorname", None)
    first = error.args[0] if error.args else None
    return first if isinstance(first, int) else None
