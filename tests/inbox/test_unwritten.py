"""What a process knows of a key's failures before the store does: counted once, and said second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.inbox.conftest import Shop
from twicesafe import (
    FingerprintMismatchError,
    HeldError,
    Key,
    ParkedError,
    Policy,
    RememberedFailureError,
    State,
)
from twicesafe._core import inbox_flow as core
from twicesafe._core.call import Call
from twicesafe._core.commands import Invoke
from twicesafe._core.inbox_requests import (
    AwaitDeferred,
    DeferredWrite,
    Enter,
    Entered,
    apply_deferred,
    decide,
)
from twicesafe._core.protocol import Claimed, ClaimRequest, Complete, Fail, Verdict
from twicesafe._core.resolved_policy import ResolvedPolicy
from twicesafe._runtime.transaction import TransactionRun, TransactionRuntime
from twicesafe._values.records import Row

KEY = Key("m-1")
OWNER = b"owner of the note"


class VirtualStore:
    dialect = "postgresql"

    def in_transaction(self, style: str) -> VirtualStore:
        return self

    def enter_one(self, ask: Enter) -> None:
        return None


class VirtualTransaction:
    dialect, style = "postgresql", "%s"

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self._meanwhile = meanwhile

    def run(self, program: None) -> Entered:
        self._meanwhile()
        return Entered(Claimed(Verdict.WON, 1, 1))


def a_call(fingerprint: bytes | None = None, attempts: int = 2) -> Call:
    policy = ResolvedPolicy(Policy(max_attempts=attempts))
    return Call(
        KEY, lambda: 1, policy, Any, fingerprint, None, lambda: 0.0, lambda event: None, False
    )


def a_failure(fingerprint: bytes | None = None) -> DeferredWrite:
    end = Fail(KEY.id, OWNER, 0, 0, 2, 1000, "ValueError")
    return DeferredWrite(ClaimRequest(KEY, OWNER, 5000, 2, False, fingerprint), end)


def an_answer(fingerprint: bytes | None = None) -> DeferredWrite:
    end = Complete(KEY.id, OWNER, 0, 1000, b'{"type":"E","message":"no"}', State.FAILED, "E")
    return DeferredWrite(ClaimRequest(KEY, OWNER, 5000, 2, False, fingerprint), end)


def entered(notes: list[DeferredWrite], answer: Claimed, call: Call | None = None) -> Any:
    """What the flow does next, once the store has said this."""
    flow = core.receive(call or a_call())
    assert type(next(flow)) is AwaitDeferred
    assert type(flow.send(None)) is Enter
    try:
        return flow.send(Entered(answer, unwritten=notes))
    except StopIteration as end:
        return end.value


def test_the_store_has_the_first_word():
    replay = Claimed(Verdict.REPLAY, 1, 1, state=State.COMPLETED, result=b'j"done"')
    assert entered([an_answer()], replay).value == "done"
    with pytest.raises(HeldError):
        entered([a_failure(), a_failure()], Claimed(Verdict.HELD))


def test_what_is_known_here_alone_counts():
    started = entered([a_failure()], Claimed(Verdict.WON, 1, 1))
    assert type(started) is Invoke
    assert started.claim is not None
    assert started.claim.attempt == 2
    with pytest.raises(ParkedError):
        entered([a_failure(), a_failure()], Claimed(Verdict.WON, 1, 1))
    with pytest.raises(ParkedError):
        entered([a_failure()], Claimed(Verdict.WON, 2, 2))
    with pytest.raises(RememberedFailureError):
        entered([an_answer()], Claimed(Verdict.WON, 1, 1))


def test_a_deferred_write_that_is_made_while_the_delivery_waits_counts_once():
    """The runtime looks for unwritten failures after the record is entered."""
    runtime = TransactionRuntime(VirtualStore())
    pending = runtime.deferred.pending

    def told(meanwhile: Callable[[], object]) -> int:
        pending[KEY.id] = [a_failure()]
        run = TransactionRun(runtime, VirtualTransaction(meanwhile))
        entered: Entered = run.perform(core.entry(a_call()))
        return len(entered.unwritten)

    assert told(lambda: None) == 1
    assert told(pending.clear) == 0


def test_waiting_for_a_write_is_decided_by_the_flow():
    """Where the caller's transaction blocks every other writer, waiting would not help."""
    assert type(next(core.receive(a_call()))) is AwaitDeferred
    assert type(next(core.receive(a_call(), waits=False))) is Enter


@pytest.mark.parametrize("note", [a_failure(b"1" * 32), an_answer(b"1" * 32)])
def test_another_request_is_a_mismatch_also_before_the_deferred_write(note: DeferredWrite):
    with pytest.raises(FingerprintMismatchError):
        entered([note], Claimed(Verdict.WON, 1, 1), a_call(b"2" * 32))


def test_a_deferred_write_whose_commit_was_cut_is_repeated_and_counts_once(lean_shop: Shop):
    shop = lean_shop
    store = shop.receiver.store
    ours = store.in_transaction()
    for _ in range(2):
        store.own_transaction(lambda: ours.write_deferred(a_failure()))
    record = shop.receiver.record("m-1")
    assert record is not None
    assert (record.state, record.attempt) == (State.RELEASED, 1)


def test_a_clock_that_is_set_back_delays_no_attempt():
    after = apply_deferred(None, a_failure(), 10_000_000, 0)
    assert isinstance(after, Row)
    ask = core.entry(a_call())
    answer, _ = decide(after, ask, 5_000_000, 0)
    assert (answer.verdict, answer.attempt) == (Verdict.WON, 2)


def test_a_deferred_write_that_has_just_been_committed_counts_once(lean_shop: Shop):
    """Its thread has not yet forgotten it when the message is delivered again."""
    shop, delivered = lean_shop, threading.Event()
    with shop.door.transaction():
        assert shop.accept("m-0")  # an async inbox opens its store with the first flow
    deferred = shop.inbox._runtime.deferred
    write, committed = deferred._write, threading.Event()

    def write_and_linger(one: DeferredWrite) -> None:
        write(one)
        committed.set()
        assert delivered.wait(60)

    deferred._write = write_and_linger
    with pytest.raises(ValueError, match="no"), shop.door.transaction():
        shop.process("m-1", fail)
    assert committed.wait(60)
    try:
        with shop.door.transaction():
            assert shop.process("m-1", shop.credit()).attempt == 2
    finally:
        delivered.set()


def fail(*_: Any) -> None:
    raise ValueError("no")
