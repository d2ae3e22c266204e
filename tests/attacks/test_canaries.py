"""D17: strings that must be seen nowhere, put wherever a secret could be, and looked for everywhere.

Keys, scopes, arguments, results, error messages of handlers and passwords carry a canary each. Then
everything goes wrong that can; and what came out is searched: logs, errors with their causes, reprs,
events, and what commands print. A key's own text is shown by the commands that are asked for it, and
by nothing else.
"""

from __future__ import annotations

import logging
import pickle
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.line import Line, line  # noqa: F401 - a fixture
from tests.logged import logged
from twicesafe import AsyncReceiver, Key, Policy, Receiver, StoreUnavailableError, current_claim
from twicesafe._core.protocol import ClaimRequest
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.errors import RememberedFailureError, TwicesafeError
from twicesafe.stores._urls import mask, open_store
from twicesafe.testing import FakeClock

KEY, SCOPE, BODY, RESULT, FAILURE, PASSWORD = CANARIES = (
    "canary-key-7f1", "canary-scope-7f2", "canary-body-7f3", "canary-result-7f4",
    "canary-failure-7f5", "canary-password-7f6",
)  # fmt: skip


class Unstorable:
    def __repr__(self) -> str:
        return f"<{RESULT}>"


class Cage:
    """Everything that another person could read, in one heap."""

    def __init__(self) -> None:
        self.heap: list[str] = []

    def put(self, *things: Any) -> None:
        self.heap += [text for thing in things for text in (repr(thing), str(thing))]

    def catch(self, error: BaseException) -> None:
        # The handler's own exception and its text are the user's: only what is ours is searched. A
        # remembered failure *is* those words, since the policy asked to keep them as the answer.
        if isinstance(error, RememberedFailureError):
            self.heap.append(str(error).replace(FAILURE, ""))
        elif isinstance(error, TwicesafeError):
            self.put(error, error.args)
            self.heap.append("".join(traceback.format_exception_only(error)))
            self.put(pickle.loads(pickle.dumps(error)))
            if isinstance(error.__cause__, TwicesafeError):
                self.catch(error.__cause__)

    def birds(self, *allowed: str) -> set[str]:
        text = "\n".join(self.heap)
        return {canary for canary in CANARIES if canary in text and canary not in allowed}


def attempt(cage: Cage, call: Any, *args: Any, **kwargs: Any) -> None:
    try:
        answer = call(*args, **kwargs)
    except Exception as error:
        cage.catch(error)
    else:
        cage.put(getattr(answer, "key", None))


@pytest.fixture
def cage(caplog: pytest.LogCaptureFixture) -> Iterator[Cage]:
    caplog.set_level(logging.DEBUG)
    made = Cage()
    yield made
    made.heap.append(logged(caplog).decode())
    assert made.birds() == set(), [t for t in made.heap if any(c in t for c in CANARIES)][:4]


@pytest.mark.attack("D17")
def test_no_error_in_a_receiver_leaks_a_secret(cage: Cage, tmp_path: Path):
    clock = FakeClock()
    store = SqliteStore(tmp_path / "keys.db", now=clock)
    policy = Policy(
        lease=30, max_attempts=2, in_flight="reject", remember=(ZeroDivisionError,),
        max_result_bytes=64,
    )  # fmt: skip
    with Receiver(store, policy=policy, scope=(SCOPE,), observers=[cage.put]) as receiver:

        def work(body: str, how: str) -> Any:
            cage.put(current_claim())
            # A call under its own key: it would wait for itself.
            attempt(cage, receiver.process, f"{KEY} {how}", work, body, "inner")
            match how:
                case "fails":
                    raise OSError(FAILURE)
                case "remembered":
                    raise ZeroDivisionError(FAILURE)
                case "unstorable":
                    return Unstorable()
                case "large":
                    return RESULT * 100
            return RESULT

        checked = receiver.options(fingerprint=True)
        for how in ("well", "fails", "remembered", "unstorable", "large"):
            for body in (BODY, BODY, f"{BODY} again"):
                attempt(cage, checked.process, f"{KEY} {how}", work, body, how)
                clock.advance(120)
        dead = Key(f"{KEY} dead", (SCOPE,))
        for owner in (b"a" * 16, b"b" * 16):
            store.perform(ClaimRequest(dead, owner, 1000, 2))
            clock.advance(2)
        attempt(cage, receiver.process, dead, work, BODY, "well")
        attempt(cage, receiver.release, f"{KEY} unknown", by="me")
        attempt(cage, receiver.process, f"{KEY}\0", work, BODY, "well")
        attempt(cage, receiver.process, KEY * 100, work, BODY, "well")
        attempt(cage, receiver.forget, dead, by="me")
        attempt(cage, checked.process, f"{KEY} odd", work, object(), "well")
        for answer in receiver.process_many([BODY], lambda m: work(m, "fails"), key=lambda m: KEY):
            cage.put(answer.key)
        cage.put(
            receiver, store, policy, receiver.stats(), list(receiver.records()), receiver.record(dead),
            receiver.audit(dead), receiver.doctor(), receiver.key(KEY), [receiver.key(KEY)],
        )  # fmt: skip
    assert len(cage.heap) > 150


URLS = [
    f"postgresql://me:{PASSWORD}@127.0.0.1:1/shop?connect_timeout=1",
    f"mysql://me:{PASSWORD}@127.0.0.1:1/shop",
    f"redis://me:{PASSWORD}@127.0.0.1:1/0",
    f"redis://:{PASSWORD}@127.0.0.1:1/0",
    f"rediss://me:{PASSWORD}@127.0.0.1:1/0",
    f"postgresql://me@127.0.0.1:1/shop?password={PASSWORD}",
    f"nonsense://me:{PASSWORD}@x/",
    f"sqlite://me:{PASSWORD}@x/keys.db",
    f"{PASSWORD}@127.0.0.1:1/shop",
    *(
        f"{scheme}://{user}:{PASSWORD}{character}{PASSWORD}@127.0.0.1:1/0"
        for scheme in ("postgresql", "mysql", "redis")
        for user in ("me", "")
        for character in "/#?@["
    ),
]
BROKERS = [
    f"nats://{PASSWORD}@127.0.0.1:1",
    f"https://{PASSWORD}:@127.0.0.1:1/hook",
    f"redis://:{PASSWORD}#{PASSWORD}@127.0.0.1:1/0",
    f"amqp://me:{PASSWORD}/{PASSWORD}@127.0.0.1:1",
    f"kafka://me:{PASSWORD}@127.0.0.1:1",
    f"nats://{PASSWORD}@[127.0.0.1:1",
]


@pytest.mark.attack("D17")
@pytest.mark.parametrize("url", URLS)
async def test_a_password_in_a_url_leaks_nowhere(cage: Cage, url: str):
    cage.put(mask(url))
    attempt(cage, open_store, url)
    attempt(cage, Receiver.open, url)
    try:
        receiver = AsyncReceiver.open(url)
        cage.put(receiver, receiver.store)
        await receiver.process("k", lambda: 1)
    except Exception as error:
        cage.catch(error)
        await receiver.close() if "receiver" in locals() else None


@pytest.mark.attack("D17")
@pytest.mark.parametrize("to", BROKERS)
def test_a_token_for_a_broker_leaks_nowhere(
    cage: Cage,
    line: Line,  # noqa: F811
    to: str,
):
    for form in ((), ("--json",)):
        ran = line("relay", "--once", "--to", to, *form)
        cage.put(ran.out, ran.err)
    cage.put(mask(to))


@pytest.mark.attack("D17")
def test_no_command_prints_a_result_or_the_text_of_a_failure(
    cage: Cage,
    line: Line,  # noqa: F811
):
    with Receiver.open(line.url, scope=(SCOPE,)) as receiver:
        receiver.process(f"{KEY} done", lambda: RESULT)
        attempt(cage, receiver.process, f"{KEY} failed", _fails)
    of_one = (f"{KEY} done", "--scope", SCOPE)
    shown = [
        line("keys", "list", *json) for json in ((), ("--json",), ("--state", "completed"))
    ] + [line("keys", "show", *of_one), line("keys", "show", *of_one, "--json")]
    quiet = [
        line("stats"),
        line("stats", "--json"),
        line("doctor"),
        line("sweep"),
        line("keys", "show", f"{KEY} unknown"),
        line("keys", "release", *of_one, "--by", "me", "--why", "x"),
        line("stats", "--store", f"postgresql://me:{PASSWORD}@127.0.0.1:1/x", store=False),
        line("doctor", "--json", "--store", f"redis://:{PASSWORD}@127.0.0.1:1", store=False),
    ]
    told = Cage()
    told.heap = [text for ran in shown for text in (ran.out, ran.err)]
    assert KEY in "".join(told.heap)
    assert told.birds(KEY, SCOPE) == set()
    told.heap = [text for ran in quiet for text in (ran.out, ran.err)]
    assert told.birds(KEY, SCOPE) == set()
    assert [ran.status for ran in quiet[-2:]] == [3, 3]


def _fails() -> None:
    raise OSError(FAILURE)


@pytest.mark.attack("D17")
def test_a_secret_that_leaks_is_found():
    """The heap itself: it hears a repr, an argument of an error, and its cause."""
    cage = Cage()
    cage.put({"k": KEY})
    cage.catch(StoreUnavailableError(f"no answer from {PASSWORD}"))
    assert cage.birds() == {KEY, PASSWORD}
