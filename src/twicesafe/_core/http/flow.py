"""The flow of one keyed request, as commands. It decides; ASGI, WSGI and Django perform.

`admit` starts a request. It checks the key, has the body read and makes the claim. Its result
says what the edge does next:

    PassThrough   call the application and record nothing
    Respond       send this response: a refusal or a replay
    Run           call the application and feed its response to the `Exchange`
    None          do nothing: the client disconnected during its upload

An `Exchange` ends a request. How the response ends decides how the key ends, and the store
records it before the last bytes of the response are sent:

    the response …                           command                the client gets
    is complete                              Complete               the response
    is complete, and its status means
      "not executed" (`release`)             Release                the response
    never began: the application refused     Release                the refusal
    is cut: the application raised           Hold (its type)        outcome-unknown, or a cut
    is cut or shorter than announced         Hold (ResponseCut)     outcome-unknown, or a cut
    is cut: the client disconnected          Hold (ClientLeft)      nothing
    cannot be kept (too large, or longer
      than `linger`), and the client
      disconnected                           Complete (NOT_KEPT)    nothing

The client gets outcome-unknown if nothing of the response was sent yet. On a `retry` route
the command is `LeaveClaim` with the error instead of `HoldClaim`: the attempt failed and a retry runs.

`drive` and `drive_async` run these flows, and `_edges.http_guard.perform` executes every command.
The ASGI middleware takes the usual request through the same functions (`begin`, `identify`,
`claimed`, `ending`) without a generator: `_edges.http_guard`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import msgspec

from ... import events as ev
from ...errors import (
    CorruptRecordError,
    ResultError,
    StoreUnavailableError,
    TwicesafeError,
    UsageError,
)
from .message import HttpRequest, StoredResponse
from .problems import Problem, RequestRefused
from .rules import Admission, HttpRules, Looked
from .stored_response import NOT_KEPT, Ending, ResponseRecording

__all__ = [
    "ClientLeft",
    "CompleteClaim",
    "EndClaim",
    "EnterClaim",
    "Exchange",
    "ExchangeEnded",
    "HoldClaim",
    "HttpClaim",
    "HttpFlow",
    "IdentifiedRequest",
    "LeaveClaim",
    "Log",
    "PassThrough",
    "ReadBody",
    "ReleaseClaim",
    "Respond",
    "ResponseCut",
    "RunHandler",
    "admit",
    "claimed",
    "identify",
    "not_claimed",
]

T = TypeVar("T")
HttpFlow: TypeAlias = Generator[Any, Any, T]


class HttpClaim(Protocol):
    """What the flow reads from a claim. Everything that needs the store is a command."""

    @property
    def is_new(self) -> bool: ...
    @property
    def result(self) -> Any: ...
    @property
    def is_held_by_caller(self) -> bool: ...
    def notify(self, event: ev.Event) -> None: ...


# --- commands --------------------------------------------------------------------------------


class ReadBody(msgspec.Struct, frozen=True):
    """Reply: the whole body, or None if the client disconnected.

    Throws `RequestRefused` for a body that is too large, incomplete or without a known end.
    """

    read: Callable[[], Any]


class EnterClaim(msgspec.Struct, frozen=True):
    """Make the claim. Throws what the receiver raises. The claim of a duplicate ends at once."""

    claim: Any


class CompleteClaim(msgspec.Struct, frozen=True):
    claim: Any
    result: Any


class ReleaseClaim(msgspec.Struct, frozen=True):
    """The application did nothing: a retry runs."""

    claim: Any


class HoldClaim(msgspec.Struct, frozen=True):
    """The outcome is unknown: nothing runs until an operator resolves or releases the key."""

    claim: Any
    why: str


class LeaveClaim(msgspec.Struct, frozen=True):
    """Close the claim. With an error: the attempt failed and a retry runs."""

    claim: Any
    error: BaseException | None = None


EndClaim: TypeAlias = CompleteClaim | ReleaseClaim | HoldClaim | LeaveClaim


class Log(msgspec.Struct, frozen=True):
    level: Literal["warning", "error"]
    text: str
    error: BaseException | None = None


# --- what `admit` and `Exchange.ended` return ------------------------------------------------


class PassThrough(msgspec.Struct, frozen=True):
    request: HttpRequest | None = None
    """The request whose body was read and must be given again. None: it is still unread."""


class Respond(msgspec.Struct, frozen=True):
    response: StoredResponse


class RunHandler(msgspec.Struct, frozen=True):
    exchange: Exchange


class ExchangeEnded(msgspec.Struct, frozen=True):
    response: StoredResponse | None = None
    """The response to send in place of the application's, of which nothing was sent."""
    error: BaseException | None = None
    """The failure of the application, for the server to see."""


class ResponseCut(Exception):  # noqa: N818 - records and operators see this name
    """The application ended its response early, or sent less than it announced."""


class ClientLeft(Exception):  # noqa: N818 - records and operators see this name
    """The client disconnected before the response was complete."""


# --- the start of a request ------------------------------------------------------------------


def admit(
    rules: HttpRules,
    claim_for: Callable[[Admission], HttpClaim],
    request: HttpRequest,
    read: Callable[[], Any],
) -> HttpFlow[PassThrough | Respond | RunHandler | None]:
    """`claim_for` returns the claim of an admitted request, before it is entered.

    `request` has no body yet; `read` is what `ReadBody` calls.
    """
    try:
        looked = rules.look(request)
        if looked is None:
            return PassThrough()
        body = yield ReadBody(read)
        asks = identify(rules, claim_for, request, looked, body)
    except RequestRefused as refused:
        return Respond(rules.refuse(request, refused.problem))
    if not isinstance(asks, IdentifiedRequest):
        return asks
    try:
        yield EnterClaim(asks.claim)
    except TwicesafeError as error:
        return (yield from not_claimed(rules, asks, error))
    return claimed(rules, asks)


class IdentifiedRequest(msgspec.Struct, frozen=True):
    """A request with its whole body, and the claim that it needs."""

    request: HttpRequest
    claim: Any
    admission: Admission


def identify(
    rules: HttpRules,
    claim_for: Callable[[Admission], HttpClaim],
    request: HttpRequest,
    looked: Looked,
    body: bytes | None,
) -> IdentifiedRequest | PassThrough | None:
    """A request with its body. `IdentifiedRequest`: enter the claim, then `claimed` or `not_claimed`."""
    if body is None:
        return None
    request = msgspec.structs.replace(request, body=body)
    admission = rules.admit(request, looked)
    if admission is None:
        return PassThrough(request)
    claim = claim_for(admission)
    if claim.is_held_by_caller:  # by another layer on this store
        return PassThrough(request)
    return IdentifiedRequest(request, claim, admission)


def not_claimed(
    rules: HttpRules, asks: IdentifiedRequest, error: TwicesafeError
) -> HttpFlow[PassThrough | Respond]:
    """The receiver raised this instead of making the claim."""
    if isinstance(error, StoreUnavailableError) and rules.policy.outage == "run":
        asks.claim.notify(ev.Unprotected(asks.admission.key))
        return PassThrough(asks.request)
    if isinstance(error, CorruptRecordError | UsageError):
        yield Log("error", str(error))
    return Respond(rules.refuse_error(asks.request, error))


def claimed(rules: HttpRules, asks: IdentifiedRequest) -> RunHandler | Respond:
    """The claim is made, or its key is already answered."""
    request, claim = asks.request, asks.claim
    if claim.is_new:
        return RunHandler(Exchange(rules, asks.admission.may_retry, request, claim))
    return Respond(rules.replay(request, claim.result))


# --- the end of a request --------------------------------------------------------------------


class Exchange:
    """One request that runs.

    Each method decides how the key ends and returns the flow that records it. The edge feeds the
    application's response to `recording`.
    """

    __slots__ = ("claim", "may_retry", "recording", "request", "rules", "settled")

    def __init__(self, rules: HttpRules, may_retry: bool, request: HttpRequest, claim: Any) -> None:
        self.rules, self.may_retry, self.request, self.claim = rules, may_retry, request, claim
        self.recording = ResponseRecording(rules.policy, rules.kept_names)
        self.settled = False
        """True as soon as it is decided how the key ends."""

    def settle(self) -> HttpFlow[None]:
        """The response has ended, or has reached the length that it announced."""
        return self._end(self.ending())

    def ending(self) -> EndClaim:
        """How the key ends with this response."""
        kept = self.recording.end()
        if kept is Ending.RELEASE:
            return ReleaseClaim(self.claim)
        if kept is Ending.UNKNOWN:
            return self._unknown(ResponseCut("the response is shorter than it announced"))
        return CompleteClaim(self.claim, kept)

    def fail(self, error: BaseException) -> HttpFlow[None]:
        """The outcome is unknown."""
        return self._end(self._unknown(error))

    def _unknown(self, error: BaseException) -> EndClaim:
        if self.may_retry:
            return LeaveClaim(self.claim, error)
        return HoldClaim(self.claim, type(error).__qualname__)

    def is_not_kept(self, *, lingered: bool) -> bool:
        """The client has disconnected. Can the edge stop taking the response?

        `lingered`: the response continued for longer than the policy's `linger`.
        """
        return lingered or self.recording.overflowed

    def client_left(self, *, lingered: bool = False) -> HttpFlow[None]:
        """The client has disconnected, and the edge took no more of the response."""
        if self.is_not_kept(lingered=lingered):
            return self._end(CompleteClaim(self.claim, NOT_KEPT))
        return self.fail(ClientLeft())

    def ended(
        self, error: BaseException | None, *, started: bool = False
    ) -> HttpFlow[ExchangeEnded]:
        """The application has returned or raised. `started`: some of its response was sent."""
        if self.settled:
            return ExchangeEnded(None, error)
        if isinstance(error, RequestRefused) and not self.recording.status:
            # Only code that has done nothing raises this: the proxy, without an upstream.
            yield from self._end(ReleaseClaim(self.claim))
            return ExchangeEnded(self.rules.refuse(self.request, error.problem))
        unknown = error or ResponseCut("the application returned before its response was complete")
        yield from self.fail(unknown)
        if self.may_retry:
            return ExchangeEnded(None, unknown)
        if started:
            return ExchangeEnded(None, error)
        return ExchangeEnded(self.rules.refuse(self.request, Problem("outcome-unknown")), error)

    def _end(self, command: EndClaim) -> HttpFlow[None]:
        self.settled = True
        return self._recorded(command)

    def _recorded(self, command: EndClaim) -> HttpFlow[None]:
        try:
            yield command
        except TwicesafeError as error:
            yield from self.told(error)
        else:
            yield from self.told(None)

    def told(self, error: TwicesafeError | None) -> HttpFlow[None]:
        """The client gets the response even if the store could not record it."""
        if error is not None and not isinstance(error, ResultError):
            # With a `ResultError` it is recorded as done without its result, and observers were notified.
            yield Log("warning", f"a response was delivered that is not on record: {error}")
        if self.recording.redact_error is not None:
            yield Log("error", "redact failed, so nothing was kept", self.recording.redact_error)
