"""Encrypted records in a receiver: blocking and async, in memory and on disk (D9, D10)."""

from __future__ import annotations

import os
from typing import Any

import pytest
from msgspec.structs import replace

from tests.receiver.bench import Bench
from twicesafe import (
    CorruptRecordError,
    Key,
    NotStorableError,
    Policy,
    RememberedFailureError,
    State,
    UsageError,
)
from twicesafe import events as ev
from twicesafe._core.protocol import Complete, Read, Release, Rewrite
from twicesafe.encryption import KeyRing
from twicesafe.errors import ResultUnavailableError, StoreUnavailableError

OLD, NEW = {"old": os.urandom(32)}, {"new": os.urandom(32)}
RING = KeyRing(OLD)
SECRET = "canary-4111-1111"


def never(*_: Any) -> None:
    raise AssertionError("the handler must not run")


def stored(bench: Bench, key: str) -> bytes:
    row = bench.call(bench.store.perform, Read(Key(key).id))
    assert row.result is not None
    return row.result


def plant(bench: Bench, key: str, payload: bytes, state: State = State.COMPLETED) -> None:
    """What an attacker with write access to the store can do to a recorded answer."""
    ask = Rewrite(Key(key).id, state, stored(bench, key), payload)
    assert bench.call(bench.store.perform, ask).name == "OK"


@pytest.fixture
def sealed(bench: Bench) -> Bench:
    bench.policy(encryption=RING, remember=(ZeroDivisionError,))
    return bench


@pytest.mark.parametrize("value", [None, 0, "", False, [], {"card": SECRET}, (SECRET,), b"\xc1ts"])
def test_a_result_is_unreadable_in_the_store_and_replayed(sealed: Bench, value: Any):
    first = sealed.process("k", lambda: value)
    again = sealed.process("k", never)
    assert (first.value, again.value, again.replayed) == (value, value, True)
    assert stored(sealed, "k").startswith(b"\xc1ts\x01\x03old")
    assert SECRET.encode() not in stored(sealed, "k")


def test_a_remembered_failure_is_encrypted_too(sealed: Bench):
    def fail() -> None:
        raise ZeroDivisionError(SECRET)

    with pytest.raises(ZeroDivisionError):
        sealed.process("k", fail)
    with pytest.raises(RememberedFailureError, match=SECRET) as caught:
        sealed.process("k", never)
    assert caught.value.type_name == "ZeroDivisionError"
    assert SECRET.encode() not in stored(sealed, "k")


def test_batches_manual_claims_and_operators_obey(sealed: Bench):
    sealed.process_many([1], lambda _: SECRET, key=lambda m: f"b{m}")
    sealed.manual("m", lambda _: SECRET)

    def fail() -> None:
        raise LookupError

    sealed.policy(takeover="hold", max_attempts=1)
    with pytest.raises(LookupError):
        sealed.process("held", fail)
    sealed.call(sealed.receiver.resolve, "held", SECRET, by="ann")
    for key in ("b1", "m", "held"):
        assert sealed.process(key, never).value == SECRET
        assert SECRET.encode() not in stored(sealed, key)


def test_the_replay_cache_holds_ciphertext(bench: Bench):
    cached = bench.new_receiver(policy=Policy(encryption=RING), cache=100)
    bench.receiver_process(cached, "k", bench.in_mode(lambda: SECRET))
    again = bench.receiver_process(cached, "k", bench.in_mode(never))
    assert (again.value, again.replayed) == (SECRET, True)
    held = [repr(entry) for entry in vars(cached._runtime.cache).values()]
    assert SECRET not in "".join(held)


# --- attacks -------------------------------------------------------------------------------------


@pytest.mark.attack("D9")
def test_an_answer_of_another_key_is_not_replayed(sealed: Bench):
    sealed.process("mine", lambda: "1 EUR")
    sealed.process("theirs", lambda: "1000 EUR")
    plant(sealed, "mine", stored(sealed, "theirs"))
    with pytest.raises(CorruptRecordError, match="copied from another record") as caught:
        sealed.process("mine", never)
    assert caught.value.key == Key("mine")
    assert [event.error for event in sealed.events(ev.ResultUnreadable)] == ["CorruptRecordError"]


@pytest.mark.attack("D9")
def test_an_answer_of_another_tenant_is_not_replayed(sealed: Bench):
    first, second = (sealed.receiver.options(scope=(tenant,)) for tenant in ("a", "b"))
    sealed.receiver_process(first, "k", sealed.in_mode(lambda: "a"))
    sealed.receiver_process(second, "k", sealed.in_mode(lambda: "b"))
    rows = [
        sealed.call(sealed.store.perform, Read(Key("k", (tenant,)).id)) for tenant in ("a", "b")
    ]
    swap = Rewrite(rows[0].id, State.COMPLETED, rows[0].result, rows[1].result)
    sealed.call(sealed.store.perform, swap)
    with pytest.raises(CorruptRecordError):
        sealed.receiver_process(first, "k", sealed.in_mode(never))


@pytest.mark.attack("D9")
def test_a_failure_is_not_replayed_as_a_result(sealed: Bench):
    """The same key and the same bytes in another state: the state is bound, too."""

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sealed.process("k", fail)
    failure = stored(sealed, "k")
    sealed.call(sealed.receiver.release, "k", by="ann", force=True)
    sealed.process("k", lambda: "paid")
    plant(sealed, "k", failure)
    with pytest.raises(CorruptRecordError):
        sealed.process("k", never)


@pytest.mark.attack("D9")
@pytest.mark.parametrize(
    "forged", [b'j"planted"', b"", b"\xc1", b"\xc1ts\x01", b"\xc1ts\x01\x03old"]
)
def test_planted_bytes_are_refused(sealed: Bench, forged: bytes):
    sealed.process("k", lambda: "paid")
    plant(sealed, "k", forged)
    for _ in range(2):
        with pytest.raises(CorruptRecordError):
            sealed.process("k", never)
    assert sealed.call(sealed.receiver.record, "k").state is State.COMPLETED


@pytest.mark.attack("D9")
def test_a_truncated_answer_is_refused(sealed: Bench):
    sealed.process("k", lambda: "paid")
    plant(sealed, "k", stored(sealed, "k")[:-1])
    with pytest.raises(CorruptRecordError):
        sealed.process("k", never)


@pytest.mark.attack("D10")
def test_a_lost_key_is_reported_and_nothing_runs(sealed: Bench):
    sealed.process("k", lambda: "paid")
    sealed.policy(encryption=KeyRing(NEW))
    with pytest.raises(ResultUnavailableError, match="key 'old', which is not in the key ring"):
        sealed.process("k", never)
    assert [e.error for e in sealed.events(ev.ResultUnreadable)] == ["ResultUnavailableError"]


@pytest.mark.attack("D10")
def test_a_receiver_without_the_ring_says_so(sealed: Bench):
    sealed.process("k", lambda: "paid")
    sealed.policy(encryption=None)
    with pytest.raises(CorruptRecordError, match="this policy has no encryption="):
        sealed.process("k", never)


@pytest.mark.parametrize("key", ["result", "failure"])
def test_an_answer_that_cannot_be_encrypted_is_not_stored_readable(bench: Bench, key: str):
    class Broken:
        def encrypt(self, payload: bytes, context: bytes) -> bytes:
            raise RuntimeError("no entropy")

        def decrypt(self, payload: bytes, context: bytes) -> bytes:
            raise AssertionError

    bench.policy(encryption=Broken(), remember=(ZeroDivisionError,))

    def work() -> str:
        if key == "failure":
            raise ZeroDivisionError(SECRET)
        return SECRET

    with pytest.raises((NotStorableError, ZeroDivisionError)):
        bench.process(key, work)
    asks = [ask for ask in bench.store.log if isinstance(ask, Complete)]
    assert [ask.result for ask in asks] == [None]
    assert [e.reason for e in bench.events(ev.ResultNotKept)] == ["NotStorableError"]
    with pytest.raises((ResultUnavailableError, RememberedFailureError)):
        bench.process(key, never)


def test_a_cipher_that_raises_something_else_is_corrupt(bench: Bench):
    class Odd:
        def encrypt(self, payload: bytes, context: bytes) -> bytes:
            return b"?" + payload

        def decrypt(self, payload: bytes, context: bytes) -> bytes:
            raise KeyError("what?")

    bench.policy(encryption=Odd())
    bench.process("k", lambda: "paid")
    with pytest.raises(CorruptRecordError, match=r"KeyError"):
        bench.process("k", never)


# --- rotation ------------------------------------------------------------------------------------


@pytest.mark.attack("D10")
def test_keys_are_rotated_while_both_versions_run(sealed: Bench):
    """First every process can read the new key, then it is used, then old answers are rewritten."""
    sealed.process("1", lambda: 1)
    before = sealed.receiver.options(policy=Policy(encryption=KeyRing(OLD | NEW)))
    sealed.policy(encryption=KeyRing(NEW | OLD))
    sealed.process("2", lambda: 2)
    for key, value in (("1", 1), ("2", 2)):
        assert sealed.process(key, never).value == value
        again = sealed.receiver_process(before, key, sealed.in_mode(never))
        assert again.value == value
    report = sealed.call(sealed.receiver.reencrypt)
    assert (report.examined, report.rewritten, report.after) == (2, 1, "")
    sealed.policy(encryption=KeyRing(NEW))
    for key, value in (("1", 1), ("2", 2)):
        assert sealed.process(key, never).value == value


def test_reencrypting_is_bounded_and_resumes(sealed: Bench):
    sealed.process_many(range(130), lambda n: n, key=str)
    sealed.policy(encryption=KeyRing(NEW | OLD))
    done = examined = 0
    after = ""
    while True:
        report = sealed.call(sealed.receiver.reencrypt, limit=60, after=after)
        assert report.examined <= 60
        done, examined, after = done + report.rewritten, examined + report.examined, report.after
        if not after:
            break
    assert (done, examined) == (130, 130)
    assert sealed.call(sealed.receiver.reencrypt).rewritten == 0
    sealed.policy(encryption=KeyRing(NEW))
    assert [o.value for o in sealed.process_many(range(130), never, key=str)] == list(range(130))


def test_reencrypting_has_audit_entries_for_the_whole_act(sealed: Bench):
    sealed.process_many(range(3), lambda n: n, key=str)
    sealed.policy(encryption=KeyRing(NEW | OLD))
    with pytest.raises(UsageError, match="by= is required"):
        sealed.call(sealed.receiver.reencrypt, by=" ")
    for _ in range(2):  # the second one finds nothing to rewrite
        sealed.call(sealed.receiver.reencrypt, by="ana", why="the old key leaked")
    ended, started = sealed.call(sealed.receiver.audit_log)
    assert (started.by, started.why) == ("ana", "the old key leaked (started)")
    assert (ended.by, ended.why) == ("ana", "the old key leaked (3 answers of 3 records)")
    assert (ended.scope, ended.value[:10]) == (("twicesafe", "operators"), "reencrypt-")


def test_a_reencryption_that_breaks_halfway_is_in_the_audit_log(sealed: Bench):
    sealed.process_many(range(3), lambda n: n, key=str)
    sealed.policy(encryption=KeyRing(NEW | OLD))
    rewritten: list[Rewrite] = []

    def break_down(ask: Any) -> Any:
        if isinstance(ask, Rewrite):
            rewritten.append(ask)
            if len(rewritten) == 2:
                raise StoreUnavailableError("gone")
        return None

    sealed.store.before = break_down
    with pytest.raises(StoreUnavailableError):
        sealed.call(sealed.receiver.reencrypt, by="ana", why="the old key leaked")
    (entry,) = sealed.call(sealed.receiver.audit_log)
    assert (entry.by, entry.why) == ("ana", "the old key leaked (started)")


def test_reencrypting_leaves_everything_else_as_it_was(sealed: Bench):
    sealed.process("k", lambda: "paid")
    before = sealed.call(sealed.store.perform, Read(Key("k").id))
    sealed.clock.advance(60)
    sealed.policy(encryption=KeyRing(NEW | OLD))
    sealed.call(sealed.receiver.reencrypt)
    after = sealed.call(sealed.store.perform, Read(Key("k").id))
    assert after == replace(before, result=after.result)


def test_an_answer_that_changes_meanwhile_is_left_alone(sealed: Bench):
    sealed.process("k", lambda: "first")
    sealed.policy(encryption=KeyRing(NEW | OLD))

    def meddle(ask: Any) -> Any:
        if isinstance(ask, Rewrite):
            released = Release(ask.id, "ann", "", 3_600_000, True)
            return sealed.store.inner.perform(released)
        return None

    sealed.store.before = meddle
    report = sealed.call(sealed.receiver.reencrypt)
    assert (report.rewritten, report.changed) == (0, 1)
    assert sealed.process("k", lambda: "second").value == "second"


@pytest.mark.attack("D10")
def test_unreadable_answers_are_counted_and_stay(sealed: Bench):
    sealed.process("k", lambda: "paid")
    sealed.process("other", lambda: "paid")
    plant(sealed, "k", b'j"planted"')
    sealed.policy(encryption=KeyRing(NEW | OLD))
    report = sealed.call(sealed.receiver.reencrypt)
    assert (report.rewritten, report.unreadable) == (1, (Key("k").short,))
    assert stored(sealed, "k") == b'j"planted"'


def test_turning_encryption_on_for_an_existing_store(bench: Bench):
    bench.process("k", lambda: SECRET)
    bench.policy(encryption=KeyRing(NEW, plaintext="read"))
    assert bench.process("k", never).value == SECRET
    assert bench.call(bench.receiver.reencrypt).rewritten == 1
    bench.policy(encryption=KeyRing(NEW))
    assert bench.process("k", never).value == SECRET
    assert SECRET.encode() not in stored(bench, "k")


def test_reencrypting_without_a_ring_says_what_to_do(bench: Bench):
    with pytest.raises(UsageError, match=r"encryption=KeyRing\.load"):
        bench.call(bench.receiver.reencrypt)


def test_the_origin_of_a_trace_is_kept_inside(bench: Bench):
    class Tracer:
        def __call__(self, event: ev.Event) -> None:
            bench.seen.append(event)

        def trace(self, key: Key, run: Any) -> Any:
            return run

        def origin(self) -> bytes:
            return b"trace-of-the-first-run"

    bench.receiver = bench.new_receiver(policy=Policy(encryption=RING), observers=[Tracer()])
    bench.manual("k", lambda _: "paid")
    assert b"trace-of" not in stored(bench, "k")
    assert bench.manual("k", never).result == "paid"
    assert [e.origin for e in bench.events(ev.Replayed)] == [b"trace-of-the-first-run"]
