"""Hidden keys: what they are, what they refuse, and how operators find them."""

from __future__ import annotations

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.cli.line import Line, line  # noqa: F401 - a fixture
from tests.receiver.faults import AsyncFaultyStore, FaultyStore, Outage
from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Inbox,
    Key,
    Policy,
    Receiver,
    State,
    StoreUnavailableError,
    UsageError,
    key_scope,
)
from twicesafe._core.commands import Sleep
from twicesafe.encryption import HiddenKeys
from twicesafe.regions import Follower, Regions
from twicesafe.stores import open_async_store, open_store
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

SECRET, OTHER = (bytes(range(start, start + 32)) for start in (0, 1))
HIDDEN = HiddenKeys(SECRET)
FULL = Key("tx-1", ("acct_1", "charge"))


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", base64.b64encode(SECRET).decode())
    monkeypatch.setenv("OTHER", base64.b64encode(OTHER).decode())


@pytest.fixture
def place(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keys.db"


@pytest.fixture
def url(place: str) -> str:
    return f"{place}?hidden_keys=env:SECRET"


def run_again() -> Any:
    raise AssertionError("it ran again")


# --- identities ------------------------------------------------------------------------------


def test_a_repeat_gets_the_recorded_answer(url: str):
    with Receiver.open(url, scope=("acct_1", "charge")) as receiver:
        first = receiver.process("tx-1", lambda: 7)
        assert receiver.process("tx-1", run_again).value == 7
    assert first.key == HIDDEN.key(FULL)


async def test_the_async_receiver_has_the_same_identities(url: str):
    with Receiver.open(url, scope=("acct_1",)) as receiver:
        receiver.process("tx-1", lambda: 7)

    async def again() -> Any:
        run_again()

    async with AsyncReceiver.open(url) as receiver_:
        with key_scope("acct_1"):
            assert (await receiver_.process("tx-1", again)).value == 7


@pytest.mark.attack("D17")
def test_an_identity_cannot_be_computed_without_the_secret():
    other = HiddenKeys(OTHER).key(FULL)
    assert len({FULL.id, HIDDEN.key(FULL).id, other.id}) == 3
    assert not set(HIDDEN.key(FULL).scope) & {*FULL.scope, *other.scope}


def test_a_value_and_a_scope_part_of_the_same_text_differ():
    hidden = HIDDEN.key(Key("same", ("same",)))
    assert hidden.value != hidden.scope[0]


def test_keys_that_we_returned_are_not_hidden_again(url: str):
    with Receiver.open(url, scope=("shop",)) as receiver:
        key = receiver.process("tx-1", lambda: 7).key
        assert receiver.process(key, run_again).value == 7
        [record] = receiver.records(value="tx-1")
        assert record.key == key
        receiver.release(record.key, by="ann", force=True)
        assert [entry.by for entry in receiver.audit("tx-1")] == ["ann"]


@pytest.mark.attack("D3")
def test_a_sender_cannot_use_the_hash_of_another_key(url: str):
    with Receiver.open(url) as receiver:
        hidden = receiver.process("tx-1", lambda: 7).key
        assert receiver.process(hidden.value, lambda: 8).value == 8
        assert receiver.process(Key(hidden.value), lambda: 9).value == 8


def test_a_function_whose_arguments_are_the_key(url: str):
    calls = []
    with Receiver.open(url) as receiver:

        @receiver.idempotent(scope=("charge",))
        def charge(cents: int) -> int:
            calls.append(cents)
            return cents

        assert (charge(5), charge(5)) == (5, 5)
    assert calls == [5]


# --- the secret --------------------------------------------------------------------------------


@pytest.fixture
def other(place: str, url: str) -> str:
    """A store with one key, and the URL with another secret than the one that made it."""
    with Receiver.open(url) as receiver:
        receiver.process("tx-1", lambda: 7)
    return f"{place}?hidden_keys=env:OTHER"


def test_another_secret_is_refused_before_anything_runs(other: str):
    with (
        Receiver.open(other) as receiver,
        pytest.raises(ConfigurationError, match="another secret"),
    ):
        receiver.process("tx-1", run_again)


async def test_another_secret_is_refused_by_the_async_receiver(other: str):
    async with AsyncReceiver.open(other) as receiver:
        with pytest.raises(ConfigurationError, match="another secret"):
            await receiver.process("tx-1", run_again)


def test_another_secret_is_refused_for_batches(other: str):
    with (
        Receiver.open(other) as receiver,
        pytest.raises(ConfigurationError, match="another secret"),
    ):
        receiver.process_many(["tx-1"], run_again_with, key=str)


def run_again_with(_: str) -> None:
    run_again()


def test_a_store_with_readable_keys_is_refused(place: str, url: str):
    with Receiver.open(place) as plain:
        plain.process("tx-1", lambda: 7)
    for _ in range(2):
        with Receiver.open(url) as receiver, pytest.raises(ConfigurationError, match="readable"):
            receiver.process("tx-1", run_again)
    with Receiver.open(place) as plain:
        assert plain.process("tx-1", run_again).value == 7


def test_forgotten_keys_and_our_own_records_do_not_count_as_readable(place: str, url: str):
    with Receiver.open(place) as plain:
        plain.process("tx-1", lambda: 7)
        plain.forget("tx-1")
        plain.process(Key("0", ("twicesafe", "maintenance"), absolute=True), lambda: None)
    with Receiver.open(url) as receiver:
        assert receiver.process("tx-2", lambda: 8).value == 8


def test_another_secret_is_refused_after_an_archive(other: str, url: str, tmp_path: Path):
    with Receiver.open(url) as receiver:
        assert receiver.archive(str(tmp_path / "archive"), older_than=0).archived == 1
    with (
        Receiver.open(other) as receiver,
        pytest.raises(ConfigurationError, match="another secret"),
    ):
        receiver.process("tx-1", run_again)


def test_another_secret_is_refused_by_a_copy_of_the_store(other: str, url: str, tmp_path: Path):
    """The other records of twicesafe itself are not copied."""
    copy = f"sqlite:///{tmp_path}/copy.db"
    with Follower.open(url, f"{copy}?{url.partition('?')[2]}") as follower:
        assert follower.once().copied == 2
    with (
        Receiver.open(f"{copy}?{other.partition('?')[2]}") as receiver,
        pytest.raises(ConfigurationError, match="another secret"),
    ):
        receiver.process("tx-1", run_again)


def test_a_process_that_died_in_the_check_blocks_no_other(place: str, url: str):
    from twicesafe._core.secret_check import check_secret

    store = open_store(place)
    check = check_secret(HIDDEN)
    assert store.perform(next(check)).fence  # and it dies: the lease of the check is running
    check.close()
    with Receiver.open(url) as receiver:
        assert receiver.process("tx-1", lambda: 7).value == 7
    store.close()


def test_the_doctor_tells_of_a_url_without_the_secret_or_with_another(place: str, url: str):
    with Receiver.open(url) as receiver:
        receiver.process("tx-1", lambda: 7)
        assert not refusals(receiver)
    for wrong in (place, f"{place}?hidden_keys=env:OTHER"):
        with Receiver.open(wrong) as receiver:
            [found] = refusals(receiver)
            assert "hidden" in found.what
            assert "hidden_keys" in found.remedy


def refusals(receiver: Receiver) -> list[Any]:
    return [found for found in receiver.doctor() if found.level == "refuse"]


@pytest.mark.parametrize(
    "source, problem",
    [
        ("", "env:NAME or file:/path"),
        ("SECRET", "env:NAME or file:/path"),
        ("env:NOT_SET", "not set"),
        ("env:SHORT", "32 random bytes"),
        ("env:NOT_BASE64", "not Base64"),
        ("file:/nowhere/secret", "cannot be read"),
    ],
)
def test_a_wrong_secret_is_an_error_that_does_not_show_it(
    place: str, monkeypatch: pytest.MonkeyPatch, source: str, problem: str
):
    monkeypatch.setenv("SHORT", "c2hvcnQ=")
    monkeypatch.setenv("NOT_BASE64", "not*base64")
    for opened in (open_store, open_async_store):
        with pytest.raises(ConfigurationError, match=problem) as raised:
            opened(f"{place}?hidden_keys={source}")
        assert "c2hv" not in str(raised.value)
        assert "not*" not in str(raised.value)


def test_two_secrets_in_one_url_are_refused(url: str):
    with pytest.raises(ConfigurationError, match="twice"):
        open_store(f"{url}&hidden_keys=env:OTHER")


def test_other_options_of_the_url_stay(place: str):
    store = open_store(f"{place}?synchronous=normal&hidden_keys=env%3ASECRET&timeout=1")
    assert store.hidden_keys is not None
    store.close()
    with pytest.raises(ConfigurationError, match="no option 'hidden_kyes'"):
        open_store(f"{place}?hidden_kyes=env:SECRET")


def test_the_secret_is_not_shown_and_not_pickled():
    assert repr(HIDDEN) == "<HiddenKeys>"
    with pytest.raises(UsageError, match="cannot be pickled"):
        pickle.dumps(HIDDEN)


def test_a_new_secret_can_be_loaded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NEW", HiddenKeys.new_secret())
    assert HiddenKeys.load("env:NEW").key(FULL) != HIDDEN.key(FULL)


def test_regions_refuse_hidden_keys(place: str, url: str):
    with pytest.raises(ConfigurationError, match="home of a key is found by its text"):
        Regions.open({"a": url, "b": f"{place}2"}, register=f"{place}3")


# --- operators ---------------------------------------------------------------------------------


@pytest.fixture
def hidden_line(line: Line) -> Line:  # noqa: F811
    line.url += "?hidden_keys=env:SECRET"
    with Receiver.open(line.url, scope=("acct_1",), policy=Policy()) as receiver:
        receiver.process("tx-1", lambda: 7)
        receiver.process("tx-2", lambda: 7)
    return line


def test_operators_search_by_what_was_sent(hidden_line: Line):
    shown = hidden_line("keys", "show", "tx-1", "--scope", "acct_1", "--json").data
    assert shown["key"] == HIDDEN.value("tx-1")
    [found] = hidden_line("keys", "list", "--value", "tx-1", "--json").data["records"]
    assert found["id"] == shown["id"]
    listed = hidden_line("keys", "list", "--scope", "acct_1", "--json").data["records"]
    assert len(listed) == 2
    hidden_scope = listed[0]["scope"][0]
    assert len(hidden_line("keys", "list", "--scope", hidden_scope, "--json").data["records"]) == 2
    ran = hidden_line(
        "keys", "forget", "tx-1", "--scope", "acct_1", "--by", "a", "--why", "w", "--yes"
    )
    assert ran.status == 0
    with Receiver.open(hidden_line.url, scope=("acct_1",)) as receiver:
        record = receiver.record("tx-1")
        assert record is not None
        assert record.state is State.FORGOTTEN


def test_a_listing_shows_eight_digits_of_each_hash(hidden_line: Line):
    out = hidden_line("keys", "list").out
    assert HIDDEN.value("tx-1")[:15] + "…" in out
    assert HIDDEN.value("tx-1") not in out
    assert HIDDEN.value("tx-1") in hidden_line("keys", "show", "tx-1", "--scope", "acct_1").out


def test_an_archived_answer_is_found_by_what_was_sent(hidden_line: Line, tmp_path: Path):
    with Receiver.open(hidden_line.url) as receiver:
        receiver.archive(str(tmp_path / "answers"), older_than=0)
    archive = ("--archive", str(tmp_path / "answers"))
    shown = hidden_line("keys", "show", "tx-1", "--scope", "acct_1", *archive, "--json").data
    assert shown["archive"]
    files = [path.read_bytes() for path in (tmp_path / "answers").rglob("*") if path.is_file()]
    assert files
    assert not any(b"tx-1" in text or b"acct_1" in text for text in files)


def test_an_inbox_hides_the_consumer_and_the_id(url: str, tmp_path: Path):
    import sqlite3
    from contextlib import closing

    with (
        Inbox.open(url, consumer="billing") as inbox,
        closing(sqlite3.connect(tmp_path / "keys.db", isolation_level=None)) as db,
    ):
        for is_new in (True, False):
            db.execute("BEGIN IMMEDIATE")
            assert inbox.accept(db, "tx-1") is is_new
            db.execute("COMMIT")
        [(scope, value)] = db.execute("SELECT scope, value FROM twicesafe_keys").fetchall()
    assert value == HIDDEN.value("tx-1")
    assert "billing" not in scope


def test_an_outage_before_the_secret_is_checked_is_one_failure_per_message(
    monkeypatch: pytest.MonkeyPatch,
):
    """It ended the whole batch."""
    monkeypatch.setattr("twicesafe._core.batch.Sleep", lambda _: Sleep(0))
    store = FaultyStore(MemoryStore())
    store.hidden_keys = HIDDEN
    outage = store.before = Outage("claim")
    receiver = Receiver(store)
    failed = receiver.process_many(["a", "b"], str, key=str)
    assert [type(one.error) for one in failed] == [StoreUnavailableError] * 2  # type: ignore[union-attr]
    outage.over()
    done = receiver.process_many(["a", "b"], str, key=str)
    assert [one.value for one in done] == ["a", "b"]  # type: ignore[union-attr]


async def test_an_outage_before_the_secret_is_checked_is_one_failure_per_message_async(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr("twicesafe._core.batch.Sleep", lambda _: Sleep(0))
    store = AsyncFaultyStore(AsyncMemoryStore(MemoryStore()))
    store.hidden_keys = HIDDEN
    store.before = Outage("claim")

    async def handle(message: str) -> str:
        return message

    failed = await AsyncReceiver(store).process_many(["a", "b"], handle, key=str)
    assert [type(one.error) for one in failed] == [StoreUnavailableError] * 2  # type: ignore[union-attr]
