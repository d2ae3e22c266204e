"""What every store is: a performer of requests, in a blocking and an awaitable form.

To add a store, write one file with its programs (generators that yield the engine's commands),
a `Store` and an `AsyncStore` that run them, and its `Capabilities`; register the URL scheme under
the entry-point group ``twicesafe.stores``; and subclass the shipped conformance suite. What a
store cannot do it declares, and the suite skips it by name.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeAlias, TypeVar

from .._core.protocol import Request
from ..errors import stays_here

__all__ = ["AsyncStore", "Capabilities", "Finding", "Program", "Store"]

T = TypeVar("T")

Program: TypeAlias = Generator[Any, Any, T]
"""One store operation: yields the engine's commands, receives their results."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do; the tests and the table in the docs ask these, never a name."""

    durable: bool = True
    """Records survive the end of the process."""
    shared: bool = True
    """Several processes can use it at once."""
    server_clock: bool = True
    """Leases are judged by the store's own clock."""
    transactions: bool = False
    """The record can be written in the caller's own transaction (inbox)."""
    batch: bool = True
    """Many requests in one trip."""
    native_expiry: bool = False
    """Completed records disappear without a sweep."""
    wake: bool = False
    """Waiters in other processes are woken, not left to poll."""
    outbox: bool = False
    """Messages can be written in the caller's own transaction."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a doctor found. ``refuse``: the guarantee does not hold on this store."""

    level: Literal["ok", "warn", "refuse"]
    what: str
    remedy: str = ""


class _Described:
    capabilities: ClassVar[Capabilities]
    url: str
    """Where it is, without its password."""

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"


class Store(_Described, abc.ABC):
    """The blocking form. Safe to use from many threads; reopens itself after a fork."""

    migrated: Sequence[str] = ()
    """What opening it did to the schema, in words; for whoever asked for a migration."""

    @classmethod
    @abc.abstractmethod
    def open(cls, url: str) -> Self:
        """Connect; raises `ConfigurationError` or `StoreUnavailableError` that says what to do."""

    @classmethod
    def missing(cls, url: str) -> bool:
        """Is it a file that is not there, and that opening it would make? Connects to nothing."""
        return False

    @classmethod
    def script(cls, url: str) -> str:
        """The SQL that makes the schema, for whoever migrates by hand; connects to nothing."""
        return ""

    @classmethod
    def outbox_script(cls, url: str) -> str:
        """The SQL that makes the tables of an outbox; connects to nothing."""
        return ""

    @abc.abstractmethod
    def perform(self, request: Request) -> Any:
        """Do one request atomically. Driver errors come out as `StoreUnavailableError`; as a plain
        `StoreError` if the engine refuses a value of the request, whenever it is asked."""

    @abc.abstractmethod
    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        """Do many, in as few trips as the engine can; an item's error stands in its place."""

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        """Return when this key may have changed, or after `seconds`. Only with ``wake``."""
        raise NotImplementedError

    def in_transaction(self, style: str) -> Any:
        """Programs for the caller's own transaction (`inside.InTransaction`). Only with ``transactions``.

        ``style``: how the caller's driver writes the place of a value: ``?``, ``%s`` or ``$1``.
        """
        raise NotImplementedError

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        """Run such a program in a transaction of our own. Only with ``transactions``."""
        raise NotImplementedError

    def doctor(self) -> list[Finding]:
        """Look at the settings that the guarantee stands on."""
        return []

    def migrate(self) -> list[str]:
        """Bring the schema up to date; what was done, in words. Done by `open` unless told not."""
        return []

    @abc.abstractmethod
    def close(self) -> None: ...


class AsyncStore(_Described, abc.ABC):
    """The awaitable form: the same names, awaited. Connects on first use."""

    immediate: ClassVar[bool] = False
    """`perform` never suspends: nothing can be cancelled in the middle of it."""

    @classmethod
    @abc.abstractmethod
    def open(cls, url: str) -> Self:
        """A plain call; nothing is connected yet."""

    async def ready(self) -> None:
        """Connect on the running loop, if that is still to be done.

        Awaited before a claim's lease begins to count: what connecting takes is not the claim's time.
        """

    @abc.abstractmethod
    async def perform(self, request: Request) -> Any: ...

    @abc.abstractmethod
    async def perform_many(self, requests: Sequence[Request]) -> list[Any]: ...

    def submit(self, request: Request) -> Awaitable[Any]:
        """`perform` to its end, also when whoever awaits the answer is cancelled meanwhile.

        The cancellation is then delivered with the answer (`joining.Uncancellable`).
        """
        from ._batching import uncancellable

        return uncancellable(self.perform(request))

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        raise NotImplementedError

    async def doctor(self) -> list[Finding]:
        return []

    async def migrate(self) -> list[str]:
        return []

    @abc.abstractmethod
    def blocking_store(self) -> Store:
        """A blocking store on the same data, for the lease keeper's thread: always the same one,
        closed with this store."""

    @abc.abstractmethod
    async def close(self) -> None: ...
