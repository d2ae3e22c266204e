"""The base classes of every store: `Store` (blocking) and `AsyncStore`. A store performs requests.

To add a store, write one file with its programs (generators that yield the engine's commands), a
`Store` and an `AsyncStore` that run them, and its `Capabilities`. Register the URL scheme under the
entry-point group ``twicesafe.stores``, and subclass the shipped conformance suite. A store
declares what it cannot do, and the suite skips those tests by name.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Self, TypeAlias, TypeVar

from .._core.protocol import Claimed, Request
from .._values.settings import suggesting
from ..errors import UnsupportedByStoreError, stays_here

if TYPE_CHECKING:
    from .._values.hidden_keys import HiddenKeys
    from ._outbox_port import AsyncOutboxPort, OutboxPort

__all__ = ["AsyncStore", "Capabilities", "Finding", "Program", "Store"]

T = TypeVar("T")

Program: TypeAlias = Generator[Any, Any, T]
"""One store operation: yields the engine's commands, receives their results."""


@suggesting("capability")
@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a store can do. Tests and docs ask for a capability, never for an engine by its name."""

    durable: bool = True
    """Records survive the end of the process."""
    shared: bool = True
    """Several processes can use it at once."""
    server_clock: bool = True
    """The store's own clock decides when a lease expires."""
    transactions: bool = False
    """The record can be written in the caller's own transaction (inbox)."""
    single_writer: bool = False
    """One open transaction that writes blocks all other writers of the database."""
    batch: bool = True
    """Many requests in one round trip."""
    native_expiry: bool = False
    """Completed records disappear without a sweep."""
    wake: bool = False
    """Waiters in other processes are notified and need not poll."""
    outbox: bool = False
    """Messages can be written in the caller's own transaction."""
    steps: bool = False
    """Durable runs: named steps are recorded beside their record (`receiver.durable`)."""
    copies: bool = False
    """Takes copies of another store's records, so that a region can take over (`twicesafe follow`)."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a doctor. ``refuse``: the guarantees do not hold on this store."""

    level: Literal["ok", "warn", "refuse"]
    what: str
    remedy: str = ""


Progress: TypeAlias = Callable[[int, int], None] | None
"""Called with the number of records that a migration has moved, and of all that it moves."""


class _Described:
    capabilities: ClassVar[Capabilities]
    untried: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What no test could try, because no server here has it: the name of a capability or of a setting, and
    why. The store table shows it."""
    recalls: ClassVar[bool] = False
    """`recall` works: the store is embedded, so it can look without a round trip."""
    answers_together: ClassVar[bool] = False
    """Several questions about many records in one `perform_many` take as long as one of them."""
    url: str
    """The URL without its password and options."""
    place: str = ""
    """The options of that URL that say which of several stores at one address it is."""
    hidden_keys: HiddenKeys | None = None
    """Hides the text of every key before this store gets it; None: the text is readable."""

    def __reduce__(self) -> NoReturn:
        raise stays_here(self)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    def _no_outbox(self) -> UnsupportedByStoreError:
        return UnsupportedByStoreError(
            f"{self.url} cannot hold an outbox, which must be in the database of your data: use "
            "sqlite:///…, postgresql://… or mysql://…"
        )


class Store(_Described, abc.ABC):
    """A blocking store. Safe to use from many threads; reopens itself after a fork."""

    migrated: Sequence[str] = ()
    """What opening did to the schema, as text."""
    dialect: str = ""
    """Its SQL dialect: ``sqlite``, ``postgresql`` or ``mysql``. Only with ``transactions``."""

    @classmethod
    @abc.abstractmethod
    def open(cls, url: str) -> Self:
        """Connect. Raises `ConfigurationError` or `StoreUnavailableError`, which say what to do."""

    @classmethod
    def missing(cls, url: str) -> bool:
        """Whether the store is a file that does not exist yet. Does not connect."""
        return False

    @classmethod
    def script(cls, url: str) -> str:
        """The SQL that creates the schema, for a migration by hand. Does not connect."""
        return ""

    @classmethod
    def outbox_script(cls, url: str) -> str:
        """The SQL that creates the outbox tables. Does not connect."""
        return ""

    @abc.abstractmethod
    def perform(self, request: Request) -> Any:
        """Do one request atomically. Driver errors become `StoreUnavailableError`, or a plain
        `StoreError` if the engine will always refuse a value of the request."""

    @abc.abstractmethod
    def perform_many(self, requests: Sequence[Request]) -> list[Any]:
        """Do many requests, in as few round trips as possible. The answer to a failed one is its error."""

    def recall(self, id: bytes) -> Claimed | None:  # noqa: A002
        """Look up the recorded answer, without a claim. None: this key is most likely new.

        A `Claimed` with the verdict REPLAY is the recorded answer; after any other verdict the caller
        makes a claim. Only with ``recalls``: it saves a claim for every repeat. It never waits and
        never raises: the claim that follows reports the problem.
        """
        return None

    def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        """Return when this key may have changed, or after `seconds`. Only with ``wake``."""
        raise NotImplementedError

    def in_transaction(self, style: str = "%s") -> Any:
        """Programs for the caller's own transaction (`InTransaction`). Only with ``transactions``.

        ``style``: the placeholder of the caller's driver: ``?``, ``%s`` or ``$1``. By default, that
        of the store's own connection.
        """
        raise NotImplementedError

    def own_transaction(self, program: Callable[[], Program[T]]) -> T:
        """Run a program of `in_transaction` in our own transaction. Only with ``transactions``."""
        raise NotImplementedError

    @property
    def outbox(self) -> OutboxPort:
        """The outbox in this store's database. Only with ``outbox``."""
        raise self._no_outbox()

    def doctor(self) -> list[Finding]:
        """Check the settings that the guarantees depend on."""
        return []

    def migrate(self, tell: Progress = None) -> list[str]:
        """Bring the schema up to date; returns what was done.

        `open` creates what is missing, unless migrate=false. Only this method makes changes that nodes of an
        older version cannot work with.
        """
        return []

    def refresh(self) -> None:
        """Read again how the records are stored, for the next `in_transaction`."""

    @abc.abstractmethod
    def close(self) -> None: ...


class AsyncStore(_Described, abc.ABC):
    """The async version of `Store`: the same methods, awaited. Connects on first use."""

    immediate: ClassVar[bool] = False
    """`perform` never suspends, so it cannot be cancelled midway."""

    @classmethod
    @abc.abstractmethod
    def open(cls, url: str) -> Self:
        """A plain call, not awaited; does not connect yet."""

    async def ready(self) -> None:
        """Connect on the running loop, if not done yet.

        Awaited before a claim's lease starts, so that connecting does not use up the lease.
        """

    @abc.abstractmethod
    async def perform(self, request: Request) -> Any: ...

    @abc.abstractmethod
    async def perform_many(self, requests: Sequence[Request]) -> list[Any]: ...

    def submit(self, request: Request) -> Awaitable[Any]:
        """`perform` that completes even if the awaiting task is cancelled.

        The cancellation is then delivered with the answer (`_batching.Uncancellable`).
        """
        from ._batching import uncancellable

        return uncancellable(self.perform(request))

    def recall(self, id: bytes) -> Claimed | None:  # noqa: A002
        """As `Store.recall`; a plain call, so it must not block the event loop."""
        return None

    async def watch(self, id: bytes, seconds: float) -> None:  # noqa: A002
        raise NotImplementedError

    @property
    def outbox(self) -> AsyncOutboxPort:
        """The async version of `Store.outbox`."""
        raise self._no_outbox()

    async def doctor(self) -> list[Finding]:
        return []

    async def migrate(self, tell: Progress = None) -> list[str]:
        return []

    @abc.abstractmethod
    def blocking_store(self) -> Store:
        """A blocking store on the same data, for the lease keeper's thread. Always the same object,
        closed with this store."""

    @abc.abstractmethod
    async def close(self) -> None: ...
