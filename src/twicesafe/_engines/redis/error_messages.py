"""The server's and the driver's errors in our words: what happened, and whose move it is.

Most of a server's errors begin with a code, also when a command of a script is refused. What Lua
itself stumbles over begins with a place in the script: that is about the record's bytes. What is
neither is an outage, which may be tried again: no record is called corrupt for it.
"""

from __future__ import annotations

from typing import Final

from ...errors import (
    ConfigurationError,
    CorruptRecordError,
    SchemaVersionError,
    StoreError,
    StoreUnavailableError,
)

__all__ = ["MigratingError", "code_of", "explain"]

_CODES: Final = {
    "NoScriptError": "NOSCRIPT",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ReadOnlyError": "READONLY",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
    "MasterDownError": "MASTERDOWN",
    "BusyLoadingError": "LOADING",
    "NoPermissionError": "NOPERM",
    "OutOfMemoryError": "OOM",
}


def code_of(error: BaseException) -> str:
    """What the server said first; newer drivers make it a class and cut it off the text."""
    return _CODES.get(type(error).__name__) or str(error).partition(" ")[0]


class MigratingError(StoreUnavailableError):
    """A slot is on its way to another node, and what is asked for has arrived only in part."""


_EXPLAINED: Final[dict[str, tuple[type[StoreError | ConfigurationError], str]]] = {
    "VERSION": (
        SchemaVersionError,
        "a record on {where} was written by a newer twicesafe; it is not run again; update this one",
    ),
    "CORRUPT": (
        CorruptRecordError,
        (
            "a record on {where} cannot be understood ({text}); it is not run again; look at it with an "
            "operator's eyes"
        ),
    ),
    "PASSWORD": (
        ConfigurationError,
        "{where} refuses the user or the password ({text}); check the URL's user:password@",
    ),
    "NOPERM": (
        ConfigurationError,
        (
            "{where}: this user may not do that ({text}); it needs the commands and keys that "
            "docs/how-to/redis.md names"
        ),
    ),
    "OLD": (ConfigurationError, "{where} is too old: Redis 7 or Valkey is needed"),
    "DATABASE": (ConfigurationError, "{where} has no database of that number"),
    "SIZE": (
        StoreError,
        (
            "{where} refuses a value of this size ({text}); raise proto-max-bulk-len there, or lower "
            "max_result_bytes"
        ),
    ),
    "READONLY": (
        StoreUnavailableError,
        "{where} is a replica or was demoted; nothing was written; connect to the primary",
    ),
    "NOREPLICAS": (
        StoreUnavailableError,
        (
            "{where} takes no writes: it has fewer replicas than min-replicas-to-write; nothing was "
            "written"
        ),
    ),
    "LOADING": (StoreUnavailableError, "{where} is loading its data; nothing was written"),
    "OOM": (
        StoreUnavailableError,
        "{where} is out of memory (maxmemory); nothing was written; make room or raise the limit",
    ),
    "TRYAGAIN": (
        MigratingError,
        "{where} is moving this key's slot to another node; nothing was written; try again",
    ),
    "": (
        StoreUnavailableError,
        "{where} did not answer ({name}: {text}); is it up, and is the address right?",
    ),
}


def explain(error: BaseException, where: str) -> StoreError | ConfigurationError:
    """The driver's or the server's error as ours: what happened, and whose move it is."""
    if isinstance(error, (StoreError, ConfigurationError)):
        return error
    text = " ".join(str(error).split())[:300]
    kind, words = _EXPLAINED[_reason(error, text)]
    ours = kind(words.format(where=where, text=text[:120], name=type(error).__name__))
    ours.__cause__ = error
    return ours


def _reason(error: BaseException, text: str) -> str:
    """Which row of the table. A server's own code comes first: a script repeats it in its words."""
    code = code_of(error)
    if code in _EXPLAINED:
        return code
    if "ACL failure in script" in text or "The user executing the script" in text:
        return "NOPERM"
    if type(error).__name__.startswith("Authentication") or code in ("NOAUTH", "WRONGPASS"):
        return "PASSWORD"
    if "VERSION the record" in text:
        return "VERSION"
    if "compiling script" in text:
        return "OLD"
    if code == "WRONGTYPE" or text.removeprefix("ERR ").startswith("user_script:"):
        return "CORRUPT"  # Lua itself stopped: the bytes are not what they should be
    if "invalid bulk length" in text or "query buffer" in text:
        return "SIZE"
    if "out of range" in text and "DB" in text:
        return "DATABASE"
    return ""
