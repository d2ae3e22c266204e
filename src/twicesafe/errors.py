"""Every error that twicesafe raises. Each says what happened, to which key, who must act, and what to do next.

    TwicesafeError
    ├── UsageError                  the calling code must change (400)
    │   ├── InvalidKeyError
    │   ├── MissingKeyError
    │   ├── UntrustedKeyError       the key has no valid signature (403)
    │   ├── ConfigurationError
    │   └── UnsupportedByStoreError
    ├── DuplicateError              the key is taken; the handler did not start
    │   ├── StillInProgressError    retry later (409)
    │   ├── FingerprintMismatchError  the key was used for another request (422)
    │   ├── RememberedFailureError  the first answer was this error
    │   ├── HeldError               outcome unknown, an operator must decide
    │   ├── ParkedError             max_attempts used up, an operator must decide
    │   └── TooManyWaitersError     retry later (409)
    ├── LeaseLostError              another worker owns the key now; nothing was recorded
    ├── StoreError
    │   ├── StoreUnavailableError   retry later (503)
    │   ├── NotHomeError            another region serves the key; send it there (503)
    │   ├── SchemaVersionError      the database was written by another version
    │   └── CorruptRecordError      a stored record cannot be read; the handler is not re-run
    ├── ResultError                 the work is done, but its result cannot be returned
    │   ├── NotStorableError
    │   ├── TooLargeError
    │   └── ResultUnavailableError
    ├── StepError                   about a durable run
    │   ├── SuspendedError          it sleeps or waits; a completer continues it (409)
    │   ├── StepMismatchError       a recorded step had another payload; the code changed (500)
    │   ├── CompensatedError        it failed, and what it had done was undone
    │   └── CompensationFailedError an undo kept failing; an operator must act
    ├── AtomicityBrokenError        the handler ended the transaction it was given
    ├── BrokerUnavailableError      retry later (503); no message is to blame
    └── VersionConflictError        reload and try again (409)

Errors can be pickled, so they cross process pools. They never show a key in full, only the first
eight hex digits of its id, which logs, metrics and the CLI show too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from ._values.keys import Key

__all__ = [
    "AtomicityBrokenError",
    "BrokerUnavailableError",
    "CompensatedError",
    "CompensationFailedError",
    "ConfigurationError",
    "CorruptRecordError",
    "DuplicateError",
    "FingerprintMismatchError",
    "HeldError",
    "InvalidKeyError",
    "LeaseLostError",
    "MissingKeyError",
    "NotHomeError",
    "NotStorableError",
    "ParkedError",
    "RememberedFailureError",
    "ResultError",
    "ResultUnavailableError",
    "SchemaVersionError",
    "StepError",
    "StepMismatchError",
    "StillInProgressError",
    "StoreError",
    "StoreUnavailableError",
    "SuspendedError",
    "TooLargeError",
    "TooManyWaitersError",
    "TwicesafeError",
    "UnsupportedByStoreError",
    "UntrustedKeyError",
    "UsageError",
    "VersionConflictError",
]


class TwicesafeError(Exception):
    """Base class. ``retryable``: the same call, unchanged, may succeed later."""

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
        """Return a copy of this error, so that two threads never raise the same object."""
        copy = cast("Self", _rebuild(type(self), self.args, dict(self.__dict__)))
        copy.__cause__ = self.__cause__
        return copy

    def about(self, key: Key) -> Self:
        """This error with the key filled in, if it had none."""
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


def text_of(error: object) -> str:
    """Return the text of an error or a reason in a form that can be stored, even if its ``__str__`` fails."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return text[:2000].encode(errors="replace").decode()


def stays_here(thing: object) -> UsageError:
    """The error for pickling or deep-copying an object that holds open resources."""
    return UsageError(
        f"a {type(thing).__name__} cannot be pickled or deep-copied: it holds connections, locks "
        "and threads of this process; open one from its URL in each process (in a process pool: in "
        "the initializer)"
    )


# --- the calling code must change ------------------------------------------------------------


class UsageError(TwicesafeError):
    """The calling code must change."""

    http_status = 400


class InvalidKeyError(UsageError, ValueError):
    """The key is empty, too long, or not text."""


class MissingKeyError(UsageError):
    """No key was given where one is required."""


class UntrustedKeyError(UsageError):
    """The receiver requires signed keys, and this one has no valid signature."""

    http_status = 403


class ConfigurationError(UsageError, ValueError):
    """A setting is not valid; the message names it and how to fix it."""

    http_status = 500


class UnsupportedByStoreError(UsageError):
    """This store does not support the operation; the message names the stores that do."""

    http_status = 501


# --- the key is taken; the handler did not start ---------------------------------------------


class DuplicateError(TwicesafeError):
    """The key is taken; the handler did not start."""

    http_status = 409


class StillInProgressError(DuplicateError):
    """Another delivery of this key is in progress. ``retry_after``: a hint, in seconds."""

    retryable = True

    def __init__(
        self, message: str, *, key: Key | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message, key=key)
        self.retry_after = retry_after
        self._run: tuple[int, bytes] | None = None
        """As of `SuspendedError`, if the key is of a durable run."""


class FingerprintMismatchError(DuplicateError):
    """The key was first used for a different request. ``fields`` names what differs, if known."""

    http_status = 422

    def __init__(self, message: str, *, key: Key | None = None, fields: Sequence[str] = ()) -> None:
        super().__init__(message, key=key)
        self.fields = tuple(fields)


class RememberedFailureError(DuplicateError):
    """The first delivery failed permanently. Carries that failure as data; no class is imported."""

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
    """Outcome unknown (a crash under `hold`, or a partial commit): an operator must decide."""


class ParkedError(DuplicateError):
    """The key used up ``max_attempts``; nothing runs until an operator releases or resolves it."""


class TooManyWaitersError(DuplicateError):
    """``max_waiters`` callers in this process already wait for this key."""

    retryable = True


# --- leases, stores, results, brokers --------------------------------------------------------


class LeaseLostError(TwicesafeError):
    """Another worker took over the claim, or its record was deleted; the result is not recorded."""

    retryable = True
    http_status = 409


class StoreError(TwicesafeError):
    """The store refused a request or failed."""

    http_status = 503


class StoreUnavailableError(StoreError):
    """The store did not answer. The handler was not started (unless the message says otherwise)."""

    retryable = True
    asked = True
    """False: a circuit breaker did not even ask it."""
    written = False
    """True: the store has this write, but too few replicas confirmed it, so it does not count."""


class NotHomeError(StoreError):
    """This region does not serve the key, or cannot confirm that it does. The handler was not started."""

    retryable = True


class SchemaVersionError(StoreError):
    """The store was written by another version of twicesafe."""

    http_status = 500


class CorruptRecordError(StoreError):
    """A stored record cannot be read. The handler is not re-run because of it.

    ``done``: True if the record says that the work is done, False if it says that the work failed for
    good. Either way only the answer cannot be read. None: nothing is known.
    """

    http_status = 500
    done: bool | None = None


class ResultError(TwicesafeError):
    """The work is done and recorded as done; only its result cannot be returned.

    ``done`` is False if an inbox with ``results="required"`` raised it: nothing was recorded, so roll back.
    """

    done = True

    def __init__(self, message: str, *, key: Key | None = None, value: object = None) -> None:
        super().__init__(message, key=key)
        self.value = value

    def __getstate_for_pickle__(self) -> dict[str, Any]:
        return {**self.__dict__, "value": None}  # the value is unstorable: it stays here


class NotStorableError(ResultError):
    """The result cannot be stored, or the store refused it; ``value`` still holds it."""


class TooLargeError(ResultError):
    """The result exceeds ``max_result_bytes`` or the database's limit; ``value`` still holds it."""


class ResultUnavailableError(ResultError):
    """The work is done, but its result was not kept or was forgotten; it is not run again."""

    http_status = 410


# --- durable runs ----------------------------------------------------------------------------


class StepError(TwicesafeError):
    """About a durable run or one of its steps."""


class SuspendedError(StepError):
    """The run sleeps or waits for a signal. ``resume_at``: the latest time at which it continues;
    None: it waits for the signal.
    """

    retryable = True
    http_status = 409

    def __init__(
        self, message: str, *, key: Key | None = None, resume_at: datetime | None = None
    ) -> None:
        super().__init__(message, key=key)
        self.resume_at = resume_at
        self._run: tuple[int, bytes] | None = None
        """The run that is suspended, for a run that called it: its `RunCall.home` and id."""


class StepMismatchError(StepError):
    """A step of this name was recorded with other arguments, or as another kind. ``step`` names it."""

    def __init__(self, message: str, *, key: Key | None = None, step: str = "") -> None:
        super().__init__(message, key=key)
        self.step = step


class CompensatedError(StepError):
    """The run failed permanently, and every recorded undo has run. ``reason``: why it failed."""

    def __init__(self, message: str, *, key: Key | None = None, reason: str = "") -> None:
        super().__init__(message, key=key)
        self.reason = reason


class CompensationFailedError(StepError):
    """An undo kept failing: the run is parked, half undone. ``step``: the step that was not undone."""

    def __init__(
        self, message: str, *, key: Key | None = None, step: str = "", reason: str = ""
    ) -> None:
        super().__init__(message, key=key)
        self.step = step
        self.reason = reason


class AtomicityBrokenError(TwicesafeError):
    """The handler committed or rolled back the transaction it was given."""


class BrokerUnavailableError(TwicesafeError):
    """The broker cannot be reached or accepts nothing now; messages stay in the outbox.

    `blames`: if the error repeats for one message, can that message be the cause? ``"none"``: no,
    the broker itself is down or busy. ``"compared"``: yes, if the broker accepts other messages
    meanwhile. ``"alone"``: yes, even with no other message, if the broker is usable again right
    after (it closed the connection on this message).
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
    """Another writer appended first, so the expected version is outdated; nothing was written."""

    http_status = 409
