"""What is special about etcd: its leases and revisions, its limits, its users, and its outages."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import pytest

from lab.field.drivers import through
from lab.field.proxy import Fault, Proxy
from tests.polling import until
from tests.servers import free_port
from tests.stores.etcd_clients import (
    KINDS,
    MINUTE,
    A,
    B,
    BlockingClient,
    RawEtcd,
    claim,
    complete,
    etcdctl,
    insist,
)
from twicesafe import Key, Receiver
from twicesafe._core.protocol import Ack, Browse, Fail, Forget, Read, Renew, Resolve, Sweep, Verdict
from twicesafe._engines.etcd import EtcdStore, programs, record_layout, wakeups
from twicesafe._engines.etcd.doctor import _member
from twicesafe._engines.etcd.error_messages import NoSpaceError
from twicesafe._engines.etcd.leases import MOST, Leases
from twicesafe._engines.etcd.messages import message as etcd_message
from twicesafe._engines.etcd.record_layout import INLINE
from twicesafe._values.clocks import since_boot, wall_clock
from twicesafe._values.records import Row, State
from twicesafe.errors import (
    ConfigurationError,
    CorruptRecordError,
    SchemaVersionError,
    StoreError,
    StoreUnavailableError,
)

KEY = Key("order-77")
HOUR = 60 * MINUTE


def prefix_of(url: str) -> str:
    return urlsplit(url).path.strip("/")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, etcd_url: str) -> Iterator[Any]:
    client = KINDS[kind](etcd_url + "?timeout=120")
    yield client
    client.close()


@pytest.fixture
def raw(etcd: Any) -> Iterator[RawEtcd]:
    with contextlib.closing(RawEtcd(etcd.port)) as raw:
        yield raw


# --- round trips -----------------------------------------------------------------------------


def test_a_first_delivery_is_two_calls_and_a_duplicate_one(client: Any) -> None:
    warm = client.perform(claim(Key("warm")))
    client.perform(complete(Key("warm"), warm.fence))
    calls: list[str] = []
    client.store.router.tap = lambda when, call: (
        calls.append(call.name) if when == "before" else None
    )
    fence = client.perform(claim(KEY)).fence
    assert client.perform(Renew(KEY.id, A, fence, MINUTE)) is Ack.OK
    assert client.perform(complete(KEY, fence)) is Ack.OK
    assert calls == ["Transaction"] * 3
    assert client.perform(claim(KEY, B)).verdict is Verdict.REPLAY
    assert calls == ["Transaction"] * 4


def test_a_large_result_of_another_process_is_found_and_the_next_one_in_one_call(
    kind: str, client: Any, etcd_url: str
) -> None:
    """A duplicate reads the key of large results only in a process that has met one."""
    for key in (KEY, Key("second")):
        assert (
            client.perform(complete(key, client.perform(claim(key)).fence, b"L" * 2000)) is Ack.OK
        )
    with contextlib.closing(KINDS[kind](etcd_url + "?timeout=120")) as other:
        other.perform(claim(Key("warm")))
        calls: list[str] = []
        other.store.router.tap = lambda when, call: (
            calls.append(call.name) if when == "before" else None
        )
        assert other.perform(claim(KEY, B)).result == b"L" * 2000
        assert calls == ["Transaction"] * 2
        assert other.perform(claim(Key("second"), B)).result == b"L" * 2000
        assert calls == ["Transaction"] * 3


def test_a_batch_asks_for_its_leases_once(client: Any) -> None:
    began = since_boot()
    client.store.programs.leases._clock = lambda: began  # a lease is shared for a second
    calls: list[str] = []
    client.store.router.tap = lambda when, call: (
        calls.append(call.name) if when == "before" else None
    )
    client.perform_many([claim(Key(f"key-{number}")) for number in range(50)])
    assert calls.count("LeaseGrant") == 1
    assert calls.count("Transaction") == 50


def test_requests_that_need_a_lease_at_the_same_time_share_it(kind: str, client: Any) -> None:
    calls: list[str] = []
    router = client.store.router
    router.tap = lambda when, call: calls.append(call.name) if when == "before" else None
    requests = [claim(Key(f"key-{number}")) for number in range(30)]
    if kind == "blocking":
        with ThreadPoolExecutor(30) as threads:
            answers = list(threads.map(client.perform, requests))
    else:

        async def all_at_once(several: Any) -> Any:
            return await asyncio.gather(*(client.store.perform(request) for request in several))

        answers = client._run(all_at_once, requests)
    assert {answer.verdict for answer in answers} == {Verdict.WON}
    assert calls.count("LeaseGrant") <= 2  # one that comes late may need its own


# --- fences and revisions --------------------------------------------------------------------


def test_the_fence_is_the_revision_of_the_claim(client: Any, raw: RawEtcd, etcd_url: str) -> None:
    fence = client.perform(claim(KEY)).fence
    name = f"{prefix_of(etcd_url)}/r/{KEY.id[:16].hex()}".encode()
    [kv] = raw("Range", key=name).kvs
    assert kv.mod_revision == fence
    client.perform(Renew(KEY.id, A, fence, MINUTE))
    assert client.perform(Read(KEY.id)).fence == fence, "a renewal does not raise it"
    client.perform(complete(KEY, fence))
    assert client.perform(Read(KEY.id)).fence == fence


def test_a_record_of_another_client_is_never_a_new_start(
    client: Any, raw: RawEtcd, etcd_url: str
) -> None:
    name = f"{prefix_of(etcd_url)}/r/{KEY.id[:16].hex()}".encode()
    raw.put(name, b"\x02\x90")
    with pytest.raises(SchemaVersionError, match="update twicesafe"):
        client.perform(claim(KEY))


def test_a_result_that_someone_deleted_is_a_damaged_record(
    client: Any, raw: RawEtcd, etcd_url: str
) -> None:
    client.perform(complete(KEY, client.perform(claim(KEY)).fence, b"x" * (INLINE + 1)))
    value = f"{prefix_of(etcd_url)}/v/{KEY.id[:16].hex()}".encode()
    raw("Txn", success=[{"request_delete_range": {"key": value}}])
    with pytest.raises(CorruptRecordError, match=r"the result of the record .* is missing"):
        client.perform(claim(KEY, B))
    page = client.perform(Browse(10))
    assert (page.rows, len(page.unreadable)) == ([], 1)


# --- time is etcd's ----------------------------------------------------------------------------


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_worker_whose_clock_is_hours_off_decides_the_same(
    kind: str, client: Any, etcd_url: str, hours: int
) -> None:
    fence = client.perform(claim(KEY)).fence
    other = KINDS[kind](etcd_url + "?timeout=120", clock=lambda: wall_clock() + hours * HOUR)
    with contextlib.closing(other):
        assert other.perform(claim(KEY, B)).verdict is Verdict.BUSY
        assert other.perform(Renew(KEY.id, A, fence, MINUTE)) is Ack.OK
        assert other.perform(complete(KEY, fence)) is Ack.OK
        again = client.perform(claim(KEY, B))
        assert (again.verdict, again.result) == (Verdict.REPLAY, b"x")
        assert again.age >= 0
        assert other.perform(claim(KEY, B)).verdict is Verdict.REPLAY


def test_an_operator_whose_clock_is_ahead_does_not_shorten_the_retention(
    kind: str, client: Any, raw: RawEtcd, etcd_url: str
) -> None:
    fence = client.perform(claim(KEY)).fence
    client.perform(complete(KEY, fence, retention=24 * HOUR))
    other = KINDS[kind](etcd_url + "?timeout=120", clock=lambda: wall_clock() + 48 * HOUR)
    with contextlib.closing(other):
        assert other.perform(Forget(KEY.id, "cat", "erasure", MINUTE)) is Ack.OK
    [lease] = raw.leases_of(prefix_of(etcd_url))
    assert raw("LeaseTimeToLive", ID=lease).TTL > 23 * 3600
    row = client.perform(Read(KEY.id))
    assert row.expires_at >= row.changed_at + MINUTE


def test_an_operator_can_lengthen_the_retention(client: Any, raw: RawEtcd, etcd_url: str) -> None:
    fence = client.perform(claim(KEY)).fence
    client.perform(Fail(KEY.id, A, fence, 0, 5, MINUTE))
    assert client.perform(Resolve(KEY.id, "ben", "asked", 24 * HOUR, b"by hand")) is Ack.OK
    [lease] = raw.leases_of(prefix_of(etcd_url))
    assert raw("LeaseTimeToLive", ID=lease).TTL >= 24 * 3600 - 60


def test_a_claim_goes_on_if_its_lease_was_revoked_meanwhile(
    client: Any, raw: RawEtcd, etcd_url: str
) -> None:
    """As after a long suspension of the worker: the lease that it would use is over."""
    client.perform(claim(Key("first")))
    for lease in raw.leases_of(prefix_of(etcd_url)):
        raw("LeaseRevoke", ID=lease)
    answer = client.perform(claim(KEY))
    assert answer.verdict is Verdict.WON
    assert client.perform(claim(KEY, B)).verdict is Verdict.BUSY
    assert client.perform(claim(Key("first"), B)).attempt == 2, "its lease is over: a takeover"


def test_a_waiter_is_woken_by_the_end_of_the_lease(
    client: Any, raw: RawEtcd, etcd_url: str
) -> None:
    client.perform(claim(KEY))
    waiting = threading.Thread(target=client.watch, args=(KEY.id, 200.0))
    waiting.start()
    time.sleep(0.1)  # it may watch by now; if not, it finds the key gone
    for lease in raw.leases_of(prefix_of(etcd_url)):
        raw("LeaseRevoke", ID=lease)
    waiting.join(100)
    assert not waiting.is_alive()


def test_a_renewal_that_is_shorter_keeps_the_lease(
    client: Any, raw: RawEtcd, etcd_url: str
) -> None:
    fence = client.perform(claim(KEY, lease=HOUR)).fence
    assert client.perform(Renew(KEY.id, A, fence, MINUTE)) is Ack.OK
    [lease] = raw.leases_of(prefix_of(etcd_url))
    assert raw("LeaseTimeToLive", ID=lease).TTL > 3000


# --- shared leases ----------------------------------------------------------------------------


class Pool:
    def __init__(self) -> None:
        self.now = 1000.0
        self.leases = Leases(lambda: self.now)
        self._granted = 0

    def lease(self, ms: int, least: int = 0, takes: float = 0) -> int:
        since = self.leases.now()
        for _ in range(2):
            found = self.leases.find(ms, since)
            if found:
                return found
            self._granted += 1
            asked = self.leases.now()
            self.now += takes
            self.leases.add(self._granted, asked, ms, max(least, self.leases.seconds(ms)))
        raise AssertionError("a lease that was granted for this request is not used")


def test_a_lease_is_shared_by_requests_that_need_it_about_as_long() -> None:
    pool = Pool()
    assert [pool.lease(30_000) for _ in range(3)] == [1, 1, 1]
    assert pool.lease(60_000) == 2, "it must last longer"
    assert pool.lease(10_000) == 3, "it must not last much longer"


def test_a_shared_lease_lasts_as_long_as_each_request_asked_for() -> None:
    pool = Pool()
    first = pool.lease(30_000)
    pool.now += 0.9
    assert pool.lease(30_000) == first
    pool.now += 0.2
    assert pool.lease(30_000) != first, "less than 30 s are left of it"
    assert pool.leases.seconds(30_000) == 31, "a dead worker's claim lasts a second longer at most"


def test_a_shared_lease_has_so_many_keys_and_no_more() -> None:
    pool = Pool()
    assert {pool.lease(30_000) for _ in range(MOST)} == {1}
    assert pool.lease(30_000) == 2


def test_a_lease_is_used_although_etcd_grants_no_shorter_one() -> None:
    pool = Pool()
    assert [pool.lease(50, least=8) for _ in range(3)] == [1, 1, 1]


def test_a_lease_is_used_although_its_grant_took_long() -> None:
    """A worker counts its deadline from before it asked, and so does the lease."""
    pool = Pool()
    assert pool.lease(30_000, takes=5) == 1


def test_a_lease_that_etcd_does_not_know_is_not_used_again() -> None:
    pool = Pool()
    assert pool.lease(30_000) == 1
    pool.leases.drop(1)
    pool.leases.drop(77)
    assert pool.lease(30_000) == 2


# --- sizes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1_600_000, 3_000_000])
def test_a_result_above_the_request_limit_is_refused_and_the_work_is_done(
    client: Any, size: int
) -> None:
    """etcd refuses the first size itself, and its gRPC server the second."""
    fence = client.perform(claim(KEY)).fence
    with pytest.raises(StoreError, match="max-request-bytes") as caught:
        client.perform(complete(KEY, fence, b"R" * size))
    assert not isinstance(caught.value, StoreUnavailableError)
    assert client.perform(complete(KEY, fence, None)) is Ack.OK


def test_a_large_result_goes_with_its_record(client: Any, raw: RawEtcd, etcd_url: str) -> None:
    fence = client.perform(claim(KEY)).fence
    client.perform(complete(KEY, fence, b"L" * (INLINE + 1)))
    values = f"{prefix_of(etcd_url)}/v/".encode()
    assert raw("Range", key=values, range_end=values + b"\xff", count_only=True).count == 1
    for lease in raw.leases_of(prefix_of(etcd_url)):
        raw("LeaseRevoke", ID=lease)
    assert client.perform(Read(KEY.id)) is None
    assert raw("Range", key=values, range_end=values + b"\xff", count_only=True).count == 0


def test_a_forgotten_large_result_is_deleted(client: Any, raw: RawEtcd, etcd_url: str) -> None:
    fence = client.perform(claim(KEY)).fence
    client.perform(complete(KEY, fence, b"secret" * 1000))
    client.perform(Forget(KEY.id, "cat", "erasure", MINUTE))
    prefix = prefix_of(etcd_url)
    kvs = raw("Range", key=f"{prefix}/".encode(), range_end=f"{prefix}0".encode()).kvs
    assert kvs
    assert not any(b"secret" in kv.value for kv in kvs)


def test_a_sweep_leaves_other_applications_alone(client: Any, raw: RawEtcd, etcd_url: str) -> None:
    prefix = prefix_of(etcd_url)
    raw.put(f"{prefix}x/h/1".encode(), b"theirs")
    client.perform(claim(KEY))
    report, _ = client.perform(Sweep(100))
    assert (report.removed, report.examined) == (0, 1)
    assert raw("Range", key=f"{prefix}x/h/1".encode()).kvs


# --- outages ------------------------------------------------------------------------------------


def test_no_server_is_an_outage_that_says_what_to_check(kind: str) -> None:
    with pytest.raises(StoreUnavailableError, match="check that most members are up"):
        KINDS[kind](f"etcd://127.0.0.1:{free_port()}/x?timeout=0.5").perform(Read(KEY.id))


def test_a_member_of_another_cluster_is_never_believed(
    kind: str, own_server: Callable[..., Any]
) -> None:
    """A wrong URL, or a member that lost its disk and was started as a cluster of its own."""
    ours, other = own_server("etcd"), own_server("etcd")
    hosts = f"127.0.0.1:{ours.port},127.0.0.1:{other.port}"
    client = KINDS[kind](f"etcd://{hosts}/orders?timeout=4")
    with contextlib.closing(client):
        client.perform(claim(KEY))
        found = [one for one in client.doctor() if one.level == "refuse"]
        assert [one.what.partition(":")[2].partition(":")[0] for one in found] == [
            f"{other.port} belongs to another cluster"
        ]
        client.store.router.member = 1
        assert client.perform(claim(KEY, B)).verdict is Verdict.BUSY
        ours.stop()
        with pytest.raises(StoreUnavailableError):
            client.perform(claim(KEY, B))
        assert ours.start() is None
        assert insist(client.perform, claim(KEY, B)).verdict is Verdict.BUSY


def test_a_batch_pauses_once_for_all_of_its_requests(
    own_server: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, their pauses took longer than an election, and all of them failed."""
    server = own_server("etcd")
    client = KINDS["blocking"](server.url + "?timeout=0.5")
    with contextlib.closing(client):
        client.perform(claim(Key("warm")))
        server.stop()
        pauses: list[float] = []
        sleep = time.sleep
        monkeypatch.setattr(time, "sleep", lambda seconds: (pauses.append(seconds), sleep(seconds)))
        answers = client.perform_many([Read(Key(f"key-{number}").id) for number in range(100)])
        monkeypatch.undo()
    assert all(isinstance(answer, StoreUnavailableError) for answer in answers)
    assert 1 <= len(pauses) < 100


def test_a_restarted_server_is_used_again(kind: str, own_server: Callable[..., Any]) -> None:
    server = own_server("etcd")
    client = KINDS[kind](f"{server.url}?timeout=120")
    with contextlib.closing(client):
        fence = client.perform(claim(KEY)).fence
        server.restart()
        assert insist(client.perform, complete(KEY, fence)) is Ack.OK
        assert insist(client.perform, claim(KEY, B)).verdict is Verdict.REPLAY


def test_a_connection_that_falls_silent_is_replaced(kind: str, etcd: Any, etcd_url: str) -> None:
    """gRPC itself would notice it after 15 s; until then every request would be an outage."""
    with Proxy(etcd.port) as proxy:
        client = KINDS[kind](through(etcd_url, proxy.port) + "?timeout=3")
        with contextlib.closing(client):
            client.perform(claim(Key("warm")))
            proxy.arm(Fault("reply", 0, "silence"))
            with pytest.raises(StoreUnavailableError, match="DEADLINE_EXCEEDED"):
                client.perform(claim(KEY))
            assert client.perform(claim(KEY)).verdict is Verdict.WON
            proxy.arm(Fault("reply", 0, "silence"))
            failed, other = client.perform_many([claim(KEY, B), claim(Key("other"))])
            assert isinstance(failed, StoreUnavailableError)
            assert isinstance(other, StoreUnavailableError)
            assert client.perform_many([claim(KEY, B)])[0].verdict is Verdict.BUSY


def test_a_claim_that_was_won_is_answered_so_whatever_other_threads_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Many claims are remembered, one must be forgotten, and at that moment another thread adds its own."""

    class Busy(dict[bytes, Any]):
        def __iter__(self) -> Iterator[bytes]:
            found = super().__iter__()
            other = threading.Thread(target=made._believe, args=(claim(Key("other")), seen))
            other.start()
            other.join(0.2)
            threads.append(other)
            return found

    monkeypatch.setattr(programs, "BELIEVED", 1)
    threads: list[threading.Thread] = []
    made = programs.EtcdPrograms("t", Leases(), wall_clock)
    seen = record_layout.SeenRecord(Row(KEY.id, (), "", State.IN_PROGRESS, 1, 1, A, 0, 0, 0))
    made._believe(claim(Key("first")), seen)
    made._claims = Busy(made._claims)
    made._believe(claim(KEY), seen)
    made._claims = dict(made._claims.items())
    for thread in threads:
        thread.join(60)
    assert len(made._claims) == 1


def test_a_full_cluster_accepts_nothing_and_the_doctor_says_so(
    kind: str, own_server: Callable[..., Any]
) -> None:
    server = own_server("etcd", quota_backend_bytes=str(4 * 1024 * 1024))
    client = KINDS[kind](server.url)
    raw = RawEtcd(server.port)
    with contextlib.closing(client), contextlib.closing(raw):
        with suppress(grpc.RpcError):  # until it is full
            for number in range(100):
                raw.put(b"filler%d" % number, b"f" * 1_000_000)
        with pytest.raises(NoSpaceError, match="alarm disarm"):
            client.perform(claim(KEY))
        refused = [one.what for one in client.doctor() if one.level == "refuse"]
        assert refused == ["alarm NOSPACE: the cluster accepts no writes"]


def test_the_doctor_of_a_single_old_member(client: Any) -> None:
    warned = [one.what for one in client.doctor() if one.level == "warn"]
    assert any("1 voting member" in what for what in warned)
    assert any("3.5.1, which can become inconsistent" in what for what in warned)


@pytest.mark.parametrize(
    "version, faults",
    [
        ("3.4.20", ()),
        ("3.5.2", ("inconsistent", "crash")),
        ("3.5.3", ("crash",)),
        ("3.5.6", ("crash",)),
        ("3.5.7", ()),
        ("3.5.21", ()),
        ("3.6.0", ()),
        ("3.6.0-rc.1", ()),
    ],
)
def test_the_doctor_knows_the_faults_of_versions(version: str, faults: tuple[str, ...]) -> None:
    status = etcd_message("StatusResponse")(version=version, leader=1)
    first, *_ = _member("host:2379", status)
    assert first.level == ("warn" if faults else "ok")
    assert [word for word in ("inconsistent", "crash") if word in first.what] == list(faults)


@pytest.mark.parametrize("compacted", [True, False])
def test_the_doctor_tells_whether_old_revisions_are_compacted(
    kind: str, compacted: bool, monkeypatch: pytest.MonkeyPatch, own_server: Callable[..., Any]
) -> None:
    from twicesafe._engines.etcd import doctor

    monkeypatch.setattr(doctor, "UNCOMPACTED", 5)
    server = own_server("etcd")
    own = KINDS[kind](f"{server.url}?timeout=600")  # the doctor asks once, and does not wait
    with contextlib.closing(own):
        for number in range(5):
            own.perform(claim(Key(f"key-{number}")))
        if compacted:
            etcdctl(server.port, "compact", "4")
        found = [one for one in own.doctor() if "compacted" in one.what]
        assert [one.level for one in found] == ["ok" if compacted else "warn"]


# --- users and TLS --------------------------------------------------------------------------------


@pytest.fixture
def guarded(own_server: Callable[..., Any]) -> Any:
    """A server with users: root, and ann, who may use the prefix orders/."""
    server = own_server("etcd", auth_token="simple")
    for words in (
        ("user", "add", "root:root"),
        ("user", "grant-role", "root", "root"),
        ("role", "add", "orders"),
        ("role", "grant-permission", "orders", "readwrite", "--prefix=true", "orders/"),
        ("user", "add", "ann:p%st"),
        ("user", "grant-role", "ann", "orders"),
        ("auth", "enable"),
    ):
        etcdctl(server.port, *words)
    return server


def test_a_user_with_a_password(kind: str, guarded: Any) -> None:
    place = f"127.0.0.1:{guarded.port}"
    client = KINDS[kind](f"etcd://ann:p%25st@{place}/orders")
    with contextlib.closing(client):
        fence = client.perform(claim(KEY)).fence
        client.store.router._token = "over.1"  # as after five minutes without a request
        assert client.perform(complete(KEY, fence)) is Ack.OK
        assert "p%25st" not in repr(client.store)
        assert "p%st" not in repr(client.store.settings)
    for url, message in {
        f"etcd://ann:wrong@{place}/orders": "refuses the user or the password",
        f"etcd://{place}/orders": "needs a user and a password",
        f"etcd://ann:p%25st@{place}/other": "may not read and write under the prefix",
    }.items():
        with pytest.raises(ConfigurationError, match=message):
            KINDS[kind](url)


def test_waiters_are_woken_after_the_login_of_their_stream_is_over(guarded: Any) -> None:
    """A stream keeps the login that it was opened with: etcd refuses each new waiter on it when that is over."""
    client = BlockingClient(f"etcd://ann:p%25st@127.0.0.1:{guarded.port}/orders")
    listener, watched = client.store.wakeups, list[Key]()

    def wait(key: Key) -> None:
        while client.perform(Read(key.id)).state is State.IN_PROGRESS:
            watched.append(key)
            client.store.watch(key.id, 600.0)

    def waiting(key: Key) -> tuple[int, threading.Thread]:
        fence = client.perform(claim(key, lease=HOUR)).fence
        thread = threading.Thread(target=wait, args=(key,), daemon=True)
        thread.start()
        return fence, thread

    with contextlib.closing(client):
        first, second = Key("first"), Key("second")
        fence, thread = waiting(first)
        until(lambda: listener._stream is not None and listener._waiters, 60)
        stream = listener._stream
        client.perform(complete(first, fence))
        thread.join(60)
        for words in (
            ("user", "delete", "ann"),
            ("user", "add", "ann:p%st"),
            ("user", "grant-role", "ann", "orders"),
        ):
            etcdctl(guarded.port, "--user=root:root", *words)
        fence, thread = waiting(second)
        until(lambda: listener._stream not in (None, stream) and listener._waiters, 60)
        client.perform(complete(second, fence))
        thread.join(60)
        assert not thread.is_alive()
    assert watched.count(second) <= 3, "refused once, then on a new stream"


def test_a_user_where_there_are_none(kind: str, etcd: Any) -> None:
    with pytest.raises(ConfigurationError, match="leave user:password@ out"):
        KINDS[kind](f"etcd://ann:secret@127.0.0.1:{etcd.port}/orders")


def test_tls(kind: str, own_server: Callable[..., Any], tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("no openssl here")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    words = [
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    files = ["-addext", names, "-keyout", str(key), "-out", str(cert)]
    subprocess.run([openssl, *words, *files], check=True, capture_output=True, timeout=60)
    server = own_server("etcd", cert_file=str(cert), key_file=str(key))
    place = f"127.0.0.1:{server.port}/orders"
    client = KINDS[kind](f"etcds://{place}?ca_certs={cert}")
    with contextlib.closing(client):
        assert client.perform(claim(KEY)).verdict is Verdict.WON
    with pytest.raises(ConfigurationError, match="not trusted"):
        KINDS[kind](f"etcds://{place}?timeout=2")
    with pytest.raises(StoreUnavailableError, match="etcds://"):
        KINDS[kind](f"etcd://{place}?timeout=1")


def test_tls_where_there_is_none(kind: str, etcd: Any) -> None:
    with pytest.raises(StoreUnavailableError, match=r"speak TLS \(etcds://\) or not"):
        KINDS[kind](f"etcds://127.0.0.1:{etcd.port}/orders?timeout=2")


# --- URLs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url, message",
    [
        ("etcd:///prefix", "no host and port"),
        ("etcd://host:port/x", "no host and port"),
        ("etcd://a:1,,b:2/x", "no host and port"),
        ("etcd://host/a b", "prefix 'a b' is not valid"),
        ("etcd://host/a//b", "is not valid"),
        ("etcd://user@host/x", "a user needs a password"),
        ("etcd://host/x?timeout=0", "timeout=0.0 is not valid"),
        ("etcd://host/x?ca_certs=ca.pem", "etcds://"),
        ("etcds://host/x?certfile=c.pem", "give both"),
        ("etcds://127.0.0.1/x?ca_certs=/no/such/file", "ca_certs=/no/such/file cannot be read"),
        ("etcd://host/x?tls=1", "no option 'tls'"),
    ],
)
def test_a_wrong_url_says_what_is_right(url: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        EtcdStore.open(url)


# --- processes ------------------------------------------------------------------------------------


def _in_child(receiver: Receiver, results: Any) -> None:
    outcome = receiver.process("shared", lambda: "child")
    own = receiver.process("of the child", lambda: "child")
    results.put((outcome.value, outcome.replayed, own.value))


FORKING = """
import multiprocessing, sys
from tests.stores.test_etcd import _in_child
from twicesafe import Receiver

with Receiver.open(sys.argv[1] + "?timeout=120") as receiver:
    assert receiver.process("shared", lambda: "parent").value == "parent"
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=_in_child, args=(receiver, results))
    child.start()
    assert results.get(timeout=120) == ("parent", True, "child")
    child.join(60)
    assert receiver.process("of the child", lambda: "parent").value == "child"
"""


def test_a_forked_child_uses_the_store_of_its_parent(etcd_url: str) -> None:
    """In a process of its own: gRPC cannot be used after a fork beside threads that are inside of it."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FORKING, etcd_url],
        check=False,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr


def test_waiters_share_one_stream(client: Any) -> None:
    client.perform_many([claim(Key(f"key-{number}")) for number in range(5)])
    store = client.store
    store = store if isinstance(store, EtcdStore) else store.blocking_store()
    threads = [
        threading.Thread(target=store.watch, args=(Key(f"key-{number}").id, 100.0))
        for number in range(5)
    ]
    for thread in threads:
        thread.start()
    until(lambda: len(store.wakeups._waiters) == 5, 60)
    assert sum(thread.name == "twicesafe-etcd-wakeups" for thread in threading.enumerate()) == 1
    for number in range(5):
        key = Key(f"key-{number}")
        row = client.perform(Read(key.id))
        assert row.state is State.IN_PROGRESS
        client.perform(complete(key, row.fence))
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    until(lambda: not store.wakeups._waiters, 60)


@pytest.mark.parametrize("ends", ["refused", "ended"])
def test_waiters_whose_stream_fails_come_back_after_a_pause(ends: str) -> None:
    """A proxy may pass calls and no streams. Then each waiter would ask as fast as it can."""
    did: list[object] = []

    class Closed:
        clear = set = staticmethod(lambda: None)

        def wait(self, seconds: float) -> None:
            did.append(seconds)

    def fails(requests: object) -> Iterator[object]:
        did.append("opened")
        if ends == "refused":
            raise RuntimeError("no streams here")
        return iter(())

    listener = wakeups.WakeupListener(fails)
    listener._closed = Closed()  # type: ignore[assignment]
    woken = threading.Event()
    listener.watch(wakeups.Waiter(b"k", 1, lambda: (did.append("woken"), woken.set())))
    assert woken.wait(60)
    assert did == ["opened", wakeups.RECONNECT_DELAY, "woken"]


@pytest.mark.parametrize("number", [1, -1])
def test_a_stream_that_refuses_a_waiter_is_replaced(number: int) -> None:
    """A refusal names the waiter (etcd 3.5.1) or none (3.4, 3.6)."""
    refusal = etcd_message("WatchResponse")(watch_id=number, created=True, canceled=True)
    cancelled, streams, woken = threading.Event(), list[object](), threading.Event()

    class Refusing:
        def __init__(self, requests: object) -> None:
            streams.append(self)

        def __iter__(self) -> Iterator[object]:
            yield refusal
            cancelled.wait(60)

        cancel = staticmethod(cancelled.set)

    listener = wakeups.WakeupListener(Refusing)
    for opened in (1, 2):
        woken.clear()
        cancelled.clear()
        waiter = wakeups.Waiter(b"k", 1, woken.set)
        listener.watch(waiter)
        assert woken.wait(60)
        listener.unwatch(waiter)
        assert cancelled.is_set()
        assert len(streams) == opened


def test_a_listener_that_is_closed_does_not_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "RECONNECT_DELAY", 3600.0)
    opened, woken = threading.Event(), threading.Event()

    class Ended:
        def __init__(self, requests: object) -> None:
            opened.set()

        def __iter__(self) -> Iterator[object]:
            return iter(())

        def cancel(self) -> None:
            """Like a stream of grpc: it has ended already."""

    listener = wakeups.WakeupListener(Ended)
    listener.watch(wakeups.Waiter(b"k", 1, woken.set))
    assert opened.wait(60)
    listener.close()
    assert woken.wait(60)
