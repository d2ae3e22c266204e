"""The heart of it: the first delivery runs, every repeat gets the same answer, typed as declared."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from tests.receiver.bench import Bench, Counter
from twicesafe import (
    ConfigurationError,
    Key,
    MissingKeyError,
    Policy,
    State,
    UsageError,
    current_claim,
    current_key,
    key_scope,
)
from twicesafe import events as ev


class Currency(enum.Enum):
    EUR = "eur"


@dataclass
class Receipt:
    id: UUID
    amount: Decimal
    at: datetime
    currency: Currency


RECEIPT = Receipt(UUID(int=7), Decimal("9.90"), datetime(2026, 1, 2, tzinfo=UTC), Currency.EUR)


def test_second_delivery_is_replayed(bench: Bench) -> None:
    counter = Counter({"charged": 5})
    first = bench.process("tx", counter.quick, 5)
    second = bench.process("tx", counter.quick, 5)
    assert counter.runs == 1
    assert (first.value, first.replayed, first.attempt) == ({"charged": 5}, False, 1)
    assert (second.value, second.replayed, second.attempt) == ({"charged": 5}, True, 1)
    assert second.fence == first.fence
    assert second.key == first.key == Key("tx")


@pytest.mark.parametrize(
    "value", [None, 0, False, "", [], {}, (), b"", 0.0, set(), Decimal(0), {"a": None}], ids=repr
)
def test_falsy_values_are_values(bench: Bench, value: Any) -> None:
    counter = Counter(value)
    bench.process("k", counter.quick)
    again = bench.process("k", counter.quick)
    assert counter.runs == 1
    assert again.value == value
    assert type(again.value) is type(value)
    assert again.replayed


@pytest.mark.parametrize(
    "value",
    [b"\x00\xff", (1, "2"), {1, 2}, Decimal("1.10"), UUID(int=1), date(2026, 1, 1), {1: (2,)}],
    ids=repr,
)
def test_builtin_types_need_no_annotation(bench: Bench, value: Any) -> None:
    counter = Counter(value)
    bench.process("k", counter.quick)
    assert bench.process("k", counter.quick).value == value


def test_rich_types_come_back_as_the_annotation_says(bench: Bench) -> None:
    runs = []

    def buy(amount: int) -> Receipt:
        runs.append(amount)
        return RECEIPT

    bench.process("k", buy, 1)
    replayed = bench.process("k", buy, 1).value
    assert replayed == RECEIPT
    assert isinstance(replayed, Receipt)
    assert isinstance(replayed.currency, Currency)
    assert runs == [1]


def test_arguments_reach_the_handler_whatever_they_are_called(bench: Bench) -> None:
    got = []

    def handle(*args: Any, **kwargs: Any) -> int:
        got.append((args, kwargs))
        return 1

    bench.process("k", handle, 1, 2, key="their key", handler="their handler", self="theirs")
    assert got == [((1, 2), {"key": "their key", "handler": "their handler", "self": "theirs"})]


def test_round_trips_are_two_for_the_first_and_one_for_a_duplicate(bench: Bench) -> None:
    counter = Counter()
    bench.process("k", counter.quick)
    assert bench.store.ops() == ["claim", "complete"]
    bench.process("k", counter.quick)
    assert bench.store.ops() == ["claim", "complete", "claim"]


def test_another_process_gets_the_same_answer(bench: Bench) -> None:
    counter = Counter([1, 2])
    bench.process("k", counter.quick)
    other = bench.new_receiver()
    outcome = bench.call(other.process, "k", bench.in_mode(counter.quick))
    assert (outcome.value, outcome.replayed, counter.runs) == ([1, 2], True, 1)


def test_after_retention_it_is_new_work_with_a_higher_fence(bench: Bench) -> None:
    bench.policy(retention=60)
    counter = Counter()
    first = bench.process("k", counter.quick)
    bench.clock.advance(59)
    assert bench.process("k", counter.quick).replayed
    bench.clock.advance(2)
    again = bench.process("k", counter.quick)
    assert (again.replayed, again.attempt, counter.runs) == (False, 1, 2)
    assert again.fence > first.fence
    assert bench.record("k").cause == "retention_expired"


def test_scopes_keep_tenants_apart(bench: Bench) -> None:
    counter = Counter()
    for scope in (("a",), ("b",), ("a", "x"), ()):
        tenant = bench.receiver.options(scope=scope)
        assert not bench.call(tenant.process, "k", bench.in_mode(counter.quick)).replayed
    assert counter.runs == 4
    assert bench.process(Key("k", scope=("a",)), counter.quick).replayed


def test_scopes_are_put_in_front_of_every_key_that_is_not_absolute(bench: Bench) -> None:
    counter = Counter()
    with key_scope("tenant", "op"):
        assert bench.receiver.key("k") == Key("k", scope=("tenant", "op"))
        assert bench.receiver.options(scope=("inner",)).key("k").scope == ("tenant", "op", "inner")
        assert bench.receiver.key(Key("k", ("mine",))) == Key("k", ("tenant", "op", "mine"))
        assert bench.receiver.key(Key("k", absolute=True)) == Key("k")
        bench.process("k", counter.quick)
    assert not bench.process("k", counter.quick).replayed


def test_the_keys_that_come_out_go_in_again(bench: Bench) -> None:
    """What an outcome, a record or an error names is the whole key, whatever the receiver's scope."""
    tenant = bench.receiver.options(scope=("tenant",))
    inside: list[Any] = []
    handler = bench.in_mode(lambda: inside.append(current_key()))
    outcome = bench.call(tenant.process, Key("k", ("op",)), handler)
    assert outcome.key.scope == ("tenant", "op")
    record = bench.call(tenant.record, outcome.key)
    assert record.key == outcome.key == inside[0]
    bench.call(tenant.release, record.key, by="ann", force=True)
    assert bench.call(tenant.record, inside[0]).state == "released"
    bench.call(tenant.forget, record.key)
    assert bench.call(tenant.record, record.key).key is None


def test_the_handler_sees_its_claim(bench: Bench) -> None:
    seen: list[Any] = []

    def handle() -> None:
        claim = current_claim()
        assert claim is not None
        seen.append((claim.key, claim.fence, claim.attempt, claim.cause, claim.lost))
        assert current_key() == claim.key
        claim.check()

    outcome = bench.process("k", handle)
    assert seen == [(Key("k"), outcome.fence, 1, None, False)]
    assert current_claim() is None


@pytest.mark.parametrize("key", [None, "", 1.5, b"x", True, ["k"]])
def test_unusable_keys_are_refused_before_anything_happens(bench: Bench, key: Any) -> None:
    counter = Counter()
    with pytest.raises(UsageError) as caught:
        bench.process(key, counter.quick)
    assert isinstance(caught.value, MissingKeyError) == (key is None)
    assert counter.runs == 0
    assert bench.store.log == []


@pytest.mark.parametrize("key", [5, UUID(int=5)])
def test_numbers_and_uuids_are_keys(bench: Bench, key: Any) -> None:
    assert bench.process(key, Counter().quick).key == Key(str(key))


def test_events_tell_what_happened(bench: Bench) -> None:
    counter = Counter()
    bench.process("k", counter.quick)
    bench.clock.advance(90)
    bench.process("k", counter.quick)
    started, completed, replayed = bench.seen
    assert started == ev.Started(Key("k"), 1, None, started.store)
    assert started.store > 0
    assert isinstance(completed, ev.Completed)
    assert completed.store + completed.handler + started.store <= completed.seconds
    assert replayed == ev.Replayed(Key("k"), 90.0, window=86400.0, store=replayed.store)


def test_an_observer_that_raises_is_survived(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: ev.Event) -> None:
        raise RuntimeError("observer")

    receiver = bench.new_receiver(observers=[broken, bench.seen.append])
    outcome = bench.call(receiver.process, "k", bench.in_mode(Counter(3).quick))
    assert outcome.value == 3
    assert bench.events(ev.Completed)
    assert "an observer failed on Started" in caplog.text


def test_options_change_nothing_in_the_receiver_they_come_from(bench: Bench) -> None:
    base = bench.receiver
    other = base.options(policy=Policy(lease=7), scope=("x",), fingerprint=True)
    assert (base.policy.lease, base.scope) == (30, ())
    assert (other.policy.lease, other.scope) == (7, ("x",))
    assert other.store is base.store


@pytest.mark.parametrize(
    "settings", [{"policy": {"lease": 3}}, {"fingerprint": "yes"}, {"fingerprint": 1}]
)
def test_nonsense_options_are_refused(bench: Bench, settings: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"policy|fingerprint"):
        bench.receiver.options(**settings)


def test_the_record_shows_the_life_of_a_key(bench: Bench) -> None:
    assert bench.record("k") is None
    bench.process("k", Counter("secret-result").quick)
    record = bench.record("k")
    assert (record.state, record.attempt, record.cause) == (State.COMPLETED, 1, None)
    assert record.expires_at is not None
    assert "secret-result" not in repr(record)
    assert record.short == Key("k").short
