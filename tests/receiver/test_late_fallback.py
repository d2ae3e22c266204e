"""A fallback named by a URL connects when it is first needed: while it is down, the service still starts."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from tests.polling import until
from tests.receiver.faults import FaultyStore, Outage
from tests.servers.process import free_port
from twicesafe import (
    AsyncReceiver,
    Breaker,
    ConfigurationError,
    Policy,
    Receiver,
    StoreUnavailableError,
)
from twicesafe._core.protocol import Read
from twicesafe.stores import _urls
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

URL = "late://user:secret@spare"


class LateStore(MemoryStore):
    """A server: `open` connects."""

    recalls: ClassVar[bool] = False
    down: ClassVar[Exception | None] = None
    opened: ClassVar[list[Any]] = []
    asked: ClassVar[int] = 0
    gate: ClassVar[threading.Event] = threading.Event()
    closed = 0

    @classmethod
    def open(cls, url: str) -> Any:
        cls.asked += 1
        assert cls.gate.wait(60)
        if cls.down is not None:
            raise cls.down
        store = cls()
        cls.opened.append(store)
        return store

    def close(self) -> None:
        self.closed += 1


class AsyncLateStore(AsyncMemoryStore):
    @classmethod
    def open(cls, url: str) -> Any:
        _urls.options_of(url, {"pool": 1})
        return cls(LateStore())


class CountedLock:
    def __init__(self) -> None:
        self.wanted, self._lock, self._counting = 0, threading.Lock(), threading.Lock()

    def __enter__(self) -> None:
        with self._counting:
            self.wanted += 1
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("twicesafe._core.delivery.CLAIM_RETRIES", 0.0)
    monkeypatch.setitem(_urls.SCHEMES, "late", f"{__name__}:LateStore")
    LateStore.down, LateStore.asked, LateStore.opened = None, 0, []
    LateStore.gate.set()
    yield
    LateStore.gate.set()


def opened(fallback: Any = URL, **settings: Any) -> tuple[Receiver, FaultyStore]:
    store = FaultyStore(MemoryStore())
    breaker = Breaker(failures=1, rest=1000, longest_rest=1000, fallback=fallback)
    return Receiver(store, breaker=breaker, **settings), store


def in_outage(fallback: Any = URL, **settings: Any) -> Receiver:
    receiver, store = opened(fallback, **settings)
    store.before = Outage("claim", "complete", "read", "survey")
    with pytest.raises(StoreUnavailableError):
        receiver.process("opens the breaker", int)
    return receiver


def test_a_service_starts_and_works_although_its_fallback_is_down():
    LateStore.down = StoreUnavailableError("the spare is down")
    receiver, _ = opened()
    with receiver:
        assert receiver.process("k", lambda: "paid").value == "paid"
    assert LateStore.asked == 0


def test_a_server_that_is_down_stops_no_service():
    breaker = Breaker(fallback=f"redis://127.0.0.1:{free_port()}/0")
    with Receiver.open("memory://", breaker=breaker) as receiver:
        assert receiver.process("k", lambda: "paid").value == "paid"


def test_it_opens_once_when_it_is_needed_and_is_closed_once():
    with in_outage() as receiver:
        assert LateStore.asked == 0
        assert receiver.process("k", lambda: "paid").value == "paid"
        assert receiver.process("k", lambda: "again").replayed
    (store,) = LateStore.opened
    assert store.closed == 1


def test_threads_that_need_it_at_the_same_moment_open_it_once():
    LateStore.gate.clear()
    with in_outage() as receiver, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(receiver.process, f"k-{n}", lambda: "paid") for n in range(8)]
        until(lambda: LateStore.asked == 1)
        LateStore.gate.set()
        assert [call.result(60).value for call in calls] == ["paid"] * 8
    assert LateStore.asked == 1


def test_threads_that_need_it_at_the_same_moment_share_a_failed_attempt():
    """One after the other, eight threads would wait eight times for a server that does not answer."""
    LateStore.gate.clear()
    LateStore.down = StoreUnavailableError("the spare is down")
    with in_outage() as receiver, ThreadPoolExecutor(8) as pool:
        lock = receiver._fallback._opening.now = CountedLock()
        reads = [pool.submit(receiver._fallback.perform, Read(b"k")) for _ in range(8)]
        until(lambda: lock.wanted == 8)
        LateStore.gate.set()
        errors = [read.exception(60) for read in reads]
        assert [str(error) for error in errors] == [
            "the fallback store cannot be opened: the spare is down"
        ] * 8
        assert len({id(error) for error in errors}) == 8, "each error gets the key of its own call"
        assert LateStore.asked == 1
        LateStore.down = None
        assert receiver.process("k", lambda: "paid").value == "paid"


@pytest.mark.parametrize(
    "down",
    [StoreUnavailableError("it is down"), ConfigurationError("the password is wrong")],
    ids=["down", "wrong"],
)
def test_a_fallback_that_does_not_open_refuses_deliveries_and_is_logged_once(
    caplog: pytest.LogCaptureFixture, down: Exception
):
    """Refused means: to be tried again. A wrong password of the fallback is no fault of the message."""
    LateStore.down = down
    with in_outage() as receiver, caplog.at_level(logging.WARNING, "twicesafe"):
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match=str(down)):
                receiver.process("k", lambda: "paid")
        batch = receiver.process_many(["a", "b"], str, key=str)
        assert [type(one.error) for one in batch] == [StoreUnavailableError] * 2  # type: ignore[union-attr]
    (line,) = [
        record.getMessage() for record in caplog.records if "fallback" in record.getMessage()
    ]
    assert str(down) in line
    assert "late://" in line
    assert "secret" not in line


def test_its_policy_decides_if_neither_answers():
    LateStore.down = StoreUnavailableError("it is down")
    receiver, store = opened(policy=Policy(outage="run"))
    store.before = Outage("claim")
    with receiver:
        assert [receiver.process("k", lambda: "ran").value for _ in range(3)] == ["ran"] * 3


def test_a_closed_receiver_that_is_entered_again_has_its_fallback():
    receiver = in_outage()
    for key in ("a", "b"):
        with receiver:
            assert receiver.process(key, lambda: "paid").value == "paid"
    assert LateStore.asked == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_child_forked_while_it_opens_can_open_it():
    LateStore.gate.clear()
    with in_outage() as receiver, ThreadPoolExecutor(1) as pool:
        call = pool.submit(receiver.process, "k", lambda: "paid")
        until(lambda: LateStore.asked == 1)
        child = os.fork()
        if child == 0:
            try:
                LateStore.gate = threading.Event()
                LateStore.gate.set()
                os._exit(0 if receiver.process("k-2", lambda: "paid").value == "paid" else 1)
            finally:
                os._exit(2)
        LateStore.gate.set()
        assert call.result(60).value == "paid"
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize(
    "url, says",
    [
        ("nope://spare", "no store for 'nope'"),
        ("late://spare?tabel=1", "no option 'tabel'"),
        ("redis://spare/0?tabel=1", "no option 'tabel'"),
        ("postgresql://spare/shop?tabel=1", "option that the driver refuses"),
        ("sqlite:///x.db?tabel=1", "did you mean 'table'"),
        ("redis://spare/0?hidden_keys=env:NOT_SET_HERE", "NOT_SET_HERE"),
    ],
)
def test_a_wrong_url_is_refused_when_the_receiver_is_opened(url: str, says: str):
    for kind in (Receiver, AsyncReceiver):
        with pytest.raises(ConfigurationError, match=says):
            kind.open("memory://", breaker=Breaker(fallback=url))


def test_a_missing_extra_is_refused_when_the_receiver_is_opened(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "pymysql", None)
    with pytest.raises(ConfigurationError, match=r"twicesafe\[mysql\]"):
        Receiver.open("memory://", breaker=Breaker(fallback="mysql://spare/shop"))


def test_a_file_that_cannot_be_opened_is_logged_at_the_start(caplog: pytest.LogCaptureFixture):
    with Receiver.open(
        "memory://", breaker=Breaker(fallback="sqlite:////no/such/x.db")
    ) as receiver:
        assert receiver.process("k", lambda: "paid").value == "paid"
    (line,) = [record.getMessage() for record in caplog.records]
    assert "/no/such/x.db" in line


def test_the_doctor_asks_it():
    LateStore.down = StoreUnavailableError("it is down")
    with opened()[0] as receiver:
        (warning,) = [one for one in receiver.doctor() if "fallback" in one.what]
        assert (warning.level, "secret" in warning.what) == ("warn", False)
        LateStore.down = None
        (fine,) = [one for one in receiver.doctor() if "fallback" in one.what]
        assert fine.level == "ok"


async def test_the_async_doctor_asks_it():
    url = f"redis://127.0.0.1:{free_port()}/0"
    async with AsyncReceiver.open("memory://", breaker=Breaker(fallback=url)) as receiver:
        (warning,) = [one for one in await receiver.doctor() if "fallback" in one.what]
        assert warning.level == "warn"
        assert url in warning.what
