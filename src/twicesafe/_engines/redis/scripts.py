"""The Lua files as complete scripts: the clock, first.lua, record.lua, and one operation.

An operation may handle its common cases before the line ``-- @record``, which is replaced by
record.lua. Then the common cases do not pay for the functions of record.lua. ``-- @include runs`` is
replaced by that file, and ``-- @function claim`` by a function that does what claim.lua does.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["SCRIPTS", "Script", "Scripts"]

SCRIPTS: Final = {
    # When the server's memory is full, work may be ended and read, but not claimed.
    "claim": "",
    "renew": "allow-oom",
    "complete": "allow-oom",
    "fail": "allow-oom",
    "abandon": "allow-oom",
    "release": "allow-oom",
    "resolve": "allow-oom",
    "forget": "allow-oom",
    "discard": "allow-oom",
    "rewrite": "allow-oom",
    "adopt": "",
    "audit": "allow-oom",
    "read": "allow-oom",
    "peek": "allow-oom",
    "awaits": "allow-oom",
    "sweep": "allow-oom",
    "now": "allow-oom",
    "start_run": "",
    "submit_run": "",
    "record_step": "allow-oom",
    "rewrite_run": "allow-oom",
    "suspend": "allow-oom",
    "fail_run": "allow-oom",
    "restart": "allow-oom",
    "signal": "",
    "look": "allow-oom",
    "drop": "allow-oom",
    "due_list": "allow-oom",
    "due_move": "allow-oom",
    "due_mark": "",
    "due_settle": "allow-oom",
}
"""Names and flags. None is `no-writes`: a replica must refuse them all, reading ones too."""


MARK: Final = "-- @record"


class Script:
    """One script, and the hash by which EVALSHA calls it."""

    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text.encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


class Scripts:
    """All scripts. `publish`: the command for wake-ups, or ""; `clock`: tests only, Lua for the time."""

    def __init__(self, publish: str, clock: str = "") -> None:
        head = f"local PUBLISH = '{publish}'\n"
        clock = clock or _source("clock")
        for name, flags in SCRIPTS.items():
            shebang = f"#!lua flags={flags}\n" if flags else "#!lua\n"
            own = _source(name)
            if MARK not in own:
                own = f"{MARK}\n{own}"
            own = _composed(own.replace(MARK, _source("record")))
            text = "\n".join((shebang + head, clock, _source("first"), own))
            setattr(self, name, Script(name, text))

    claim: Script
    renew: Script
    complete: Script
    fail: Script
    abandon: Script
    release: Script
    resolve: Script
    forget: Script
    discard: Script
    rewrite: Script
    adopt: Script
    audit: Script
    read: Script
    peek: Script
    awaits: Script
    sweep: Script
    now: Script
    start_run: Script
    submit_run: Script
    record_step: Script
    rewrite_run: Script
    suspend: Script
    fail_run: Script
    restart: Script
    signal: Script
    look: Script
    drop: Script
    due_list: Script
    due_move: Script
    due_mark: Script
    due_settle: Script


def _composed(text: str) -> str:
    """The text with the files that it names."""

    def named(found: re.Match[str]) -> str:
        how, name = found.groups()
        source = _source(name)
        if how == "include":
            return source
        return f"local function {name}()\n{source.replace(MARK, '')}\nend"

    return re.sub(r"^-- @(include|function) (\w+)$", named, text, flags=re.MULTILINE)


@cache
def _source(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")
