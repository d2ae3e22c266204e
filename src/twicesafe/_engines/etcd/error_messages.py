"""Our errors for those of etcd and of gRPC: what happened, and what to do.

etcd's errors have a gRPC code and a text, which is more exact. What is not in the table is an
outage: it may be retried, and never makes a record corrupt.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigurationError, StoreError, StoreUnavailableError

__all__ = [
    "CompactedError",
    "LeaseGoneError",
    "NoSpaceError",
    "explain",
    "may_have_acted",
    "timed_out",
    "wants_login",
]


class CompactedError(StoreUnavailableError):
    """The revision that a request reads is gone: repeating the request does not help, starting again does."""


class LeaseGoneError(StoreUnavailableError):
    """The etcd lease of a request is over; it can be repeated with another one."""


class NoSpaceError(StoreUnavailableError):
    """The cluster accepts no writes until an operator makes room: repeating a request does not help."""


_SIZE: Final = (
    "{where} refuses a request of this size ({text}); raise --max-request-bytes on its members, or lower "
    "max_result_bytes"
)

_EXPLAINED: Final[dict[str, tuple[type[StoreError | ConfigurationError], str]]] = {
    "requested lease not found": (LeaseGoneError, "{where}: the etcd lease is over; try again"),
    "request is too large": (StoreError, _SIZE),
    "message larger than max": (StoreError, _SIZE),
    "database space exceeded": (
        NoSpaceError,
        (
            "{where} is out of space (alarm NOSPACE); nothing was written; compact and defragment it, "
            "raise --quota-backend-bytes, then run: etcdctl alarm disarm"
        ),
    ),
    "authentication failed": (
        ConfigurationError,
        "{where} refuses the user or the password; check the URL's user:password@",
    ),
    "user name is empty": (
        ConfigurationError,
        "{where} needs a user and a password: etcd://user:password@host:2379/prefix",
    ),
    "authentication is not enabled": (
        ConfigurationError,
        "{where} has no users: leave user:password@ out of the URL, or run: etcdctl auth enable",
    ),
    "permission denied": (
        ConfigurationError,
        (
            "{where}: the user may not read and write under the prefix; grant it with: etcdctl role "
            "grant-permission ROLE readwrite --prefix=true PREFIX/"
        ),
    ),
    "required revision has been compacted": (
        CompactedError,
        "{where} was compacted while its records were read; try again",
    ),
    "certificate_verify_failed": (
        ConfigurationError,
        "the certificate of {where} is not trusted ({text}); give its authority with ca_certs=",
    ),
    "belongs to another cluster": (
        StoreUnavailableError,
        (
            "{where}: {text}; its reply was not used; name the members of one cluster in the URL; if the cluster "
            "was restored from a backup, restart this process"
        ),
    ),
    "no leader": (
        StoreUnavailableError,
        "{where} has no leader: most members are down or cannot be reached; nothing was written",
    ),
}
_OUTAGE: Final = (
    "{where} did not answer ({name}: {text}); check that most members are up, their addresses, and "
    "whether they speak TLS (etcds://) or not (etcd://)"
)

_NOT_SENT: Final = ("failed to connect", "no leader", "too many requests", "name resolution")
_LOGIN: Final = ("invalid auth token", "revision in auth store is old", "revision of auth store")


def explain(error: BaseException, where: str) -> StoreError | ConfigurationError:
    """Our error for an error of the driver or the server."""
    if isinstance(error, (StoreError, ConfigurationError)):
        return error
    text = _text(error)
    reason = next((part for part in _EXPLAINED if part in text.lower()), "")
    kind, words = _EXPLAINED.get(reason, (StoreUnavailableError, _OUTAGE))
    ours = kind(words.format(where=where, text=text[:160], name=_code(error)))
    ours.__cause__ = error
    return ours


def may_have_acted(error: BaseException) -> bool:
    """Whether the request may have reached the cluster, so that its outcome is unknown."""
    text = _text(error).lower()
    return not any(part in text for part in _NOT_SENT)


def timed_out(error: BaseException) -> bool:
    """There was no reply in time: the member is slow, or its connection is dead."""
    return _code(error) == "DEADLINE_EXCEEDED"


def wants_login(error: BaseException) -> bool:
    """The token is over, or the users have changed: a new login helps."""
    text = _text(error)
    return any(part in text for part in _LOGIN)


def _text(error: Any) -> str:
    details = getattr(error, "details", None)
    return " ".join(str(details() if callable(details) else error).split())[:400]


def _code(error: Any) -> str:
    code = getattr(error, "code", None)
    return code().name if callable(code) else type(error).__name__
