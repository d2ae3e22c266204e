"""Every error twicesafe raises: what happened, to which key, whose move it is, what to do next.

    TwicesafeError
    ├── UsageError                  the calling code must change (400)
    │   ├── InvalidKeyError
    │   ├── MissingKeyError
    │   ├── ConfigurationError
    │   └── UnsupportedByStoreError
    ├── DuplicateError              the key is taken; the handler did not start
    │   ├── StillInProgressError    come back later (409)
    │   ├── FingerprintMismatchError  the key was used for another request (422)
    │   ├── RememberedFailureError  the first answer was this error
    │   ├── HeldError               outcome unknown, an operator must look
    │   ├── ParkedError             tried too often, an operator must look
    │   └── TooManyWaitersError     come back later (409)
    ├── LeaseLostError              another worker owns the key now; nothing was recorded
    ├── StoreError
    │   ├── StoreUnavailableError   come back later (503)
    │   ├── SchemaVersionError      the database belongs to another version
    │   └── CorruptRecordError      stored bytes make no sense; never re-run because of it
    ├── ResultError                 the work is done, its result cannot be handed out
    │   ├── NotStorableError
    │   ├── TooLargeError
    │   └── ResultUnavailableError
    ├── AtomicityBrokenError        the handler ended the transaction it was given
    ├── BrokerUnavailableError      come back later (503); no message is to blame
    └── VersionConflictError        read again, decide again (409)

Errors pickle, so they cross process pools, and never show a key in full: they show the first
eight hex digits of its identity, the same digits that logs, metrics and the CLI show.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ._values.keys import Key

__all__ = [
    "AtomicityBrokenError",
    "BrokerUnavailableError",
    "ConfigurationError",
    "CorruptRecordError",
    "DuplicateError",
    "FingerprintMismatchError",
    "HeldError",
    "InvalidKeyError",
    "LeaseLostError",
    "MissingKeyError",
    "NotStorableError",
    "ParkedError",
    "RememberedFailureError",
    "ResultError",
    "ResultUnavailableError",
    "SchemaVersionError",
    "StillInProgressError",
    "StoreError",
    "StoreUnavailableError",
    "TooLargeError",
    "TooManyWaitersError",
    "TwicesafeError",
    "UnsupportedByStoreError",
    "UsageError",
    "VersionConflictError",
]


class TwicesafeError(Exception):
    """Base of all. ``retryable``: may the same call succeed later, unchanged?"""

    retryable: ClassVar[bool] = False
    http_status: ClassVar[int] = 500

    def __init__(self, message: str, *, key: Key | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.key = key

    def __str__(self) -> str:
        return self.message if self.key is None else f"key {self.key.short}: {self.message}"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__getstate_for_pickle__())

    def __getstate_for_pickle__(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def again(self) -> Self:
        """The same error as an object of its own: an error raised in two threads is nobody's."""
        twin: Self = _rebuild(type(self), self.args, dict(self.__dict__))  # type: ignore[assignment]
        twin.__cause__ = self.__cause__
        return twin

    def about(self, key: Key) -> Self:
        """The same error, now saying which key it is about."""
        if self.key is None:
            self.key = key
        return self


def _rebuild(
    cls: type[TwicesafeError], args: tuple[Any, ...], state: dict[str, Any]
) -> TwicesafeError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def text_of(error: BaseException) -> str:
    """What an error says, as text that can be stored; some errors cannot even be printed."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return text[:2000].encode(errors="replace").decode()


def stays_here(thing: object) -> UsageError:
    """What is raised when something that is open is pickled or deep-copied."""
    return UsageError(
        f"a {type(thing).__name__} cannot be pickled or deep-copied: it holds connections, locks and "
        "threads of this process; open one from its URL in each process (in a pool: in its initializer)"
    )


# --- the calling code must change ------------------------------------------------------------


class UsageError(TwicesafeError):
    """The calling code must change."""

    http_status = 400


class InvalidKeyError(UsageError, ValueError):
    """The key is empty, too long, or not text."""


class MissingKeyError(UsageError):
    """No key was given where one is required."""


class ConfigurationError(UsageError, ValueError):
    """A setting makes no sense; the message names it and the remedy."""

    http_status = 500


class UnsupportedByStoreError(UsageError):
    """This store cannot do that; the message names those that can."""

    http_status = 501


# --- the key is taken; the handler did not start ---------------------------------------------


class DuplicateError(TwicesafeError):
    """The key is taken; the handler did not start."""

    http_status = 409


class StillInProgressError(DuplicateError):
    """Another delivery of this key is being worked on. ``retry_after``: seconds, a hint."""

    retryable = True

    def __init__(
        self, message: str, *, key: Key | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, key=key)
        self.retry_after = retry_after


class FingerprintMismatchError(DuplicateError):
    """The key was first used for a different request. ``fields`` names what differs, if known."""

    http_status = 422

    def __init__(self, message: str, *, key: Key | None = None, fields: Sequence[str] = ()) -> None:
        super().__init__(message, key=key)
        self.fields = tuple(fields)


class RememberedFailureError(DuplicateError):
    """The first attempt failed for good; this is that failure, as data (never imported by name)."""

    http_status = 500

    def __init__(
        self,
        message: str,
        *,
        key: Key | None = None,
        type_name: str = "",
        original_message: str = "",
    ) -> None:
        super().__init__(message, key=key)
        self.type_name = type_name
        self.original_message = original_message


class HeldError(DuplicateError):
    """How far the work came is not known (a death under `hold`, a part committed): an operator decides."""


class ParkedError(DuplicateError):
    """``max_attempts`` starts did not finish this key; nothing runs until an operator releases it."""


class TooManyWaitersError(DuplicateError):
    """``max_waiters`` callers already wait for this key in this process."""

    retryable = True


# --- others ----------------------------------------------------------------------------------


class LeaseLostError(TwicesafeError):
    """This worker's claim was taken over (or its record deleted); its result was not recorded."""

    retryable = True
    http_status = 409


class StoreError(TwicesafeError):
    """The store did not do what it was asked."""

    http_status = 503


class StoreUnavailableError(StoreError):
    """The store did not answer. The handler was not started (unless the message says otherwise)."""

    retryable = True


class SchemaVersionError(StoreError):
    """The store was written by another version of twicesafe."""

    http_status = 500


class CorruptRecordError(StoreError):
    """A stored record cannot be understood. The handler is not re-run because of it."""

    http_status = 500


class ResultError(TwicesafeError):
    """The work was done and is recorded as done; only its result cannot be given."""

    def __init__(self, message: str, *, key: Key | None = None, value: object = None) -> None:
        super().__init__(message, key=key)
        self.value = value

    def __getstate_for_pickle__(self) -> dict[str, Any]:
        return {**self.__dict__, "value": None}  # the value is unstorable: it stays here


class NotStorableError(ResultError):
    """The handler's value cannot be stored, or the store refuses it; ``value`` still holds it."""


class TooLargeError(ResultError):
    """The handler's value is over ``max_result_bytes``, or over the limit of the database; ``value``
    still holds it."""


class ResultUnavailableError(ResultError):
    """A duplicate of work that is done, but whose result was not kept, or was forgotten."""

    http_status = 410


class AtomicityBrokenError(TwicesafeError):
    """The handler committed or rolled back the transaction it was given."""


class BrokerUnavailableError(TwicesafeError):
    """A broker cannot be reached, or takes nothing just now; messages wait in the outbox.

    `blames`: when it repeats for one message, may that message be the cause? ``"none"``: never, the
    broker itself says that it is away or busy. ``"compared"``: if others are taken meanwhile.
    ``"alone"``: also if nothing else waits, and the broker can be used again at once (it hung up).
    """

    retryable = True
    http_status = 503

    def __init__(
        self,
        message: str,
        *,
        key: Key | None = None,
        blames: Literal["none", "compared", "alone"] = "compared",
    ) -> None:
        super().__init__(message, key=key)
        self.blames = blames


class VersionConflictError(TwicesafeError):
    """Something else was appended where this was expected to follow; nothing was written."""

    http_status = 409
