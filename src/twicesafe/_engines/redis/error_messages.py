"""Our errors for those of the server and the driver: what happened, and what to do.

Most errors of a server begin with a code, also when a command in a script is refused. An error of Lua
itself begins with a position in the script: then the bytes of the record are wrong. All other errors
are outages, which may be retried; they never make a record corrupt.
"""

from __future__ import annotations

import re
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
    """The error code of the server; newer drivers turn it into a class and remove it from the text."""
    return _CODES.get(type(error).__name__) or str(error).partition(" ")[0]


def is_unreadable(error: Exception) -> bool:
    """Whether a record cannot be read: the error of a script, or the exception that we made of it."""
    return isinstance(error, CorruptRecordError | SchemaVersionError) or (
        code_of(error) in ("CORRUPT", "VERSION")
    )


class MigratingError(StoreUnavailableError):
    """A slot is moving to another node, and only some of the keys have arrived."""


_EXPLAINED: Final[dict[str, tuple[type[StoreError | ConfigurationError], str]]] = {
    "VERSION": (
        SchemaVersionError,
        "a newer twicesafe wrote a record on {where}; the handler does not run; update this twicesafe",
    ),
    "CORRUPT": (
        CorruptRecordError,
        (
            "a record on {where} cannot be read ({text}); the handler does not run; look at its key on "
            "the server"
        ),
    ),
    "PASSWORD": (
        ConfigurationError,
        "{where} refuses the user or the password ({text}); check the URL's user:password@",
    ),
    "NOPERM": (
        ConfigurationError,
        (
            "{where}: the user lacks a permission ({text}); it needs the commands and keys that "
            "docs/how-to/redis.md lists"
        ),
    ),
    "COMMAND": (
        ConfigurationError,
        (
            "{where} does not have a command ({text}): it was renamed or switched off, or this is a Sentinel or a "
            "proxy; twicesafe needs the commands that docs/how-to/redis.md lists"
        ),
    ),
    "OLD": (ConfigurationError, "{where} is too old: Redis 7 or Valkey is needed"),
    "DATABASE": (ConfigurationError, "{where} has no database with that number"),
    "CLUSTER": (
        ConfigurationError,
        "{where} is not a Cluster: for a single server, write redis://host:6379/0 (TLS: rediss://)",
    ),
    "SIZE": (
        StoreError,
        (
            "{where} refuses a value of this size ({text}); raise proto-max-bulk-len on the server, or "
            "lower max_result_bytes"
        ),
    ),
    "READONLY": (
        StoreUnavailableError,
        "{where} is a replica or was demoted; nothing was written; connect to the primary",
    ),
    "NOREPLICAS": (
        StoreUnavailableError,
        (
            "{where} accepts no writes: it has fewer replicas than min-replicas-to-write; nothing was "
            "written"
        ),
    ),
    "LOADING": (StoreUnavailableError, "{where} is loading its data; nothing was written"),
    "OOM": (
        StoreUnavailableError,
        "{where} is out of memory (maxmemory); nothing was written; free memory or raise the limit",
    ),
    "TRYAGAIN": (
        MigratingError,
        "{where} is moving this key's slot to another node; nothing was written; try again",
    ),
    "": (
        StoreUnavailableError,
        (
            "{where} did not answer ({name}: {text}); check that it is up, its address, and whether it "
            "speaks TLS (rediss://) or not (redis://)"
        ),
    ),
}


_NO_COMMAND: Final = re.compile(r"unknown (sub)?command|unknown (\w+ )?command called from", re.I)
"""As the server says it, and as a script does."""


def explain(error: BaseException, where: str) -> StoreError | ConfigurationError:
    """Our error for an error of the driver or the server."""
    if isinstance(error, (StoreError, ConfigurationError)):
        return error
    # What a server repeats of an unknown command may be the bytes of a key.
    text = " ".join(str(error).partition(", with args")[0].split())[:300]
    kind, words = _EXPLAINED[_reason(error, text)]
    ours = kind(words.format(where=where, text=text[:120], name=type(error).__name__))
    ours.__cause__ = error
    return ours


def _reason(error: BaseException, text: str) -> str:
    """The key in `_EXPLAINED`. A code of the server comes first: scripts repeat it in their texts."""
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
        return "CORRUPT"  # Lua itself failed: the bytes of the record are wrong
    if "invalid bulk length" in text or "query buffer" in text:
        return "SIZE"
    if _NO_COMMAND.search(text):
        return "COMMAND"
    if "out of range" in text and "DB" in text:
        return "DATABASE"
    if "cluster support disabled" in text:
        return "CLUSTER"
    return ""
