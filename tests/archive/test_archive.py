"""Answers leave the store for an archive: found there, erased in the store, and never run again."""

from __future__ import annotations

import asyncio
import json
import os
import stat
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from tests.receiver.faults import FaultyStore
from twicesafe import AsyncReceiver, Key, Policy, Receiver
from twicesafe._values.records import State
from twicesafe.archive import Archive
from twicesafe.encryption import KeyRing
from twicesafe.errors import (
    ConfigurationError,
    CorruptRecordError,
    RememberedFailureError,
    ResultUnavailableError,
    StoreUnavailableError,
    UsageError,
)
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore


def never(*_: object) -> Any:
    raise AssertionError("the handler ran again")


def test_an_answer_leaves_the_store_and_is_found_in_the_archive(receiver: Receiver, place: str):
    for at in range(3):
        receiver.process(f"tx-{at}", lambda at=at: {"paid": Decimal(at)})
    before = receiver.record("tx-1")
    report = receiver.archive(place, older_than=0)
    assert (report.archived, report.changed, report.after) == (3, 0, "")

    found = Archive.open(place).find(receiver.key("tx-1"))
    assert found is not None
    assert before is not None
    assert found.record == before
    assert found.answer() == {"paid": Decimal(1)}
    assert f"{before.changed_at:day=%Y-%m-%d}/" in found.file
    assert Archive.open(place).find(receiver.key("tx-9")) is None
    assert len(list(Archive.open(place).records())) == 3

    left = receiver.record("tx-1")
    assert left is not None
    assert (left.state, left.value, left.result_bytes) == (State.FORGOTTEN, "", None)
    assert left.expires_at == before.expires_at
    with pytest.raises(ResultUnavailableError):
        receiver.process("tx-1", never)
    (entry,) = receiver.audit("tx-1")
    assert (entry.by, entry.action) == ("archive", "forget")


@pytest.mark.parametrize("loses", [False, True])
def test_an_archived_answer_leaves_the_cache_too(tmp_path: Path, loses: bool):
    """Else this process would replay what no other one does. The erasure counts even if its answer is lost."""

    def lose(request: Any) -> None:
        if loses and request.op == "forget":
            raise StoreUnavailableError("the answer is lost")

    store = FaultyStore(MemoryStore())
    with Receiver(store, cache=10) as receiver:
        receiver.process("tx-1", lambda: 1)
        store.after = lose
        with pytest.raises(StoreUnavailableError) if loses else nullcontext():
            receiver.archive(str(tmp_path / "a"), older_than=0)
        store.after = lambda request: None
        with pytest.raises(ResultUnavailableError):
            receiver.process("tx-1", never)


async def test_an_archived_answer_leaves_the_cache_of_an_async_receiver(tmp_path: Path):
    async with AsyncReceiver(AsyncMemoryStore(), cache=10) as receiver:
        await receiver.process("tx-1", asyncio.sleep, 0)
        await receiver.archive(str(tmp_path / "a"), older_than=0)
        with pytest.raises(ResultUnavailableError):
            await receiver.process("tx-1", asyncio.sleep, 0)


def test_who_archived_and_why_is_in_the_trail_of_each_key(receiver: Receiver, tmp_path: Path):
    receiver.process("tx-1", lambda: 1)
    with pytest.raises(UsageError, match="by= is required"):
        receiver.archive(str(tmp_path / "a"), older_than=0, by=" ")
    receiver.archive(str(tmp_path / "a"), older_than=0, by="ana", why="monthly")
    (entry,) = receiver.audit("tx-1")
    assert (entry.by, entry.why) == ("ana", "monthly")


def test_only_answers_of_that_age_leave(receiver: Receiver, tmp_path: Path):
    receiver.process("done", lambda: 1)
    with receiver.claim("running"):
        assert receiver.archive(str(tmp_path / "a"), older_than="1h").archived == 0
        assert receiver.archive(str(tmp_path / "a"), older_than=0).archived == 1
        running = receiver.record("running")
    assert running is not None
    assert running.state is State.IN_PROGRESS
    assert receiver.archive(str(tmp_path / "a"), older_than=0).archived == 0


def test_a_remembered_failure_is_archived(url: str, tmp_path: Path):
    def fail() -> None:
        raise LookupError("no such account")

    with Receiver.open(url, policy=Policy(remember=(LookupError,))) as receiver:
        with pytest.raises(LookupError):
            receiver.process("tx", fail)
        assert receiver.archive(str(tmp_path / "a"), older_than=0).archived == 1
        found = Archive.open(str(tmp_path / "a")).find(receiver.key("tx"))
        assert found is not None
        assert found.record.state is State.FAILED
        with pytest.raises(UsageError, match="LookupError"):
            found.answer()
        with pytest.raises((ResultUnavailableError, RememberedFailureError)):
            receiver.process("tx", never)


def test_limits_and_rounds(receiver: Receiver, tmp_path: Path):
    for at in range(120):
        receiver.process(f"tx-{at}", lambda: "x")
    place = str(tmp_path / "a")
    first = receiver.archive(place, older_than=0, limit=70)
    assert first.archived == 70
    assert first.after
    assert receiver.archive(place, older_than=0).archived == 50
    assert len({found.record.id for found in Archive.open(place).records()}) == 120
    with pytest.raises(UsageError):
        receiver.archive(place, older_than=0, limit=0)
    with pytest.raises(ConfigurationError):
        receiver.archive(place, older_than=-1)


async def test_async(url: str, tmp_path: Path):
    async with AsyncReceiver.open(url) as receiver:

        async def pay() -> str:
            return "paid"

        await receiver.process("tx", pay)
        report = await receiver.archive(str(tmp_path / "a"), older_than=0, by="ana", why="monthly")
        assert report.archived == 1
        assert [entry.by for entry in await receiver.audit("tx")] == ["ana"]
        found = Archive.open(str(tmp_path / "a")).find(receiver.key("tx"))
        assert found is not None
        assert found.answer() == "paid"


def test_encrypted_results_stay_encrypted(url: str, tmp_path: Path):
    ring = KeyRing({"a": os.urandom(32)})
    policy = Policy(encryption=ring)
    with Receiver.open(url, policy=policy) as receiver:
        receiver.process("tx", lambda: "canary-4711")
        receiver.archive(str(tmp_path / "a"), older_than=0)
        found = Archive.open(str(tmp_path / "a")).find(receiver.key("tx"))
    assert found is not None
    for path in (tmp_path / "a").rglob("*.jsonl"):
        assert b"canary" not in path.read_bytes()
    assert found.answer(policy=policy) == "canary-4711"
    with pytest.raises(ResultUnavailableError, match="key ring"):
        found.answer()
    with pytest.raises(ResultUnavailableError):
        found.answer(policy=Policy(encryption=KeyRing({"b": os.urandom(32)})))


@pytest.mark.attack("D9")
def test_a_line_that_was_copied_to_another_key_does_not_decrypt(url: str, tmp_path: Path):
    policy = Policy(encryption=KeyRing({"a": os.urandom(32)}))
    with Receiver.open(url, policy=policy) as receiver:
        receiver.process("mine", lambda: "mine")
        receiver.process("yours", lambda: "yours")
        receiver.archive(str(tmp_path / "a"), older_than=0)
        (path,) = (tmp_path / "a").rglob("*.jsonl")
        lines = [json.loads(line) for line in path.read_bytes().splitlines()]
        lines[0]["result"], lines[1]["result"] = lines[1]["result"], lines[0]["result"]
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        found = Archive.open(str(tmp_path / "a")).find(receiver.key("mine"))
    assert found is not None
    with pytest.raises(CorruptRecordError):
        found.answer(policy=policy)


@pytest.mark.attack("D8")
@pytest.mark.parametrize("line", [b"{", b"[]", b'{"id":"zz"}', b'{"id":"00"}', b"\xff", b"null"])
def test_malicious_lines_are_reported(receiver: Receiver, tmp_path: Path, line: bytes):
    receiver.process("tx", lambda: 1)
    receiver.archive(str(tmp_path / "a"), older_than=0)
    (path,) = (tmp_path / "a").rglob("*.jsonl")
    path.write_bytes(line + b"\n")
    with pytest.raises(CorruptRecordError, match="day="):
        list(Archive.open(str(tmp_path / "a")).records())


def test_only_the_owner_can_read_a_directory(receiver: Receiver, tmp_path: Path):
    receiver.process("tx", lambda: 1)
    receiver.archive(str(tmp_path / "a" / "b"), older_than=0)
    for path in (tmp_path / "a").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0


def test_a_place_that_cannot_be_written_erases_nothing(receiver: Receiver, tmp_path: Path):
    receiver.process("tx", lambda: "paid")
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreUnavailableError, match="run it again"):
        receiver.archive(str(tmp_path / "file"), older_than=0)
    assert receiver.process("tx", never).value == "paid"


def test_a_bucket_that_is_missing_erases_nothing(receiver: Receiver, s3_url: str):
    receiver.process("tx", lambda: "paid")
    with pytest.raises(StoreUnavailableError, match="NoSuchBucket"):
        receiver.archive(s3_url.replace("s3://", "s3://missing-"), older_than=0)
    assert receiver.process("tx", never).value == "paid"


def test_an_answer_that_was_recorded_meanwhile_stays(receiver: Receiver, tmp_path: Path):
    """Released and run again between the copy and the erasure: the new answer is not in the archive."""
    receiver.process("tx", lambda: "first")

    class Meanwhile(Archive):
        def write(self, rows: Any) -> None:
            super().write(rows)
            receiver.release("tx", by="me", force=True)
            receiver.process("tx", lambda: "second")

    archive = Meanwhile(Archive.open(str(tmp_path / "a"))._place)
    report = receiver.archive(archive, older_than=0)
    assert (report.archived, report.changed) == (0, 1)
    assert receiver.process("tx", never).value == "second"
    assert receiver.archive(str(tmp_path / "a"), older_than=0).archived == 1
    found = archive.find(receiver.key("tx"))
    assert found is not None
    assert found.answer() == "second"


def test_the_durable_answer_is_archived_and_its_steps_go(receiver: Receiver, tmp_path: Path):
    @receiver.durable(key="order", scope=("flow",))
    def flow(steps: Any, order: str) -> str:
        return str(steps.run("charge", lambda: f"charged {order}"))

    assert flow("o-1") == "charged o-1"
    assert receiver.archive(str(tmp_path / "a"), older_than=0).archived == 1
    found = Archive.open(str(tmp_path / "a")).find(flow.key("o-1"))
    assert found is not None
    assert found.answer() == "charged o-1"
    with pytest.raises(ResultUnavailableError):
        flow("o-1")


@pytest.mark.parametrize("url_", ["", "ftp://x", "s3://", "s3://b?regoin=x"])
def test_wrong_places(url_: str):
    with pytest.raises(ConfigurationError):
        Archive.open(url_)


def test_wrong_days(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="2026-11-17"):
        list(Archive.open(str(tmp_path)).records(day="../../etc"))
    assert list(Archive.open(str(tmp_path)).records(day="2026-11-17")) == []
    assert Archive.open(str(tmp_path / "none")).find(Key("x")) is None
