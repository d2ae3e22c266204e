"""Simulated crashes: let a "process" die at every point of a scenario, and check what is left.

    for life, shop in crash_points(Shop, pay):      # pay(life, shop) dies once at each point
        assert Receiver(shop.store()).process("tx-1", charge).value == "paid"

A `Life` simulates one process. It passes *points*: before and after every statement of a store that
is bound to it with `life.bind(store)`, and at each `crash_point("name")` of the code under test,
which does nothing outside a life. At the chosen point it dies: `Died` is raised, and from then on no
command of this life reaches the store, not even from its ``finally`` blocks. Connections are closed, and
the engine rolls back, as after a real crash. Renewals by the lease keeper are not points: their time is not
fixed. The keeper of a dead life renews nothing.

What it shows: at every point where the process can stop, no key is lost, repeated without a recorded cause, or given
two results. Points are found by running the code, so a new statement is covered at once. What it cannot
show: power loss, torn writes, a crash *within* one statement (kill real processes for that), and state
that survives in this interpreter.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, Token
from types import NoneType, TracebackType
from typing import Any, ClassVar, Self, TypeVar, overload

from .._core.durable.run_requests import RecordStep
from .._core.protocol import Request
from .._runtime.lease_keeper import KEEPER
from ..errors import StoreUnavailableError
from ..stores._base import AsyncStore, Store

__all__ = ["Died", "Life", "crash_point", "crash_points"]

W = TypeVar("W")


class Died(BaseException):
    """The simulated process died. Not an `Exception`, so that no ``except Exception`` catches it."""


class Life:
    """One simulated process: the points it passed, and where it dies (``dies_at=None``: it does not).

    Use it as a context manager: within it `crash_point` counts, and it catches its own `Died`.
    """

    real: ClassVar[bool] = False
    """It kills its real process, without any clean-up."""

    def __init__(self, dies_at: int | None = None) -> None:
        self.passed: list[str] = []
        """The points in order, including the one at which it died."""
        self.alive = True
        self._dies_at = dies_at
        self._lock = threading.Lock()
        self._token: Token[Life | None] | None = None

    @property
    def died_at(self) -> str | None:
        return None if self.alive else self.passed[-1]

    @property
    def doomed(self) -> bool:
        """Whether it is to die at some point."""
        return self._dies_at is not None

    def reach(self, name: str) -> None:
        """Pass a point, or die at it."""
        with self._lock:
            self.check()
            if _in_keeper():
                return
            self.passed.append(name)
            self.alive = len(self.passed) != self._dies_at
            self.check()

    def check(self) -> None:
        """Raise if it has died."""
        if not self.alive:
            if _in_keeper():  # `Died` would be an unhandled error of its thread
                raise StoreUnavailableError("the process of this lease keeper has died")
            raise Died(f"at point {len(self.passed)}: {self.passed[-1]}")

    @overload
    def bind(self, store: Store) -> Store: ...
    @overload
    def bind(self, store: AsyncStore) -> AsyncStore: ...
    def bind(self, store: Store | AsyncStore) -> Store | AsyncStore:
        """Bind this store to this life. Use a new store object for each life.

        A store that reports its statements has a point before and after each of them; any other store
        before and after each request.
        """
        engine: Any = store
        if isinstance(store, AsyncStore) and not hasattr(store, "_tap"):
            engine = store.blocking_store()  # an async store on top of a blocking one
        if hasattr(engine, "_tap"):
            engine._tap = self._statement
            return store
        return (
            _AsyncBoundStore(self, store)
            if isinstance(store, AsyncStore)
            else _BoundStore(self, store)
        )

    def _statement(self, stage: str, command: Any) -> None:
        self.reach(f"{stage} {_named(command)}")

    def __enter__(self) -> Self:
        self._token = _life.set(self)
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> bool:
        assert self._token is not None
        _life.reset(self._token)
        # In a task group, its death becomes a group of errors, or a cancellation of the handler.
        return not self.alive and not isinstance(error, (NoneType, Exception, KeyboardInterrupt))

    def __repr__(self) -> str:
        end = "alive" if self.alive else f"died at {self.died_at!r}"
        return f"<life of {len(self.passed)} points, {end}>"


def _named(command: Any) -> str:
    """A statement by its first words, a call or a script by its name, a batch by all its commands."""
    if isinstance(command, list):
        return ", ".join(map(_named, command))
    if hasattr(command, "sql"):
        return " ".join(command.sql.split()[:3])
    if hasattr(command, "operation"):
        return str(command.operation)
    script = getattr(command, "script", None)
    return str(script.name if script is not None else command.args[0].decode())


def _in_keeper() -> bool:
    return threading.current_thread().name == KEEPER


_life: ContextVar[Life | None] = ContextVar("twicesafe_life", default=None)


def current_life() -> Life | None:
    return _life.get()


def crash_point(name: str) -> None:
    """Mark a point of your handler at which its process may die. Does nothing outside a test."""
    life = current_life()
    if life is not None:
        life.reach(name)


def crash_points(
    prepare: Callable[[], W], scenario: Callable[[Life, W], object], *, most: int = 10_000
) -> Iterator[tuple[Life, W]]:
    """Run ``scenario(life, world)`` on fresh worlds: once per point at which it can die.

    Yields each life with its world after its end, for you to check; the last life does not die. For
    async code, let the scenario call `asyncio.run`. A scenario must pass the same points in each run up
    to its death; otherwise an AssertionError is raised, because some points would not be tried.
    """
    before: list[str] = []
    for number in itertools.count(1):
        assert number <= most, f"more than {most} points: does the scenario ever end?"
        world, life = prepare(), Life(number)
        with life:
            scenario(life, world)
        way = life.passed[: len(before)]
        assert way == before, f"the scenario passed other points this time: {way}, not {before}"
        yield life, world
        if life.alive:
            return
        before = life.passed


# --- other stores: a point before and after each request -------- -----------------------------


def _asked(request: Request) -> str:
    """What is asked, and of which step of a durable run."""
    return f"{request.op} {request.name!r}" if isinstance(request, RecordStep) else request.op


class _BoundStore(Store):
    """Performs batches one by one, so that the process can die between two items."""

    def __init__(self, life: Life, store: Store, counted: bool = True) -> None:
        self._life, self._store = life, store
        self._reach = life.reach if counted else _only(life.check)
        self.url, self.dialect = store.url, store.dialect
        self.capabilities = store.capabilities  # type: ignore[misc]

    @classmethod
    def open(cls, url: str) -> Self:
        raise NotImplementedError("made by Life.bind")

    def in_transaction(self, style: str = "%s") -> Any:
        return self._store.in_transaction(style)

    def perform(self, request: Request) -> Any:
        self._reach(f"before {_asked(request)}")
        answer = self._store.perform(request)
        self._reach(f"after {_asked(request)}")
        return answer

    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        return [_or_error(self.perform, request) for request in requests]

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        self._life.check()
        self._store.watch(id, seconds)

    def close(self) -> None:
        """Does nothing: the data outlives the process."""


class _AsyncBoundStore(AsyncStore):
    """The async version of `_BoundStore`."""

    def __init__(self, life: Life, store: AsyncStore, counted: bool = True) -> None:
        self._life, self._store, self._counted = life, store, counted
        self._reach = life.reach if counted else _only(life.check)
        self.url = store.url
        self.capabilities = store.capabilities  # type: ignore[misc]
        self.immediate = store.immediate  # type: ignore[misc]

    @classmethod
    def open(cls, url: str) -> Self:
        raise NotImplementedError("made by Life.bind")

    async def perform(self, request: Request) -> Any:
        self._reach(f"before {_asked(request)}")
        answer = await self._store.perform(request)
        self._reach(f"after {_asked(request)}")
        return answer

    async def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        answers: list[Any] = []
        for request in requests:
            try:
                answers.append(await self.perform(request))
            except Exception as error:
                answers.append(error)
        return answers

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        self._life.check()
        await self._store.watch(id, seconds)

    def blocking_store(self) -> Store:
        return _BoundStore(self._life, self._store.blocking_store(), self._counted)

    async def close(self) -> None:
        """Does nothing: the data outlives the process."""


def _or_error(perform: Callable[[Request], Any], request: Request) -> Any:
    try:
        return perform(request)
    except Exception as error:
        return error


def _only(check: Callable[[], None]) -> Callable[[str], None]:
    return lambda _: check()
