"""One delivery as a simulated process: a life, a receiver, and an event loop if the handler is async.

A `Stage` is the environment of one trial: an empty store with a `FakeClock`, or the user's receiver
with a new key, or nothing if the handler has its own receiver or inbox (``bare``). A delivery runs in
the calling thread, under a `Life` that passes these points:

    before and after every request to the store, except renewals, whose time is not fixed
    when the handler starts, and when it has ended and nothing is recorded yet; of a durable function,
    the record of each step is a request with its name
    at every `crash_point`, before every line that awaits and whenever it waits, and before every
    line, if ``lines`` is set
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import AsyncGeneratorType, GeneratorType
from typing import Any, Final, Self

from .._core.protocol import Request
from .._values.codecs import resolve_return_type
from .._values.keys import Key, KeyLike
from .._values.policy import Policy
from .._values.settings import seconds
from ..errors import StillInProgressError, StoreUnavailableError, UsageError
from ..events import Event
from ..receiver import AsyncReceiver, Receiver
from ..receiver._durable import AsyncDurable, Durable
from ..stores._base import AsyncStore, Store
from ..stores.memory import MemoryStore
from ._clock import FakeClock
from ._comparison import copied, plain_copy
from ._crash import Life, _BoundStore, crash_point
from ._tracing import Awaits, LineTracer
from ._trial_keys import TrialKey

__all__ = ["END", "START", "HandlerCase", "Stage", "UnawaitedError", "called", "is_async_function"]

START: Final = "as the handler starts"
END: Final = "after the handler, with nothing recorded"

BRIEF: Final = 0.5
"""The lease in seconds of a life that is to die, on the user's receiver: the retry really waits for it."""

REDELIVERIES: Final = 3


class UnawaitedError(UsageError):
    """A function that does not look async returned an awaitable."""


@dataclass(frozen=True, kw_only=True)
class HandlerCase:
    """The handler under test, with its arguments and settings."""

    handler: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    receiver: Receiver | AsyncReceiver | None = None
    policy: Policy | None = None
    key: KeyLike = "the call"
    bare: bool = False
    tracer: LineTracer
    setup: Callable[[], Any]
    snapshot: Callable[[], Any]
    later: Callable[[], Any] | None = None
    results: bool = True
    """Every delivery must return the same result."""
    is_async: bool

    @property
    def name(self) -> str:
        return getattr(_inner(self.handler), "__qualname__", repr(self.handler))

    @property
    def durable(self) -> Durable[..., Any] | AsyncDurable[..., Any] | None:
        """The handler, if it is a durable function: its steps go to the store of the trial."""
        inner = _inner(self.handler)
        return inner if isinstance(inner, (Durable, AsyncDurable)) else None

    def state(self) -> tuple[Any, str]:
        """The snapshot, or the error of reading it, which is a fault too: it is half written."""
        try:
            return copied(called(self.snapshot)), ""
        except Exception as error:
            return error, f"the snapshot cannot be read: {type(error).__name__}: {error}"

    def ask(self) -> Any:
        """One call of the handler, with arguments that no other call has changed."""
        args, kwargs = plain_copy((self.args, self.kwargs))
        return self.handler(*args, **kwargs)


def is_async_function(handler: Any) -> bool:
    """Whether it is declared ``async``. (If a wrapper hides this, it is detected at its first run.)"""
    inner = _inner(handler)
    return any(map(inspect.iscoroutinefunction, (inner, getattr(inner, "__call__", None))))  # noqa: B004


def _inner(handler: Any) -> Any:
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler


def called(function: Callable[[], Any]) -> Any:
    """Call the user's function; if it returns an awaitable, await that."""
    found = function()
    if not inspect.isawaitable(found):
        return found

    async def wait() -> Any:
        return await found

    return asyncio.run(wait())


@dataclass
class Stage:
    """The environment of one trial: clean at first, with one key."""

    case: HandlerCase
    starts: list[str] = field(default_factory=list)
    """One entry per start of the handler."""
    clock: FakeClock | None = None

    def __post_init__(self) -> None:
        case = self.case
        called(case.setup)
        own, durable = case.receiver, case.durable
        policy = case.policy or (Policy() if own is None else own.policy)
        if durable is not None and case.policy is None:
            policy = durable._given_policy
        # Without a time-out, which would run the handler, and its points, in another thread.
        self.policy = policy.replace(timeout=None)
        if own is None:
            # Reject instead of waiting: only we move this clock.
            self.clock = FakeClock()
            self.store: Store = MemoryStore(now=self.clock)
            self.policy = self.policy.replace(in_flight="reject")
            self.key: Key = Receiver(self.store).key(case.key)
        else:
            self.store = own.store if isinstance(own.store, Store) else own.store.blocking_store()
            self.policy = self.policy.replace(in_flight="wait", wait=10.0)
            self.key = TrialKey(own.key(case.key))

    def pass_time(self) -> None:
        """Let every lease expire. On a real clock the next delivery waits for it."""
        if self.clock is not None and not self.case.bare:
            self.clock.advance(
                max(seconds(self.policy.lease), seconds(self.policy.backoff.most)) + 1
            )
        if self.case.later is not None:
            called(self.case.later)

    def deliver(self, life: Life | None = None) -> Any:
        """The outcome (bare: the value), or the error; None if the life died."""
        life = life or Life()
        with life:
            try:
                return self._received(life)
            except SystemExit as end:
                return RuntimeError(f"the handler exited, with status {end.code!r}")
            except Exception as error:
                return error
        return None

    def deliver_again(self) -> Any:
        """Deliver again, as a broker does: repeatedly, while the key seems to be in progress."""
        answer = self.deliver()
        for _ in range(REDELIVERIES):
            if not isinstance(answer, StillInProgressError):
                break
            self.pass_time()
            answer = self.deliver()
        return answer

    # -- blocking and async -------------------------------------------------------------------

    def _received(self, life: Life) -> Any:
        with self.case.tracer.watching():
            if self.case.is_async:
                return asyncio.run(self._await(life))
            if self.case.bare:
                return self._started()
            if self.case.durable is not None:
                with Receiver(_Store(life, self.store), policy=self._policy_of(life)) as receiver:
                    bound, call = self._durable_call(receiver, self._step_by_step)
                    return bound._answer(call)
            handler = self._dressed(functools.partial(self._started))
            with Receiver(_Store(life, self.store), policy=self._policy_of(life)) as receiver:
                self._prepare(receiver)
                return receiver.process(self.key, handler)

    async def _await(self, life: Life) -> Any:
        async def handler() -> Any:
            self.starts.append(START)
            crash_point(START)
            value = await Awaits(self.case.ask())
            crash_point(END)
            return value

        if self.case.bare:
            return await handler()
        inline = _Inline(_Store(life, self.store))
        async with AsyncReceiver(inline, policy=self._policy_of(life)) as receiver:
            if self.case.durable is not None:
                bound, call = self._durable_call(receiver, self._step_by_step_async)
                return await bound._answer(call)
            self._prepare(receiver)
            return await receiver.process(self.key, self._dressed(handler))

    def _durable_call(self, receiver: Any, dress: Callable[[Any], Any]) -> tuple[Any, Any]:
        """The durable function on this receiver, and one call of it."""
        self._prepare(receiver)
        durable: Any = self.case.durable
        bound = durable._on(receiver, self.key, dress(durable.__wrapped__))
        return bound, bound._call(*plain_copy((self.case.args, self.case.kwargs)))

    def _step_by_step(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(steps: Any, *args: Any, **kwargs: Any) -> Any:
            self.starts.append(START)
            crash_point(START)
            value = function(steps, *args, **kwargs)
            crash_point(END)
            return value

        return run

    def _step_by_step_async(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def run(steps: Any, *args: Any, **kwargs: Any) -> Any:
            self.starts.append(START)
            crash_point(START)
            value = await Awaits(function(steps, *args, **kwargs))
            crash_point(END)
            return value

        return run

    def _started(self) -> Any:
        self.starts.append(START)
        crash_point(START)
        value = self.case.ask()
        if inspect.isawaitable(value):
            if inspect.iscoroutine(value):
                value.close()
            raise UnawaitedError(f"{self.case.name} returned an awaitable")
        if isinstance(value, (GeneratorType, AsyncGeneratorType)):
            raise UsageError(
                f"{self.case.name} returned a generator, so its work is not done yet: return a value "
                "instead of yielding"
            )
        crash_point(END)
        return value

    def _policy_of(self, life: Life) -> Policy:
        return (
            self.policy.replace(lease=BRIEF) if self.clock is None and life.doomed else self.policy
        )

    def _prepare(self, receiver: Receiver | AsyncReceiver) -> None:
        """Do not log lost leases, which trials cause on purpose. And use the store's clock for the worker,
        so that `current_claim().lost` is right."""
        receiver._notify = receiver._runtime.keeper._notify = _silent
        if self.clock is not None:
            receiver._runtime.clock = self.clock.worker

    def _dressed(self, wrapper: Any) -> Any:
        """Give it the handler's name and return type, so that results are decoded the same way."""
        functools.update_wrapper(wrapper, self.case.handler, ("__name__", "__qualname__"))
        del wrapper.__wrapped__
        wrapper.__annotations__ = {"return": resolve_return_type(self.case.handler)}
        return wrapper


def _silent(_: Event) -> None: ...


class _Store(_BoundStore):
    """The stage's store, bound to one life. Renewals are not points: their time is not fixed."""

    def perform(self, request: Request) -> Any:
        if request.op != "renew":
            return super().perform(request)
        self._life.check()
        if getattr(self._life, "is_paused", False):
            raise StoreUnavailableError("this worker is paused, so it renews nothing")
        return self._store.perform(request)


class _Inline(AsyncStore):
    """A blocking store for an event loop that runs one delivery only."""

    immediate = True

    def __init__(self, store: Store) -> None:
        self._store, self.url = store, store.url
        self.capabilities = store.capabilities  # type: ignore[misc]

    @classmethod
    def open(cls, url: str) -> Self:
        raise NotImplementedError("made for one life of a trial")

    async def perform(self, request: Request) -> Any:
        return self._store.perform(request)

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return self._store.perform_many(requests)

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        await asyncio.to_thread(self._store.watch, id, seconds)

    def blocking_store(self) -> Store:
        return self._store

    async def close(self) -> None:
        """Does nothing: the data belongs to the stage."""
