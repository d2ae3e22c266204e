"""Our errors for those of MongoDB and PyMongo: what happened, and what to do.

Errors are known by their codes and names, so that no driver is imported here. Whatever is not in
the table is an outage, which may be retried.
"""

from __future__ import annotations

from typing import Any, Final

from ...errors import ConfigurationError, StoreError, StoreUnavailableError

__all__ = ["DUPLICATE_KEY", "code_of", "explain"]

DUPLICATE_KEY: Final = 11000

_Explained = tuple[type[StoreError | ConfigurationError], str]

_LOGIN: Final[_Explained] = (
    ConfigurationError,
    "{where} refuses the user or password ({text}); check them, and authSource= in the URL",
)
_RIGHTS: Final[_Explained] = (
    ConfigurationError,
    "{where}: this user lacks a permission ({text}); docs/how-to/mongodb.md lists what is needed",
)
_SIZE: Final[_Explained] = (
    StoreError,
    "{where} refuses this write ({text}); a document may have 16 MB: lower max_result_bytes",
)
_VALUE: Final[_Explained] = (StoreError, "{where} refuses a value ({code}): {text}")
_SETTING: Final[_Explained] = (ConfigurationError, "{where}: the driver refuses a setting: {text}")
_UNIQUE: Final[_Explained] = (
    StoreError,
    "{where}: a unique index of the collection refuses this record ({text}); drop the index: only _id is unique",
)
_PLACE: Final[_Explained] = (
    ConfigurationError,
    (
        "{where}: no store can be in this collection ({text}); use a separate collection, not a view; if it "
        "is sharded, then by _id"
    ),
)
_MAJORITY: Final[_Explained] = (
    StoreUnavailableError,
    (
        "{where}: no majority of the members acknowledged the write in time ({text}); the outcome is "
        "unknown; check that most members are up"
    ),
)

_EXPLAINED: Final[dict[Any, _Explained]] = {
    18: _LOGIN,  # AuthenticationFailed
    8000: _LOGIN,  # Atlas
    13: _RIGHTS,  # Unauthorized
    10334: _SIZE,  # BSONObjectTooLarge
    17419: _SIZE,
    17420: _SIZE,
    "DocumentTooLarge": _SIZE,
    "InvalidDocument": _VALUE,
    "InvalidStringData": _VALUE,
    "OverflowError": _VALUE,
    2: _VALUE,  # BadValue
    14: _VALUE,  # TypeMismatch
    121: _VALUE,  # DocumentValidationFailure: a validator of the collection
    238: _VALUE,  # NotImplemented: an emulator
    DUPLICATE_KEY: _UNIQUE,
    61: _PLACE,  # ShardKeyNotFound: sharded by another field
    73: _PLACE,  # InvalidNamespace
    166: _PLACE,  # CommandNotSupportedOnView
    "InvalidURI": _SETTING,
    "ConfigurationError": _SETTING,
    "InvalidName": _SETTING,
    **dict.fromkeys(("FileNotFoundError", "IsADirectoryError", "PermissionError"), _SETTING),
    "TypeError": _SETTING,
    "ValueError": _SETTING,
    64: _MAJORITY,  # WriteConcernFailed
    100: _MAJORITY,  # UnsatisfiableWriteConcern
    "": (
        StoreUnavailableError,
        "{where} did not answer ({code}: {text}); check the hosts, replicaSet=, TLS and the network",
    ),
}


def code_of(error: BaseException) -> Any:
    """MongoDB's number for its error; the class of the error if it is the driver's.

    Of a bulk with several errors: the number of one that is not a lost race, if there is one.
    """
    details = getattr(error, "details", None)
    if isinstance(details, dict):
        wrong = (*details.get("writeConcernErrors", ()), *details.get("writeErrors", ()))
        codes = {each.get("code") for each in wrong}
        if codes:
            return next(iter(codes - {DUPLICATE_KEY}), DUPLICATE_KEY)
    return getattr(error, "code", None) or type(error).__name__


def explain(error: BaseException, where: str) -> StoreError | ConfigurationError:
    """Our error for an error of the server or the driver. Never shows a document."""
    if isinstance(error, StoreError | ConfigurationError):
        return error
    code = code_of(error)
    kind, words = _EXPLAINED.get(code) or _EXPLAINED[""]
    text = (
        " ".join(str(error).split()).partition(", full error:")[0].partition(" dup key:")[0][:200]
    )
    name = (
        type(error).__name__ if code == type(error).__name__ else f"{type(error).__name__} {code}"
    )
    ours = kind(words.format(where=where, code=name, text=text))
    ours.__cause__ = error
    return ours
