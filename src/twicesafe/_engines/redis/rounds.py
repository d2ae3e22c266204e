"""The rounds of one list of commands: redirects, unloaded scripts, lost connections and new primaries.

Each round sends what has no reply that counts. A command that must not be sent twice is sent again only if
the server refused it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from ...errors import StoreUnavailableError, TwicesafeError
from .error_messages import code_of, explain
from .routed_commands import ScanStep, ScriptCall, key_of, may_repeat
from .scripts import Script
from .servers import Line, RoundTrip, RoundTrips, Servers
from .settings import Address, Settings

__all__ = ["Rounds"]

MOST: Final = 6
"""The most round trips for one list of commands: load a script, follow a redirect, reconnect …"""

NOT_HERE: Final = frozenset({"READONLY", "LOADING", "MASTERDOWN", "NOREPLICAS", "CLUSTERDOWN"})
"""Errors of a server that cannot serve the command now: another one may be the primary."""


class Rounds:
    """Sends commands until each has a reply that counts. Used once."""

    def __init__(
        self,
        commands: Sequence[Any],
        servers: Servers,
        settings: Settings,
        wait: tuple[Any, ...] | None,
    ) -> None:
        """`wait`: the command that waits for replicas; None: nothing waits for them."""
        self._commands, self._servers, self._settings, self._wait = (
            commands,
            servers,
            settings,
            wait,
        )
        self._replies: list[Any] = [None] * len(commands)
        self._todo: dict[int, Address | None] = dict.fromkeys(range(len(commands)))
        """The commands of the next round, and their servers; None: where the key is."""
        self._missing: set[Address] = set()
        """Servers that must load a script first."""
        self._asking: set[int] = set()
        """Commands of a slot that is being moved."""
        self._redirected: set[int] = set()
        self._is_once = not all(getattr(command, "repeatable", True) for command in commands)
        """One of them must not be sent twice."""
        self._scanned = commands.servers if isinstance(commands, ScanStep) else {}
        """The servers of a search, by their nodes."""
        self._may_reconnect = not self._scanned
        """A connection that was lost may be replaced, once: not within a search, because its server may have been."""
        self._not_loaded: Exception | None = None
        """Why a server did not load a script."""
        self._suspect: Address | None = None
        """In this round, this server did not answer, or could not serve a command."""
        self._moved = False
        """In this round, a slot was found to be elsewhere."""

    def run(self) -> RoundTrips[list[Any]]:
        commands, servers = self._commands, self._servers
        since = servers.clock()
        meanwhile = commands.meanwhile if isinstance(commands, ScanStep) else bool
        for turn in range(MOST):
            groups = yield from self._group(since)
            lines, indexes = self._lines(groups)
            self._todo, self._missing, self._asking = {}, set(), set()
            self._suspect, self._moved = None, False
            sent = servers.clock()
            answered = yield RoundTrip(lines, self._is_once, meanwhile)
            meanwhile = bool
            for address, answers in answered.items():
                if isinstance(answers, Exception):
                    self._take_failure(address, answers, indexes[address])
                    continue
                trusted = yield from self._is_trusted(address, sent)
                for index, answer in zip(indexes[address], answers, strict=True):
                    if index is not None:
                        self._take(index, answer, address, trusted, turn)
                    elif isinstance(answer, Exception):
                        self._not_loaded = answer
                self._check_replicas(indexes[address], answers)
            if any(isinstance(answers, Exception) for answers in answered.values()):
                self._may_reconnect = False
            if self._moved or self._suspect is not None:
                try:
                    yield from servers.refresh(self._suspect)
                except TwicesafeError:
                    if turn:
                        break
            if not self._todo:
                break
        return [self._explained(r) if isinstance(r, Exception) else r for r in self._replies]

    def _explained(self, error: Exception) -> Exception:
        """A script that is missing to the end could not be loaded: then the server said why."""
        if code_of(error) == "NOSCRIPT" and self._not_loaded is not None:
            error = self._not_loaded
        return explain(error, self._settings.url)

    # -- what is sent -----------------------------------------------------------------------------

    def _group(self, since: float) -> RoundTrips[dict[Address, list[int]]]:
        groups: dict[Address, list[int]] = {}
        for index, forced in self._todo.items():
            command = self._commands[index]
            try:
                if forced is not None:
                    address = forced
                elif key := key_of(command):
                    address = yield from self._servers.locate(key, since)
                else:
                    primaries = yield from self._servers.primaries(since)
                    found = primaries[command.node] if command.node < len(primaries) else None
                    if self._scanned.get(command.node, found) != found:
                        raise StoreUnavailableError(
                            f"{self._settings.url}: another server took over during the search; search again"
                        )
                    if found is None:
                        continue
                    address = found
            except TwicesafeError as error:
                self._replies[index] = error.again()
                continue
            groups.setdefault(address, []).append(index)
        return groups

    def _lines(
        self, groups: dict[Address, list[int]]
    ) -> tuple[dict[Address, list[Line]], dict[Address, list[int | None]]]:
        """The lines for each server, and the command of each line; None: the line is ours."""
        lines: dict[Address, list[Line]] = {}
        indexes: dict[Address, list[int | None]] = {}
        for address, members in groups.items():
            out: list[Line] = []
            whose: list[int | None] = []
            if address in self._missing:
                for script in self._scripts(members):
                    out.append((b"SCRIPT", b"LOAD", script.text))
                    whose.append(None)
            durable = False
            for index in members:
                command = self._commands[index]
                if index in self._asking:
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

    def _scripts(self, members: list[int]) -> list[Script]:
        calls = (self._commands[index] for index in members)
        return list({id(c.script): c.script for c in calls if type(c) is ScriptCall}.values())

    # -- what comes back --------------------------------------------------------------------------

    def _take_failure(self, address: Address, error: Exception, indexes: list[int | None]) -> None:
        """The whole round trip to this server failed."""
        self._servers.distrust()
        self._suspect = address
        again = not self._is_once and self._may_reconnect and may_repeat(error)
        for index in indexes:
            if index is not None:
                self._replies[index] = error
                if again:
                    self._todo[index] = None

    def _is_trusted(self, address: Address, sent: float) -> RoundTrips[bool]:
        try:
            return (yield from self._servers.is_still_primary(address, sent))
        except TwicesafeError:
            return False  # the primary is unknown now: it may be another server

    def _take(self, index: int, answer: Any, address: Address, trusted: bool, turn: int) -> None:
        servers, todo = self._servers, self._todo
        if index not in self._redirected and not (
            trusted and servers.serves(address, key_of(self._commands[index]))
        ):
            self._replies[index] = StoreUnavailableError(
                f"{self._settings.url}: {address} answered late and may no longer be the primary; its "
                "answer does not count"
            )
            if not self._is_once:
                todo[index] = None
            return
        self._replies[index] = answer
        if not isinstance(answer, Exception):
            if isinstance(self._commands, ScanStep):
                self._scanned[self._commands[index].node] = address
            return
        code = code_of(answer)
        if code == "NOSCRIPT":
            self._missing.add(address)
            todo[index] = address
        elif code in ("MOVED", "ASK"):
            self._redirected.add(index)
            todo[index] = _redirected(answer, address)
            if code == "MOVED":
                self._moved = True
            else:
                self._asking.add(index)
        elif code in NOT_HERE:
            servers.distrust()
            self._suspect = address
            if code == "READONLY" and not turn:
                todo[index] = None  # nothing was written

    def _check_replicas(self, indexes: list[int | None], answers: list[Any]) -> None:
        """With `wait_replicas`, turn a write that too few replicas have into an error."""
        if self._wait is None or indexes[-1] is not None:
            return
        settings, reached = self._settings, answers[-1]
        if isinstance(reached, int) and reached >= settings.wait_replicas:
            return
        for index in indexes:
            if index is None or type(self._commands[index]) is not ScriptCall:
                continue
            if self._commands[index].durable and _wrote(self._replies[index]):
                error = StoreUnavailableError(
                    f"{settings.url}: {reached} of {settings.wait_replicas} replicas have "
                    f"this write after {settings.wait_timeout:g} s; it does not count as done"
                )
                error.written = True
                self._replies[index] = error


def _wrote(reply: Any) -> bool:
    """A claim that was won, or an acknowledged write."""
    return reply == 0 if isinstance(reply, int) else isinstance(reply, list) and reply[0] == 1


def _redirected(error: BaseException, came_from: Address) -> Address:
    host, _, port = str(error).split()[-1].rpartition(":")
    return Address(host or came_from.host, int(port))
