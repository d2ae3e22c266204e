"""Which server a command goes to, and what to do when it is not the one.

A *trip* takes commands and gives their replies, an error in the place of what failed. It is a
generator that yields flights (lines per server) as data, so both colours share its answers to a
script that is not loaded, a slot that moved, a primary that changed and a connection that was cut.

Everything but an operator's act may be sent twice: requests are idempotent by their owner token.
"""

from __future__ import annotations

import binascii
from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from ...errors import StoreUnavailableError, TwicesafeError
from .scripts import Script
from .settings import Address, Settings, explain

__all__ = ["Call", "Flight", "Router", "Tell", "Trip", "may_repeat", "slot_of"]

T = TypeVar("T")

SLOTS: Final = 16384
ROUNDS: Final = 6
"""Flights of one trip at most: load, redirect, reconnect and so on, none of them without end."""


class Call(msgspec.Struct, gc=False):
    """One script on one key (and its companions in the same slot)."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    durable: bool = False
    """If it wrote, replicas must have it before we believe it (``wait_replicas``)."""
    repeatable: bool = True

    def line(self) -> tuple[Any, ...]:
        return (b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


class Tell(msgspec.Struct, gc=False):
    """A plain command, to the server of a key or to the n-th primary (None: there is no such)."""

    args: tuple[Any, ...]
    key: bytes = b""
    node: int = 0


class Flight(msgspec.Struct, gc=False):
    """Lines to send, per server. Reply: per server the replies in order, or what went wrong."""

    lines: dict[Address, list[tuple[Any, ...]]]
    fresh: bool = False
    """On a new connection: nothing may be lost on one that had died unnoticed."""


Trip: TypeAlias = Generator[Flight, dict[Address, Any], T]


def slot_of(key: bytes) -> int:
    begin = key.find(b"{")
    if begin >= 0:
        end = key.find(b"}", begin + 1)
        if end > begin + 1:
            key = key[begin + 1 : end]
    return binascii.crc_hqx(key, 0) % SLOTS


_CODES: Final = {
    "NoScriptError": "NOSCRIPT",
    "MovedError": "MOVED",
    "AskError": "ASK",
    "ReadOnlyError": "READONLY",
    "ClusterDownError": "CLUSTERDOWN",
    "TryAgainError": "TRYAGAIN",
}


def _code(error: BaseException) -> str:
    """What the server said first; newer drivers make it a class and cut it off the text."""
    return _CODES.get(type(error).__name__) or str(error).partition(" ")[0]


class Router:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._home: Address | None = None
        self._slots: list[Address | None] = []
        self._wait: tuple[Any, ...] | None = None
        if settings.wait_replicas:
            limit = max(1, round(settings.wait_timeout * 1000))
            self._wait = (b"WAIT", settings.wait_replicas, limit)
        if settings.kind == "single":
            self._home = settings.addresses[0]

    # -- where --------------------------------------------------------------------------------

    @property
    def direct(self) -> Address | None:
        """Where every command goes, if nothing is to be looked up or waited for."""
        return self._home if self._wait is None else None

    def locate(self, key: bytes) -> Trip[Address]:
        """The server of a key."""
        if self._settings.kind != "cluster":
            return self._home or (yield from self._ask_sentinels())
        if not self._slots:
            yield from self._learn_slots()
        address = self._slots[slot_of(key)]
        if address is None:
            raise StoreUnavailableError(f"{self._settings.url}: no node serves this key's slot")
        return address

    def primaries(self) -> Trip[list[Address]]:
        if self._settings.kind != "cluster":
            return [(yield from self.locate(b""))]
        if not self._slots:
            yield from self._learn_slots()
        return sorted({address for address in self._slots if address is not None})

    def forget(self) -> None:
        """What was known may be over: ask again."""
        if self._settings.kind == "sentinel":
            self._home = None

    def _ask_sentinels(self) -> Trip[Address]:
        settings = self._settings
        problem: Any = "none answered"
        for sentinel in settings.addresses:
            line = (b"SENTINEL", b"GET-MASTER-ADDR-BY-NAME", settings.primary)
            answer = (yield Flight({sentinel: [line]}))[sentinel]
            if isinstance(answer, Exception):
                problem = answer
            elif isinstance(answer[0], list) and len(answer[0]) == 2:
                host, port = answer[0]
                self._home = Address(host.decode(), int(port))
                return self._home
            else:
                problem = f"no primary is watched as {settings.primary!r}"
        raise StoreUnavailableError(f"{settings.url}: the sentinels name no primary ({problem})")

    def _learn_slots(self) -> Trip[None]:
        known = {address for address in self._slots if address is not None}
        problem: Any = "none answered"
        for address in (*self._settings.addresses, *sorted(known)):
            answer = (yield Flight({address: [(b"CLUSTER", b"SLOTS")]}))[address]
            if not isinstance(answer, Exception):
                answer = answer[0]
            if isinstance(answer, Exception):
                problem = answer
                continue
            slots: list[Address | None] = [None] * SLOTS
            for first, last, (host, port, *_), *_ in answer:
                served = Address((host or b"").decode() or address.host, int(port))
                slots[first : last + 1] = [served] * (last + 1 - first)
            self._slots = slots
            return
        raise (
            explain(problem, self._settings.url)
            if isinstance(problem, Exception)
            else StoreUnavailableError(f"{self._settings.url}: {problem}")
        )

    # -- there and back -----------------------------------------------------------------------

    def trip(self, commands: Sequence[Any]) -> Trip[list[Any]]:
        """The replies of all commands, in order; errors (ours) stand in the place of replies."""
        home = self.direct
        if home is None or not all(type(c) is Call and c.repeatable for c in commands):
            return (yield from self._long_trip(commands))
        answers = (yield Flight({home: [command.line() for command in commands]}))[home]
        if isinstance(answers, Exception):
            if may_repeat(answers):
                return (yield from self._long_trip(commands))
            return [explain(answers, self._settings.url) for _ in commands]
        left = [index for index, answer in enumerate(answers) if isinstance(answer, Exception)]
        if left:
            again = yield from self._long_trip([commands[index] for index in left])
            for index, answer in zip(left, again, strict=True):
                answers[index] = answer
        return answers  # type: ignore[no-any-return]

    def _long_trip(self, commands: Sequence[Any]) -> Trip[list[Any]]:
        replies: list[Any] = [None] * len(commands)
        todo: dict[int, Address | None] = dict.fromkeys(range(len(commands)))
        missing: set[Address] = set()
        asking: set[int] = set()
        fresh = not all(getattr(command, "repeatable", True) for command in commands)
        cut = False
        for turn in range(ROUNDS):
            groups = yield from self._group(commands, todo, replies)
            lines, indexes = self._lines(commands, groups, missing, asking)
            missing, asking = set(), set()
            answered = yield Flight(lines, fresh)
            moved = False
            todo = {}
            for address, answers in answered.items():
                if isinstance(answers, Exception):
                    self.forget()
                    moved = moved or self._settings.kind == "cluster"
                    again = not fresh and not cut and may_repeat(answers)
                    for index in indexes[address]:
                        if index is None:
                            continue
                        replies[index] = answers
                        if again:
                            todo[index] = None
                    continue
                for index, answer in zip(indexes[address], answers, strict=True):
                    if index is None:
                        continue
                    replies[index] = answer
                    if not isinstance(answer, Exception):
                        continue
                    code = _code(answer)
                    if code == "NOSCRIPT":
                        missing.add(address)
                        todo[index] = address
                    elif code == "MOVED":
                        moved = True
                        todo[index] = _redirected(answer, address)
                    elif code == "ASK":
                        asking.add(index)
                        todo[index] = _redirected(answer, address)
                    elif code == "READONLY":
                        self.forget()
                        moved = moved or self._settings.kind == "cluster"
                self._believe(commands, indexes[address], answers, replies)
            cut = cut or any(isinstance(a, Exception) for a in answered.values())
            if moved:
                try:
                    yield from self._learn_slots()
                except TwicesafeError:
                    if turn:
                        break
            if not todo:
                break
        where = self._settings.url
        return [explain(r, where) if isinstance(r, Exception) else r for r in replies]

    def _group(
        self, commands: Sequence[Any], todo: dict[int, Address | None], replies: list[Any]
    ) -> Trip[dict[Address, list[int]]]:
        groups: dict[Address, list[int]] = {}
        for index, forced in todo.items():
            command = commands[index]
            try:
                if forced is not None:
                    address = forced
                elif type(command) is Call:
                    address = yield from self.locate(command.keys[0])
                elif command.key:
                    address = yield from self.locate(command.key)
                else:
                    primaries = yield from self.primaries()
                    if command.node >= len(primaries):
                        continue
                    address = primaries[command.node]
            except TwicesafeError as error:
                replies[index] = error.again()
                continue
            groups.setdefault(address, []).append(index)
        return groups

    def _lines(
        self,
        commands: Sequence[Any],
        groups: dict[Address, list[int]],
        missing: set[Address],
        asking: set[int],
    ) -> tuple[dict[Address, list[tuple[Any, ...]]], dict[Address, list[int | None]]]:
        lines: dict[Address, list[tuple[Any, ...]]] = {}
        indexes: dict[Address, list[int | None]] = {}
        for address, members in groups.items():
            out: list[tuple[Any, ...]] = []
            whose: list[int | None] = []
            if address in missing:
                for script in {id(s): s for s in _scripts(commands, members)}.values():
                    out.append((b"SCRIPT", b"LOAD", script.text))
                    whose.append(None)
            durable = False
            for index in members:
                command = commands[index]
                if index in asking:
                    out.append((b"ASKING",))
                    whose.append(None)
                whose.append(index)
                if type(command) is Call:
                    durable = durable or command.durable
                    out.append(command.line())
                else:
                    out.append(command.args)
            if durable and self._wait is not None:
                out.append(self._wait)
                whose.append(None)
            lines[address], indexes[address] = out, whose
        return lines, indexes

    def _believe(
        self,
        commands: Sequence[Any],
        indexes: list[int | None],
        answers: list[Any],
        replies: list[Any],
    ) -> None:
        """With `wait_replicas`, a write that too few replicas have is not a success."""
        if self._wait is None or indexes[-1] is not None:
            return
        reached = answers[-1]
        if isinstance(reached, int) and reached >= self._settings.wait_replicas:
            return
        for index in indexes:
            if index is None or type(commands[index]) is not Call:
                continue
            if commands[index].durable and _wrote(replies[index]):
                replies[index] = StoreUnavailableError(
                    f"{self._settings.url}: {reached} of {self._settings.wait_replicas} replicas have "
                    f"this write after {self._settings.wait_timeout:g} s; it is not believed"
                )


def _scripts(commands: Sequence[Any], members: list[int]) -> list[Script]:
    return [commands[index].script for index in members if type(commands[index]) is Call]


def _wrote(reply: Any) -> bool:
    """A claim that was won, or an acknowledged write."""
    return reply == 0 if isinstance(reply, int) else isinstance(reply, list) and reply[0] == 1


def may_repeat(error: BaseException) -> bool:
    """A connection that was cut may just have been old; a wrong password stays wrong."""
    name = type(error).__name__
    return not name.startswith(("Authentication", "Timeout")) and not isinstance(
        error, TwicesafeError
    )


def _redirected(error: BaseException, came_from: Address) -> Address:
    host, _, port = str(error).split()[-1].rpartition(":")
    return Address(host or came_from.host, int(port))
