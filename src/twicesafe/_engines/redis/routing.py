"""The router: send each command to its server, and get all replies.

`Router.run` takes commands and returns their replies; a failed command's error is in its place. It
is a generator that yields round trips as data. So the blocking and the async store react in the
same way to an unloaded script, a moved slot, a new primary and a lost connection (`rounds`).
`servers` decides which server is asked, and whether its answer counts.

Everything except an operator's request may be sent twice: requests are idempotent by their owner token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .error_messages import explain
from .rounds import Rounds
from .routed_commands import ScriptCall, may_repeat
from .servers import RoundTrip, RoundTrips, Servers, servers_of
from .settings import Address, Settings

__all__ = ["Router"]


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
            return (yield from self._in_rounds(commands))
        answers = (yield RoundTrip({home: [command.line() for command in commands]}))[home]
        if not self.is_plain(home, answers):
            if isinstance(answers, Exception) and not may_repeat(answers):
                return [explain(answers, self._settings.url) for _ in commands]
            return (yield from self._in_rounds(commands))
        left = [index for index, answer in enumerate(answers) if isinstance(answer, Exception)]
        if left:
            again = yield from self._in_rounds([commands[index] for index in left])
            for index, answer in zip(left, again, strict=True):
                answers[index] = answer
        return answers  # type: ignore[no-any-return]

    def _in_rounds(self, commands: Sequence[Any]) -> RoundTrips[list[Any]]:
        return Rounds(commands, self.servers, self._settings, self._wait).run()
