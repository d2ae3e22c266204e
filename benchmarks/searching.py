"""How long an operator waits for an answer: a million records in each store, and one command per question.

    python -m benchmarks.searching fill URL [RECORDS]      records of all states, of a thousand tenants
    python -m benchmarks.searching ask NAME=URL[@pid=PID] …     every question of docs/how-to/answer-questions.md
    python -m benchmarks.searching write                   the table of that page, from the last answers

`fill` uses the store's own batch form. `ask` runs each command as an operator does, in a process of its own, and
opens the page of a new dashboard that answers the same. It keeps wall time, which depends on what else the machine
does, and the processor time of both sides (PID: the server's main process). A question may take 2 seconds.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from twicesafe import Key, Receiver, State
from twicesafe._core.protocol import ClaimRequest, Complete, Fail
from twicesafe._values.keys import new_owner
from twicesafe.dashboard import dashboard

CHUNK = 1000
MONTH = 30 * 86_400_000
RESULT = b'"' + b"x" * 98 + b'"'
WITHIN = 2.0

FILE = Path(__file__).parent / "results" / "searching.json"
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "answer-questions.md"
BEGIN, END = "<!-- from benchmarks/searching.py -->\n", "<!-- until here -->\n"
SHOWN = Key("tx-1", ("acct_1", "POST /charges"))

QUESTIONS: dict[str, tuple[str, str]] = {
    "Which keys are stuck?": ("keys list --stuck", "/keys?stuck=yes"),
    "Whose are they, and since when?": (
        "keys list --stuck --scope acct_3",
        "/keys?stuck=yes&scope=acct_3",
    ),
    "What happened to tx-4711?": ("keys list --value tx-4711", "/keys?value=tx-4711"),
    "What is parked, and why?": (
        "keys list --state parked --state held",
        "/keys?state=parked&state=held",
    ),
    "What fails with a time-out?": (
        "keys list --error TimeoutError --since 1d",
        "/keys?error=TimeoutError&since=1d",
    ),
    "Is anything wrong?": ("health", "/"),
    "Is the window long enough?": ("doctor", "/"),
    "Is it filling up?": ("stats", "/"),
    "Did a failover double anything?": (
        "keys list --cause lease_expired --since 1d",
        "/keys?cause=lease_expired&since=1d",
    ),
    "Who changed this key?": (
        "keys show tx-1 --scope acct_1 --scope POST\u00a0/charges",
        f"/keys/{SHOWN.id.hex()}",
    ),
    "What did operators do?": ("audit --since 1d", "/audit?since=1d"),
    "How many would a bulk release change?": (
        "keys release --state parked --dry-run --by ana --why test",
        "/actions/release?state=parked",
    ),
    "What will 30 days cost?": (
        "plan --measure --duplicates 2% --retries-within 3d --storage-price 0.25 --duplicate-price 10",
        "",
    ),
}


def fill(url: str, count: int) -> None:
    """Of a thousand: 1 held, 2 parked, 1 stuck, 2 running, 10 failed and free, the rest completed."""
    with Receiver.open(url) as receiver:
        store = receiver.store
        for start in range(0, count, CHUNK):
            numbers = range(start, min(count, start + CHUNK))
            claims = [
                ClaimRequest(
                    Key(f"tx-{number}", (f"acct_{number % 1000}", "POST /charges")),
                    new_owner(),
                    1 if number % 1000 == 3 else 3_600_000,
                )
                for number in numbers
            ]
            ends: list[Fail | Complete] = []
            for number, claim, won in zip(numbers, claims, store.perform_many(claims), strict=True):
                kind, mine = number % 1000, (claim.id, claim.owner, won.fence)
                if kind < 3:
                    ends.append(Fail(*mine, 0, 1, MONTH, "TimeoutError", kind == 0))
                elif 6 <= kind < 16:
                    ends.append(Fail(*mine, 0, 5, MONTH, "ConnectionError", False))
                elif kind >= 16:
                    ends.append(Complete(*mine, MONTH, RESULT, State.COMPLETED, ""))
            store.perform_many(ends)


def ask(stores: dict[str, str]) -> None:
    found: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name, place in stores.items():
        url, _, pid = place.partition("@pid=")
        for question, (words, path) in QUESTIONS.items():
            took = [_timed(_command, words, url, pid)]
            took += [_timed(_page, path, url, pid)] if path else []
            found.setdefault(name, {})[question] = took
            FILE.write_text(json.dumps(found, indent=1) + "\n")
            late = "late" if any(processor > WITHIN for _, processor in took) else ""
            times = "   ".join(f"{wall:6.2f} {processor:6.2f}" for wall, processor in took)
            print(f"{name:14}{times:30}{late:5}{question}", flush=True)


def _timed(visit: Callable[[str, str], float], what: str, url: str, pid: str) -> list[float]:
    """Seconds of wall time, and of the processors: of this side, and of the server with this process id."""
    before = _processor(pid)
    wall = visit(what, url)
    return [round(wall, 2), round(_processor(pid) - before, 2)]


def _processor(pid: str) -> float:
    ours = sum(os.times()[:4])
    if not pid:
        return ours
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return ours + sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _command(words: str, url: str) -> float:
    """Seconds from the start of the process to its end."""
    line = [word.replace("\u00a0", " ") for word in words.split(" ")]
    program = Path(sys.executable).with_name("twicesafe")
    began = time.perf_counter()
    done = subprocess.run(
        [program, *line, "--store", url], capture_output=True, text=True, check=False
    )
    took = time.perf_counter() - began
    if done.returncode > 1:
        raise SystemExit(f"twicesafe {words}: {done.stderr}")
    return took


def _page(path: str, url: str) -> float:
    """Seconds that a dashboard takes for its first page."""

    async def visit() -> float:
        with Receiver.open(url) as receiver:
            transport = httpx.ASGITransport(
                dashboard(receiver, resolve_access=lambda request: "all")
            )
            async with httpx.AsyncClient(
                transport=transport, base_url="http://localhost"
            ) as client:
                began = time.perf_counter()
                response = await client.get(path, timeout=60)
                took = time.perf_counter() - began
                response.raise_for_status()
                return took

    return asyncio.run(visit())


def write() -> None:
    found: dict[str, dict[str, list[list[float]]]] = json.loads(FILE.read_text())
    lines = [
        f"| Seconds of processor time: command, page | {' | '.join(found)} |",
        f"|---|{'---|' * len(found)}",
    ]
    for question in QUESTIONS:
        asked = (answers[question] for answers in found.values())
        cells = [", ".join(f"{processor:.1f}" for _, processor in took) for took in asked]
        lines.append(f"| {question} | {' | '.join(cells)} |")
    before, rest = PAGE.read_text("utf-8").split(BEGIN)
    _, after = rest.split(END)
    PAGE.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n\n{END}{after}", "utf-8")


if __name__ == "__main__":
    what, *rest = sys.argv[1:]
    if what == "fill":
        fill(rest[0], int(rest[1]) if rest[1:] else 1_000_000)
    elif what == "ask":
        ask(dict(each.split("=", 1) for each in rest))
    else:
        write()
