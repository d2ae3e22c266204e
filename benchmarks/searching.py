"""How long an operator waits for an answer: a million records in each store, and one command per question.

    python -m benchmarks.searching fill URL [RECORDS]      records of all states, of a thousand tenants
    python -m benchmarks.searching ask URL                 every question of docs/how-to/answer-questions.md

`fill` uses the store's own batch form. `ask` runs the commands as an operator types them, in this process,
and prints seconds of wall time. A question may take 2 seconds.
"""

from __future__ import annotations

import contextlib
import io
import sys
import time

from twicesafe import Key, Receiver, State
from twicesafe._cli.app import run
from twicesafe._core.protocol import ClaimRequest, Complete, Fail
from twicesafe._values.owner_token import new_owner

CHUNK = 1000
MONTH = 30 * 86_400_000
RESULT = b'"' + b"x" * 98 + b'"'
WITHIN = 2.0

QUESTIONS: dict[str, list[str]] = {
    "Which keys are stuck?": ["keys", "list", "--stuck"],
    "Whose are they, and since when?": ["keys", "list", "--stuck", "--scope", "acct_3"],
    "What happened to tx-4711?": ["keys", "list", "--value", "tx-4711"],
    "What is parked, and why?": ["keys", "list", "--state", "parked", "--state", "held"],
    "What fails with a time-out?": ["keys", "list", "--error", "TimeoutError", "--since", "1d"],
    "Is anything wrong?": ["health"],
    "Is the window long enough?": ["doctor"],
    "Is it filling up?": ["stats"],
    "Did a failover double anything?": [
        "keys",
        "list",
        "--cause",
        "lease_expired",
        "--since",
        "1d",
    ],
    "Who changed this key?": [
        "keys",
        "show",
        "tx-1",
        "--scope",
        "acct_1",
        "--scope",
        "POST /charges",
    ],
    "What did operators do?": ["audit", "--since", "1d"],
    "How many would a bulk release take?": [
        *("keys", "release", "--state", "parked", "--dry-run", "--by", "ana", "--why", "a test"),
    ],
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


def ask(url: str) -> None:
    for question, words in QUESTIONS.items():
        began = time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run([*words, "--store", url])
        took = time.perf_counter() - began
        print(f"{took:6.2f} s {'' if took <= WITHIN else 'late'}\t{question}", flush=True)


if __name__ == "__main__":
    what, where, *rest = sys.argv[1:]
    if what == "fill":
        fill(where, int(rest[0]) if rest else 1_000_000)
    else:
        ask(where)
