"""The router: send each command to its server, and get all replies.

`Router.run` takes commands and returns their replies; a failed command's error is in its place. It is
a generator that yields round trips as data. So the blocking and the async store react in the same way to
an unloaded script, a moved slot, a new primary and a lost connection. `servers`
decides which server is asked, and whether its answer counts.

Everything except an operator's request may be sent twice: requests are idempotent by their owner token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from ...errors import StoreUnavailableError, TwicesafeError
from .error_messages import code_of, explain
from .scripts import Script
from .servers import Line, Packed, RoundTrip, RoundTrips, Servers, servers_of, slot_of
from .settings import Address, Settings

__all__ = [
    "Overlapped",
    "Packed",
    "PlainCommand",
    "RoundTrip",
    "RoundTrips",
    "Router",
    "ScriptCall",
    "may_repeat",
    "slot_of",
]

ROUNDS: Final = 6
"""The most round trips for one list of commands: load a script, follow a redirect, reconnect …"""

NOT_HERE: Final = frozenset({"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN"})
"""Errors of a server that cannot serve the command now: another one may be the primary."""


class ScriptCall(msgspec.Struct, gc=False):
    """One script on one key (and its companions in the same slot), or on a node."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[Any, ...]
    durable: bool = False
    """A write that counts only when replicas have it (``wait_replicas``)."""
    repeatable: bool = True
    node: int | None = None
    """A script without keys is for the n-th primary (reply None: there is none)."""

    def line(self) -> tuple[Any, ...]:
        return (b"EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)


class PlainCommand(msgspec.Struct, gc=False):
    """A plain command for the server of a key, or for the n-th primary (reply None: there is none)."""

    args: Line
    key: bytes = b""
    node: int = 0


class Overlapped(list[Any]):
    """Commands, and what this process does until their replies come."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = meanwhile


class Router:
    """For one store. Shared by its threads or event loops."""

    def __init__(self, settings: Settings, servers: Servers | None = None) -> None:
        self._settings = settings
        self.servers = servers_of(settings) if servers is None else servers
        self._wait: tuple[Any, ...] | None = None
        if settings.wait_replicas:
            limit = max(1, round(settings.wait_timeout * 1000))
            self._wait = (b"WAIT", settings.wait_replicas, limit)

    @property
    def direct(self) -> Address | None:
        """The server of every command, if there is nothing to look up or to wait for."""
        return self.servers.direct if self._wait is None else None

    def is_plain(self, home: Address, reply: Any) -> bool:
        """Whether this reply from `direct` counts as it is."""
        if isinstance(reply, Exception):
            self.servers.distrust()
            return False
        return self.servers.direct == home

    def run(self, commands: Sequence[Any]) -> RoundTrips[list[Any]]:
        """The replies of all commands, in order; a failed command's error (ours) is in its place."""
        home = self.direct
        if home is None or not all(
            type(c) is ScriptCall and c.repeatable and c.keys for c in commands
        ):
            return (yield from self._run_in_rounds(commands))
        answers = (yield RoundTrip({home: [command.line() for command in commands]}))[home]
        if not self.is_plain(home, answers):
            if isinstance(answers, Exception) and not may_repeat(answers):
                return [explain(answers, self._settings.url) for _ in commands]
            return (yield from self._run_in_rounds(commands))
        left = [index for index, answer in enumerate(answers) if isinstance(answer, Exception)]
        if left:
            again = yield from self._run_in_rounds([commands[index] for index in left])
            for index, answer in zip(left, again, strict=True):
                answers[index] = answer
        return answers  # type: ignore[no-any-return]

    def _run_in_rounds(self, commands: Sequence[Any]) -> RoundTrips[list[Any]]:
        servers = self.servers
        since = servers.clock()
        replies: list[Any] = [None] * len(commands)
        todo: dict[int, Address | None] = dict.fromkeys(range(len(commands)))
        missing: set[Address] = set()
        asking: set[int] = set()
        fresh = not all(getattr(command, "repeatable", True) for command in commands)
        lost_once = False
        redirected: set[int] = set()
        meanwhile = commands.meanwhile if isinstance(commands, Overlapped) else bool
        for turn in range(ROUNDS):
            groups = yield from self._group(commands, todo, replies, since)
            lines, indexes = self._lines(commands, groups, missing, asking)
            missing, asking = set(), set()
            sent = servers.clock()
            answered = yield RoundTrip(lines, fresh, meanwhile)
            meanwhile = bool
            suspect: Address | None = None
            moved = False
            todo = {}
            for address, answers in answered.items():
                if isinstance(answers, Exception):
                    servers.distrust()
                    suspect = address
                    again = not fresh and not lost_once and may_repeat(answers)
                    for index in indexes[address]:
                        if index is None:
                            continue
                        replies[index] = answers
                        if again:
                            todo[index] = None
                    continue
                trusted = yield from self._is_trusted(address, sent)
                for index, answer in zip(indexes[address], answers, strict=True):
                    if index is None:
                        continue
                    if index not in redirected and not (
                        trusted and servers.serves(address, _key_of(commands[index]))
                    ):
                        replies[index] = self._replaced(address)
                        if not fresh:
                            todo[index] = None
                        continue
                    replies[index] = answer
                    if not isinstance(answer, Exception):
                        continue
                    code = code_of(answer)
                    if code == "NOSCRIPT":
                        missing.add(address)
                        todo[index] = address
                    elif code == "MOVED":
                        moved = True
                        redirected.add(index)
                        todo[index] = _redirected(answer, address)
                    elif code == "ASK":
                        asking.add(index)
                        redirected.add(index)
                        todo[index] = _redirected(answer, address)
                    elif code in NOT_HERE:
                        servers.distrust()
                        suspect = address
                        if code == "READONLY" and not turn:
                            todo[index] = None  # nothing was written
                self._check_replicas(commands, indexes[address], answers, replies)
            lost_once = lost_once or any(isinstance(a, Exception) for a in answered.values())
            if moved or suspect is not None:
                try:
                    yield from servers.refresh(suspect)
                except TwicesafeError:
                    if turn:
                        break
            if not todo:
                break
        where = self._settings.url
        return [explain(r, where) if isinstance(r, Exception) else r for r in replies]

    def _is_trusted(self, address: Address, sent: float) -> RoundTrips[bool]:
        try:
            return (yield from self.servers.is_still_primary(address, sent))
        except TwicesafeError:
            return False  # the primary is unknown now: it may be another server

    def _replaced(self, address: Address) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self._settings.url}: {address} answered late and may no longer be the primary; its answer "
            "does not count"
        )

    def _group(
        self,
        commands: Sequence[Any],
        todo: dict[int, Address | None],
        replies: list[Any],
        since: float,
    ) -> RoundTrips[dict[Address, list[int]]]:
        groups: dict[Address, list[int]] = {}
        for index, forced in todo.items():
            command = commands[index]
            try:
                if forced is not None:
                    address = forced
                elif key := _key_of(command):
                    address = yield from self.servers.locate(key, since)
                else:
                    primaries = yield from self.servers.primaries(since)
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
    ) -> tuple[dict[Address, list[Line]], dict[Address, list[int | None]]]:
        lines: dict[Address, list[Line]] = {}
        indexes: dict[Address, list[int | None]] = {}
        for address, members in groups.items():
            out: list[Line] = []
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
                if type(command) is ScriptCall:
                    durable = durable or command.durable
                    out.append(command.line())
                else:
                    out.append(command.args)
            if durable and self._wait is not None:
                out.append(self._wait)
                whose.append(None)
            lines[address], indexes[address] = out, whose
        return lines, indexes

    def _check_replicas(
        self,
        commands: Sequence[Any],
        indexes: list[int | None],
        answers: list[Any],
        replies: list[Any],
    ) -> None:
        """With `wait_replicas`, turn a write that too few replicas have into an error."""
        if self._wait is None or indexes[-1] is not None:
            return
        reached = answers[-1]
        if isinstance(reached, int) and reached >= self._settings.wait_replicas:
            return
        for index in indexes:
            if index is None or type(commands[index]) is not ScriptCall:
                continue
            if commands[index].durable and _wrote(replies[index]):
                replies[index] = StoreUnavailableError(
                    f"{self._settings.url}: {reached} of {self._settings.wait_replicas} replicas have "
                    f"this write after {self._settings.wait_timeout:g} s; it does not count as done"
                )


def _scripts(commands: Sequence[Any], members: list[int]) -> list[Script]:
    return [commands[index].script for index in members if type(commands[index]) is ScriptCall]


def _key_of(command: Any) -> bytes:
    """Empty: the command is for a node."""
    if type(command) is ScriptCall:
        return command.keys[0] if command.keys else b""
    key: bytes = command.key
    return key


def _wrote(reply: Any) -> bool:
    """A claim that was won, or an acknowledged write."""
    return reply == 0 if isinstance(reply, int) else isinstance(reply, list) and reply[0] == 1


def may_repeat(error: BaseException) -> bool:
    """Whether a retry can help. A lost connection may just have been idle for too long."""
    name = type(error).__name__
    return not name.startswith(("Authentication", "Timeout")) and not isinstance(
        error, TwicesafeError
    )


def _redirected(error: BaseException, came_from: Address) -> Address:
    host, _, port = str(error).split()[-1].rpartition(":")
    return Address(host or came_from.host, int(port))
