"""The Lua files as scripts that can be sent: the clock, what is needed first, the record, one operation.

An operation that has usual cases does them before the mark ``-- @record``, where the rest of the
prelude comes in: what is not reached costs the server nothing.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

__all__ = ["SCRIPTS", "Script", "Scripts"]

SCRIPTS: Final = {
    # What only ends or reads work may go on when the server's memory is full; a new claim may not.
    "claim": "",
    "renew": "allow-oom",
    "complete": "allow-oom",
    "fail": "allow-oom",
    "abandon": "allow-oom",
    "release": "allow-oom",
    "resolve": "allow-oom",
    "forget": "allow-oom",
    "note": "allow-oom",
    "read": "allow-oom",
    "peek": "allow-oom",
    "awaits": "allow-oom",
    "sweep": "allow-oom",
}
"""Names and flags. None is `no-writes`: a replica must refuse them all, reading ones too."""


MARK: Final = "-- @record"


class Script:
    __slots__ = ("name", "sha", "text")

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.text = text.encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()


class Scripts:
    """All scripts for one way to wake; `clock` replaces the server's, in tests."""

    def __init__(self, publish: str, clock: str = "") -> None:
        head = f"local PUBLISH = '{publish}'\n"
        clock = clock or _source("clock")
        for name, flags in SCRIPTS.items():
            shebang = f"#!lua flags={flags}\n" if flags else "#!lua\n"
            own = _source(name)
            if MARK not in own:
                own = f"{MARK}\n{own}"
            own = own.replace(MARK, _source("record"))
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
    note: Script
    read: Script
    peek: Script
    awaits: Script
    sweep: Script


@cache
def _source(name: str) -> str:
    return files(__package__).joinpath("lua", f"{name}.lua").read_text("utf-8")
