"""Which servers there are: what is believed of them, for how long, and what makes it be asked again.

    OneServer   the address of the URL
    Sentinels   the primary that the sentinels name
    Slots       the primaries of a Cluster, by slot

A belief about servers is never kept for ever. A time-out, a cut, a refusal (`READONLY`, `LOADING`,
`NOREPLICAS` …) and a restart end it (`doubt`, `greet`). The word of a sentinel also ends by itself,
after `TRUST`: a primary that was silent and replaced does not know it when it wakes, and takes writes
from any client that does not ask. So a command goes to a server that a sentinel has named a moment
ago, and an answer that took longer than that is believed only if the server is still the primary
(`vouch`). What remains, and what bounds it, is in docs/explanation/beliefs.md.
"""

from __future__ import annotations

import binascii
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

import msgspec

from ...errors import StoreUnavailableError
from .error_messages import explain
from .settings import Address, Settings

__all__ = [
    "GREETING",
    "FlowRun",
    "NotPrimaryError",
    "OneServer",
    "RoundTrip",
    "Sentinels",
    "Servers",
    "Slots",
    "servers_of",
    "slot_of",
]

T = TypeVar("T")

SLOTS: Final = 16384

TRUST: Final = 1.0
"""Seconds for which the word of a sentinel is good, at most; and a Cluster node's slow answer."""

GREETING: Final = (b"INFO", b"server", b"replication")
"""Asked on every new connection to a primary that a sentinel named."""


class RoundTrip(msgspec.Struct, gc=False):
    """Lines to send, per server. Reply: per server the replies in order, or what went wrong."""

    lines: dict[Address, list[tuple[Any, ...]]]
    fresh: bool = False
    """On a new connection: nothing may be lost on one that had died unnoticed."""


FlowRun: TypeAlias = Generator[RoundTrip, dict[Address, Any], T]


class NotPrimaryError(ConnectionError):
    """The server at this address is not the primary: ask the sentinels again."""


def slot_of(key: bytes) -> int:
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


class Servers:
    """What all kinds share. Used by many threads: a belief is replaced as a whole, never changed."""

    asks_first: bool = False
    """Must a new connection be greeted?"""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self.clock = clock
        self.changed: Callable[[], object] = bool
        """Called when a server took another one's place."""

    @property
    def direct(self) -> Address | None:
        """Where every command may go now, if there is nothing to ask first."""
        return None

    def locate(self, key: bytes, since: float) -> FlowRun[Address]:
        """The server of a key. ``since``: when the trip began; older knowledge may be asked again."""
        raise NotImplementedError

    def primaries(self, since: float) -> FlowRun[list[Address]]:
        raise NotImplementedError

    def doubt(self) -> None:
        """Something went wrong: what is believed may be over."""

    def learn(self, doubtful: Address | None = None) -> FlowRun[None]:
        """Ask again now, if that can help. ``doubtful``: the one in doubt is asked last."""
        yield from ()

    def greet(self, address: Address, said: bytes) -> None:
        """What a server says about itself on a new connection."""

    def vouch(self, address: Address, sent: float) -> FlowRun[bool]:
        """May what this server answered be believed? ``sent``: when it was asked."""
        yield from ()
        return True

    def serves(self, address: Address, key: bytes) -> bool:
        """Is this the server of this key, by what is believed now?"""
        return True


class OneServer(Servers):
    """There is no other to go to: whether it takes writes, it says itself."""

    @property
    def direct(self) -> Address | None:
        return self._settings.addresses[0]

    def locate(self, key: bytes, since: float) -> FlowRun[Address]:
        yield from ()
        return self._settings.addresses[0]

    def primaries(self, since: float) -> FlowRun[list[Address]]:
        yield from ()
        return [self._settings.addresses[0]]


class _Word(NamedTuple):
    """What a sentinel said."""

    home: Address
    until: float
    epoch: int = 0
    run: str = ""
    """The run id of the server that was met there."""


class Sentinels(Servers):
    asks_first = True

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, clock)
        self._word: _Word | None = None
        self._order: Sequence[Address] = settings.addresses
        """The one that answered last is asked first: a silent one is met once, not every time."""

    @property
    def direct(self) -> Address | None:
        word = self._word
        return word.home if word is not None and self.clock() < word.until else None

    def locate(self, key: bytes, since: float) -> FlowRun[Address]:
        return self.direct or (yield from self._ask())

    def primaries(self, since: float) -> FlowRun[list[Address]]:
        return [(yield from self.locate(b"", since))]

    def doubt(self) -> None:
        word = self._word
        if word is not None:
            self._word = word._replace(until=0.0)

    def learn(self, doubtful: Address | None = None) -> FlowRun[None]:
        """Nothing yet: the next command asks, as the word is in doubt."""
        yield from ()

    def greet(self, address: Address, said: bytes) -> None:
        fields = _fields(said)
        if fields.get("role") != "master":
            raise NotPrimaryError(f"{address} is a replica, or was demoted")
        word = self._word
        if word is None or word.home != address:
            return
        run = fields.get("run_id", "")
        # Another process than before: it may have come back without what it knew, or as a replica's
        # replacement. A sentinel may know more by now, so its word is asked for again.
        until = word.until if word.run in ("", run) else 0.0
        self._word = word._replace(run=run, until=until)

    def vouch(self, address: Address, sent: float) -> FlowRun[bool]:
        home = self.direct
        if home is None:
            home = yield from self._ask()
        return home == address

    def serves(self, address: Address, key: bytes) -> bool:
        word = self._word
        return word is not None and word.home == address

    def _ask(self) -> FlowRun[Address]:
        settings, known = self._settings, self._word
        named = settings.primary.encode()
        lines = [
            (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", named),
            (b"SENTINEL", b"MASTER", named),
        ]
        problem: Any = "none answered"
        best: _Word | None = None
        for sentinel in self._order:
            asked = self.clock()
            answer = (yield RoundTrip({sentinel: list(lines)}))[sentinel]
            if isinstance(answer, Exception):
                problem = answer
                continue
            where, details = answer
            if not isinstance(where, list) or len(where) != 2:
                problem = f"no primary is watched as {settings.primary!r}"
                continue
            fields = _pairs(details)
            word = _Word(
                Address(where[0].decode(), int(where[1])),
                asked + _trust(fields),
                int(fields.get("config-epoch", known.epoch if known else 0)),
            )
            if best is None or word.epoch > best.epoch:
                best, self._order = word, _first(sentinel, self._order)
            if known is None or word.epoch >= known.epoch:
                break
            # It missed a failover that we know of. If all say so, the sentinels were made anew.
        if best is None:
            cause = problem if isinstance(problem, Exception) else None
            raise StoreUnavailableError(
                f"{settings.url}: the sentinels name no primary ({problem})"
            ) from cause
        if known is not None and known.home == best.home:
            best = best._replace(run=known.run)
        self._word = best
        if known is not None and known.home != best.home:
            self.changed()
        return best.home


class Slots(Servers):
    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(settings, clock)
        self._slots: list[Address | None] = []
        self._learnt = 0.0
        self._order: Sequence[Address] = settings.addresses

    def locate(self, key: bytes, since: float) -> FlowRun[Address]:
        slot = slot_of(key)
        if not self._slots or (self._slots[slot] is None and self._learnt < since):
            yield from self.learn()
        address = self._slots[slot]
        if address is None:
            raise StoreUnavailableError(f"{self._settings.url}: no node serves this key's slot")
        return address

    def primaries(self, since: float) -> FlowRun[list[Address]]:
        if not self._slots or (None in self._slots and self._learnt < since):
            yield from self.learn()
        return sorted({address for address in self._slots if address is not None})

    def learn(self, doubtful: Address | None = None) -> FlowRun[None]:
        """The first map without a hole, or else the fullest: a node that was taken out has none."""
        known = {address for address in self._slots if address is not None}
        candidates = [*self._order, *sorted(known.difference(self._order))]
        candidates.sort(key=lambda address: address == doubtful)
        problem: Any = "none answered"
        best: list[Address | None] = []
        began = self.clock()
        for address in candidates:
            answer = (yield RoundTrip({address: [(b"CLUSTER", b"SLOTS")]}))[address]
            if not isinstance(answer, Exception):
                answer = answer[0]
            if isinstance(answer, Exception):
                problem = answer
                continue
            slots = _map(answer, address)
            if not best or slots.count(None) < best.count(None):
                best = slots
                self._order = _first(address, self._order)
            if None not in slots:
                break
        if not best:
            raise (
                explain(problem, self._settings.url)
                if isinstance(problem, Exception)
                else StoreUnavailableError(f"{self._settings.url}: {problem}")
            )
        before, self._slots, self._learnt = self._slots, best, began
        if before and before != best:
            self.changed()

    def vouch(self, address: Address, sent: float) -> FlowRun[bool]:
        """A node that was silent may have been replaced; the others know, and it soon does."""
        if self.clock() - sent > TRUST:
            yield from self.learn(address)
            return address in self._slots
        return True

    def serves(self, address: Address, key: bytes) -> bool:
        return not key or self._slots[slot_of(key)] == address


def servers_of(settings: Settings) -> Servers:
    kinds = {"single": OneServer, "sentinel": Sentinels, "cluster": Slots}
    return kinds[settings.kind](settings)


def _trust(fields: dict[str, str]) -> float:
    """Half of what a sentinel takes to call a server down, if it says so and it is less."""
    return min(TRUST, int(fields.get("down-after-milliseconds", 2000 * TRUST)) / 2000)


def _first(chosen: Address, order: Sequence[Address]) -> Sequence[Address]:
    if chosen not in order:
        return order
    return (chosen, *(address for address in order if address != chosen))


def _map(answer: Any, asked: Address) -> list[Address | None]:
    slots: list[Address | None] = [None] * SLOTS
    for first, last, (host, port, *_), *_ in answer:
        served = Address((host or b"").decode() or asked.host, int(port))
        slots[first : last + 1] = [served] * (last + 1 - first)
    return slots


def _fields(text: bytes) -> dict[str, str]:
    lines = text.decode(errors="replace").splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def _pairs(reply: Any) -> dict[str, str]:
    """Of a list of names and values; empty where this user may not ask."""
    if not isinstance(reply, list):
        return {}
    words = [word.decode(errors="replace") for word in reply if isinstance(word, bytes)]
    return dict(zip(words[::2], words[1::2], strict=False))
