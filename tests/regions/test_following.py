"""A follower copies what changed, whatever the engines are, and never replaces a newer record."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from tests.regions.worlds import PAIRS, Places
from twicesafe import (
    ConfigurationError,
    CorruptRecordError,
    Key,
    Policy,
    Receiver,
    ResultUnavailableError,
    StoreUnavailableError,
    UnsupportedByStoreError,
)
from twicesafe._core.regions.following import progress_key
from twicesafe.encryption import HiddenKeys
from twicesafe.regions import AsyncFollower, Follower
from twicesafe.stores import Ack, Browse, ClaimRequest, Complete, Row, open_store

KEYS = 5


def rows(url: str) -> dict[str, Row]:
    store = open_store(url)
    try:
        found = store.perform(Browse(1000)).rows
    finally:
        store.close()
    return {row.value: row for row in found if row.scope[:1] != ("twicesafe.follow",)}


def boom() -> None:
    raise ValueError("no")


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_every_record_is_copied_as_it_is(places: Places, pair: tuple[str, str]):
    source, target = (places.url(kind) for kind in pair)
    policy = Policy(max_attempts=2)
    with Receiver.open(source, policy=policy, scope=("shop",)) as receiver:
        for number in range(KEYS):
            receiver.process(f"k{number}", lambda: b"\0\xff" * 2000)
        with pytest.raises(ValueError, match="no"):
            receiver.process("failed", boom)
        receiver.process("forgotten", lambda: 1)
        with Follower.open(source, target, name="eu") as follower:
            assert follower.lag() is None
            assert follower.once().copied == KEYS + 2
            receiver.forget("forgotten", by="ann")
            receiver.process("late", lambda: 2)
            report = follower.once()
            assert (report.newer, report.failed) == (0, ())
            assert follower.lag() is not None
    copied, original = rows(target), rows(source)
    assert {value for value in copied if value} == {f"k{n}" for n in range(KEYS)} | {
        "failed",
        "late",
    }
    for value, row in original.items():
        if value:
            assert copied[value] == row
    with Receiver.open(target, scope=("shop",)) as receiver:
        outcome = receiver.process("k0", boom)
        assert outcome.replayed
        assert outcome.value == b"\0\xff" * 2000
        record = receiver.record("forgotten")
        assert record is not None
        assert record.state == "forgotten"


@pytest.mark.parametrize("pair", [*PAIRS, ("etcd", "valkey")], ids="-".join)
def test_a_forgotten_key_is_copied_to_a_store_that_never_knew_it(
    places: Places, pair: tuple[str, str]
):
    source, target = (places.url(kind) for kind in pair)
    with Receiver.open(source, scope=("shop",)) as receiver:
        receiver.process("secret", lambda: 1)
        receiver.forget("secret", by="ann")
        with Follower.open(source, target, name="eu") as follower:
            report = follower.once()
            assert (report.copied, report.skipped, report.unreadable) == (1, 0, ())
    assert not set(rows(target)) - {""}
    with Receiver.open(target, scope=("shop",)) as receiver:
        with pytest.raises(ResultUnavailableError):
            receiver.process("secret", boom)
        record = receiver.record("secret")
        assert record is not None
        assert (record.state, record.value, record.result_bytes) == ("forgotten", "", None)


@pytest.mark.parametrize("target", ["memory", "sqlite"])
def test_a_key_that_an_older_version_forgot_is_named_until_its_record_is_gone(
    places: Places, target: str
):
    """It erased half of the id, so only a store that knows the key can be told."""
    source, url = places.url("sqlite"), places.url(target)
    with Receiver.open(source) as receiver:
        for name in ("known", "unknown"):
            receiver.process(name, lambda: 1)
            if name == "known":
                with Follower.open(source, url, name="eu") as follower:
                    assert follower.once().copied == 1
            receiver.forget(name, by="ann")
    connection = sqlite3.connect(source.removeprefix("sqlite:///"))
    with connection:
        connection.execute("UPDATE twicesafe_keys SET owner = x''")
    connection.close()
    with Follower.open(source, url, name="eu") as follower:
        for _ in range(2):
            report = follower.once()
            assert report.unreadable == (Key("unknown").id[:16].hex(),)
    with Receiver.open(url) as receiver:
        for name, state in (("known", "forgotten"), ("unknown", None)):
            record = receiver.record(name)
            assert (record and record.state) == state


def test_a_newer_record_of_the_target_stays_and_is_counted(places: Places):
    source, target = places.url("memory"), places.url("sqlite")
    with Receiver.open(source) as here, Receiver.open(target) as there:
        here.process("k", lambda: 1)
        with Follower.open(source, target) as follower:
            follower.once()
            there.release("k", by="ann", force=True)
            there.process("k", lambda: 2)
            assert follower.once().newer == 1
        assert there.process("k", lambda: 3).value == 2


def test_a_pass_goes_on_where_the_last_one_ended(places: Places):
    source, target = places.url("sqlite"), places.url("memory")
    with Receiver.open(source) as receiver:
        for number in range(300):
            receiver.process(f"old-{number}", lambda: 1)
        with Follower.open(source, target, name="eu", overlap=0) as follower:
            assert follower.once().examined == 300
        receiver.process("new", lambda: 1)
        told: list[int] = []
        with Follower.open(source, target, name="eu", overlap=0) as follower:
            assert follower.once(told.append).examined < 300
        assert told
        with Follower.open(source, target, name="another", overlap=0) as follower:
            assert follower.once().examined == 301
    assert len(rows(target)) == 301


def test_unfinished_durable_runs_are_not_copied(places: Places):
    source, target = places.url("memory"), places.url("memory")
    with Receiver.open(source, policy=Policy(wait=0)) as receiver:

        @receiver.durable(key=lambda n: f"run-{n}")
        def waits(steps, n):
            steps.run("first", lambda: 1)
            if n:
                steps.wait("approval")

        waits(0)
        waits.submit(1)
        with Follower.open(source, target) as follower:
            report = follower.once()
    assert (report.copied, report.skipped) == (1, 1)


def test_a_store_that_takes_no_copies_says_so(places: Places):
    source, target = places.url("memory"), places.url("etcd")
    with pytest.raises(UnsupportedByStoreError, match="takes no copies"):
        Follower.open(source, target)


@pytest.mark.parametrize("option", ["prefix", "table"])
def test_stores_at_one_address_are_followed_apart(places: Places, option: str):
    """What was copied of the one says nothing about the other."""
    address, _, given = places.url("valkey" if option == "prefix" else "sqlite").partition("?")
    own = given.partition("=")[2] or "shop"
    older, newer = (f"{address}?{option}={own}_{name}" for name in "ab")
    target = places.url("sqlite")
    for source in (older, newer):
        with Receiver.open(source) as receiver:
            receiver.process(source, lambda: 1)
    for source in (newer, older):
        with Follower.open(source, target, overlap=0) as follower:
            assert follower.once().copied == 1
    assert rows(target).keys() == {older, newer}


def test_the_name_of_a_source_has_no_secrets_and_no_other_options(places: Places):
    name = AsyncFollower.open(
        "redis://app:pa@127.0.0.1/0?timeout=2&prefix=shop", places.url("memory")
    ).name
    assert name == "redis://app:***@127.0.0.1/0?prefix=shop"


@pytest.mark.parametrize("options", [("A", ""), ("", "A"), ("A", "B")])
def test_stores_whose_keys_are_not_hidden_alike_are_refused(
    places: Places, options: tuple[str, str], monkeypatch: pytest.MonkeyPatch
):
    """Copies would have keys that no receiver of the target finds: their work would run again."""
    for name in "AB":
        monkeypatch.setenv(name, HiddenKeys.new_secret())
    urls = [places.url("sqlite") + (f"?hidden_keys=env:{name}" if name else "") for name in options]
    for kind in (Follower, AsyncFollower):
        with pytest.raises(ConfigurationError, match="give both URLs the same hidden_keys"):
            kind.open(*urls)


def test_hidden_keys_are_copied_as_they_are(places: Places, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A", HiddenKeys.new_secret())
    source, target = (f"{places.url('sqlite')}?hidden_keys=env:A" for _ in range(2))
    with Receiver.open(source) as receiver:
        receiver.process("k", lambda: "hidden")
    with Follower.open(source, target) as follower:
        assert follower.once().copied == 2  # with the record that identifies the secret
    with Receiver.open(target) as receiver:
        assert receiver.process("k", boom).value == "hidden"


def test_records_of_etcd_can_be_copied_elsewhere(places: Places):
    source, target = places.url("etcd"), places.url("sqlite")
    with Receiver.open(source) as receiver:
        receiver.process("k", lambda: "from etcd")
    with Follower.open(source, target, name="eu") as follower:
        assert follower.once().copied == 1
    with Receiver.open(target) as receiver:
        assert receiver.process("k", boom).value == "from etcd"


def test_run_repeats_until_it_is_stopped(places: Places):
    source, target = places.url("memory"), places.url("memory")
    with Receiver.open(source) as receiver:
        receiver.process("k", lambda: 1)
    follower = Follower.open(source, target)
    reports = []

    def tell(report: object) -> None:
        reports.append(report)
        if len(reports) == 3:
            follower.stop()

    follower.run(every=0, tell=tell)
    assert [report.examined for report in reports] == [1, 1, 1]
    follower.close()


def test_a_store_that_does_not_answer_is_asked_again(places: Places, monkeypatch):
    source, target = places.url("memory"), places.url("memory")
    follower = Follower.open(source, target)
    once, heard = follower.once, []

    def failing() -> object:
        if not heard:
            raise StoreUnavailableError("no answer")
        return once()

    monkeypatch.setattr(follower, "once", failing)
    follower._stopped.wait = lambda seconds: bool(heard[1:])  # no test waits for the pause
    follower.run(every=0, tell=heard.append)
    assert isinstance(heard[0], StoreUnavailableError)
    assert heard[1].examined == 0


def test_the_async_follower_does_the_same(places: Places):
    source, target = places.url("memory"), places.url("sqlite")
    with Receiver.open(source) as receiver:
        receiver.process("k", lambda: "v")

    async def main() -> None:
        async with AsyncFollower.open(source, target, name="eu") as follower:
            assert await follower.lag() is None
            reports = []

            def tell(report: object) -> None:
                reports.append(report)
                if len(reports) == 2:
                    follower.stop()

            await follower.run(every=0.001, tell=tell)
            assert [report.copied for report in reports] == [1, 1]
            assert await follower.lag() is not None

    asyncio.run(main())
    assert set(rows(target)) == {"k"}


def test_a_damaged_progress_is_an_error_that_says_what_to_do(places: Places):

    source, target = places.url("memory"), places.url("memory")
    store, key = open_store(target), progress_key("eu")
    fence = store.perform(ClaimRequest(key, b"o" * 16, 1000)).fence
    assert store.perform(Complete(key.id, b"o" * 16, fence, 10**6, b"?")) is Ack.OK
    follower = Follower.open(source, target, name="eu")
    with pytest.raises(CorruptRecordError, match="release its record in the target"):
        follower.once()


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "valkey"])
def test_a_progress_that_was_erased_is_written_again(places: Places, kind: str):
    """An older version archived it like an answer. Without it no failover is possible."""
    source, target = places.url("memory"), places.url(kind)
    with Follower.open(source, target, name="eu") as follower:
        for _ in range(2):
            follower.once()
            with Receiver.open(target) as receiver:
                receiver.forget(progress_key("eu"), by="ann", why="archived")
            assert follower.lag() is None
            follower.once()
            assert follower.lag() is not None


def test_a_wrong_pause_is_refused(places: Places):
    follower = Follower.open(places.url("memory"), places.url("memory"))
    with pytest.raises(ConfigurationError):
        follower.run(every=-1)
