"""Agents on the real SDKs, killed by the hundred (C3): each order is charged once."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.house.repository import ROOT

from .trial import LIMIT, Trial, trial

__all__ = ["agent_kills"]


@trial("killed agents", "C3", "runs", ("sqlite",))
def agent_kills(t: Trial) -> None:
    """Agents run on FastMCP, LangChain, Pydantic AI and the OpenAI Agents SDK. A scripted model rewords calls,
    forgets answers, calls twice at once and asks again. The tool times out before and after its effect, and
    the agents' processes are killed and start again. Is each order charged once?"""
    size = ["--runs", str(t.size(40, 1000)), "--seed", str(t.seed)]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.tool_calls.killing", *size],
        cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    t.expect(ended.stdout, f"no result: {ended.stderr[-300:]}")
    found = json.loads(ended.stdout or "{}")
    t.tried = found.get("runs", 0)
    t.count("processes killed", found.get("killed", 0))
    for what in ("charged once", "doubled", "missing"):
        t.count(what, found.get(what, 0))
    t.expect(found.get("charged once") == t.tried > 0, f"not every order was charged once: {found}")
