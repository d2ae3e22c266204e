"""The commands that a router sends: a script on a key, or a plain command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...errors import TwicesafeError
from .scripts import Script
from .servers import Line
from .settings import Address

__all__ = ["PlainCommand", "ScanStep", "ScriptCall", "key_of", "may_repeat"]


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


class ScanStep(list[Any]):
    """The commands of one step of a search, and what this process does until their replies come.

    `servers`: who answered for each node in the steps before. A cursor of SCAN means nothing to
    another server: it would leave out records, and say nothing.
    """

    def __init__(self, meanwhile: Callable[[], object], servers: dict[int, Address]) -> None:
        self.meanwhile, self.servers = meanwhile, servers


def key_of(command: Any) -> bytes:
    """Empty: the command is for a node."""
    if type(command) is ScriptCall:
        return command.keys[0] if command.keys else b""
    key: bytes = command.key
    return key


def may_repeat(error: BaseException) -> bool:
    """Whether a retry can help. A lost connection may just have been idle for too long."""
    name = type(error).__name__
    return not name.startswith(("Authentication", "Timeout")) and not isinstance(
        error, TwicesafeError
    )
