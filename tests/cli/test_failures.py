"""``twicesafe keys failures``: which handler fails most."""

from __future__ import annotations

import contextlib
from typing import Any

import httpx

from tests.cli.line import Line, held
from twicesafe import Key, Policy, Receiver
from twicesafe.wsgi import IdempotencyMiddleware


def fail(receiver: Receiver, number: int, operation: str, error: Exception) -> None:
    def handle() -> None:
        raise error

    with contextlib.suppress(type(error)):
        receiver.process(Key(f"tx-{number}", (f"acct_{number}", operation)), handle)


def test_failures_are_counted_by_operation_and_error(line: Line, receiver: Receiver):
    once = receiver.options(policy=Policy(max_attempts=1))
    for number in range(5):
        fail(once, number, "refund", TimeoutError())  # parked
    for number in range(5, 8):
        fail(receiver, number, "charge", ValueError())  # waits for its next attempt
    fail(receiver, 8, "charge", TimeoutError())
    receiver.process(Key("tx-9", ("acct_9", "charge")), lambda: 1)
    held(receiver, Key("tx-10"))
    rows = line("keys", "failures").out.splitlines()
    assert rows[0].split() == ["keys", "operation", "last", "error", "newest"]
    assert [row.split()[:3] for row in rows[1:]] == [
        ["5", "refund", "TimeoutError"],
        ["3", "charge", "ValueError"],
        ["1", "no", "scope"],  # the held one, which is newer
        ["1", "charge", "TimeoutError"],
    ]
    data = line("keys", "failures", "--scope", "acct_8", "--json").data
    assert [(row["operation"], row["keys"]) for row in data["failures"]] == [("charge", 1)]
    assert data["complete"]


def test_failed_requests_of_many_callers_are_one_operation(line: Line, receiver: Receiver):
    """Each caller was an operation of its own, under the hash of its credentials."""

    def application(environ: Any, start_response: Any) -> list[bytes]:
        raise ConnectionError

    app = IdempotencyMiddleware(application, receiver=receiver)
    with httpx.Client(transport=httpx.WSGITransport(app), base_url="http://shop") as client:
        for caller in ("Bearer a", "Bearer b"):
            reply = client.post("/", headers={"Idempotency-Key": "k", "Authorization": caller})
            assert reply.status_code == 500
    data = line("keys", "failures", "--json").data
    assert [(row["operation"], row["keys"]) for row in data["failures"]] == [("http", 2)]


def test_a_part_of_the_failures_says_so(line: Line, receiver: Receiver):
    for number in range(3):
        fail(receiver, number, "charge", ValueError())
    ran = line("keys", "failures", "--limit", "2")
    assert ran.out.splitlines()[1].split()[:2] == ["2", "charge"]
    assert "only the newest 2 failed keys counted; raise --limit" in ran.out + ran.err
    assert not line("keys", "failures", "--limit", "2", "--json").data["complete"]


def test_nothing_failed(line: Line, receiver: Receiver):
    receiver.process("tx-1", lambda: 1)
    ran = line("keys", "failures")
    assert (ran.status, "no key's last attempt failed" in ran.out + ran.err) == (0, True)
