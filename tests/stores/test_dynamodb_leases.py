"""Leases on DynamoDB, which compares no times: workers whose clocks are wrong, and what a watcher concludes.

The times here are given, so nothing waits. `TestWatchedOnly` and `TestDynamodb` in `tests.conformance` hold
the rest of the rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from email.utils import formatdate

import pytest

from twicesafe import Key
from twicesafe._core.protocol import Ack, ClaimRequest, Complete, Read, Renew, Verdict
from twicesafe._engines.dynamodb import DynamodbStore
from twicesafe._engines.dynamodb.client import read_date
from twicesafe._engines.dynamodb.settings import Settings
from twicesafe._engines.versioned.lease_watch import MOST, GivenClock, LeaseWatch, ServiceClock
from twicesafe._engines.versioned.record import Versioned
from twicesafe._values.clocks import wall_clock
from twicesafe._values.records import Row, State
from twicesafe.testing import FakeClock

KEY = Key("order-7", scope=("shop",))
A, B = b"a" * 16, b"b" * 16
LEASE, HOUR = 30_000, 3_600_000


class WrongClock(GivenClock):
    """The wall clock of a worker that is wrong; its steady clock is right, as all steady clocks are."""

    def __init__(self, clock: FakeClock, off: int) -> None:
        self.off = off
        self.steady = clock
        self.now = lambda: clock() + self.off


class Workers:
    """Workers on one table, each with a wall clock of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = FakeClock(wall_clock())
        self.opened: list[DynamodbStore] = []

    def worker(self, off: int = 0, skew: str = "5") -> DynamodbStore:
        settings = Settings.of(f"{self.url}&skew={skew}")
        self.opened.append(DynamodbStore(settings, WrongClock(self.clock, off)))
        return self.opened[-1]


@pytest.fixture
def workers(dynamodb_url: str) -> Iterator[Workers]:
    made = Workers(dynamodb_url)
    yield made
    for store in made.opened:
        store.close()


def claim(owner: bytes, lease: int = LEASE) -> ClaimRequest:
    return ClaimRequest(KEY, owner, lease)


# --- what one process concludes about another ---------------------------------------------------


def test_at_first_sight_a_lease_is_over_after_its_margin(workers: Workers):
    workers.worker().perform(claim(A))
    workers.clock.advance(ms=LEASE + 4999)
    assert workers.worker().perform(claim(B)).wait == 1
    workers.clock.advance(ms=1)
    assert workers.worker().perform(claim(B)).verdict is Verdict.WON


@pytest.mark.parametrize("off", [-4999, 0, 4999])
def test_clocks_that_differ_by_less_than_the_margin_never_end_a_live_lease(
    workers: Workers, off: int
):
    workers.worker(off=-off).perform(claim(A))
    watcher = workers.worker(off=0)
    for _ in range(LEASE // 1000 - 1):
        workers.clock.advance(ms=1000)
        assert workers.worker(off=0).perform(claim(B)).verdict is Verdict.BUSY
        assert watcher.perform(claim(B)).verdict is Verdict.BUSY


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_a_watcher_needs_no_clock_of_the_owner(workers: Workers, off: int):
    """The owner's clock is behind or ahead by an hour; the watcher trusts none (``skew=3600``)."""
    owner, watcher = workers.worker(off), workers.worker(skew="3600")
    won = owner.perform(claim(A))
    assert watcher.perform(claim(B)).wait <= LEASE
    for _ in range(3):  # each renewal is a new version, to be watched for a whole lease
        workers.clock.advance(ms=LEASE - 1)
        assert owner.perform(Renew(KEY.id, A, won.fence, LEASE)) is Ack.OK
        assert watcher.perform(claim(B)).verdict is Verdict.BUSY
    workers.clock.advance(ms=LEASE - 1)
    assert watcher.perform(claim(B)).wait == 1
    workers.clock.advance(ms=1)
    taken = watcher.perform(claim(B))
    assert (taken.verdict, taken.attempt) == (Verdict.WON, 2)
    assert owner.perform(Complete(KEY.id, A, won.fence, HOUR, b"zombie")) is Ack.LOST


def test_a_renewal_counts_although_the_owners_clock_went_back(workers: Workers):
    """The lease's end does not move, so only the version tells the watcher that the owner is alive."""
    owner, watcher = workers.worker(), workers.worker(skew="3600")
    won = owner.perform(claim(A))
    before = owner.perform(Read(KEY.id))
    watcher.perform(claim(B))
    owner.leases.clock.off = -HOUR  # type: ignore[union-attr]
    for _ in range(3):
        workers.clock.advance(ms=LEASE - 1)
        assert owner.perform(Renew(KEY.id, A, won.fence, LEASE)) is Ack.OK
        assert watcher.perform(claim(B)).verdict is Verdict.BUSY
    assert owner.perform(Read(KEY.id)) == before


def test_a_clock_wrong_by_more_than_the_margin_costs_a_run_and_never_a_second_result(
    workers: Workers,
):
    """What skew= promises, and what it cannot: both handlers run; one result is recorded."""
    owner, hasty = workers.worker(), workers.worker(off=HOUR)
    won = owner.perform(claim(A))
    taken = hasty.perform(claim(B))
    assert taken.verdict is Verdict.WON
    assert taken.fence > won.fence
    assert owner.perform(Complete(KEY.id, A, won.fence, HOUR, b"first")) is Ack.LOST
    assert hasty.perform(Complete(KEY.id, B, taken.fence, HOUR, b"second")) is Ack.OK
    assert owner.perform(claim(A)).result == b"second"


# --- the time of the service -----------------------------------------------------------------


@pytest.mark.parametrize("off", [-HOUR, 0, HOUR])
def test_workers_whose_clocks_are_wrong_agree_by_the_dates_of_replies(dynamodb_url: str, off: int):
    """On the real path: opening reads the Date, and the first claim already uses it."""
    wrong = ServiceClock(wall=lambda: wall_clock() + off)
    store = DynamodbStore(Settings.of(f"{dynamodb_url}"), wrong)
    before = wall_clock()
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    row = store.perform(Read(KEY.id))
    after = wall_clock()
    assert before - 1500 <= row.changed_at <= after + 1500
    assert won.fence == row.changed_at * 1000
    store.close()


class Service:
    """A service whose time is `ahead` of the worker's; replies take `delay` ms."""

    def __init__(self, ahead: int, delay: int) -> None:
        self.clock, self.ahead, self.delay = FakeClock(), ahead, delay

    def reply(self, to: ServiceClock) -> None:
        sent = self.clock()
        self.clock.advance(ms=self.delay // 2)
        date = formatdate((self.clock() + self.ahead) // 1000, usegmt=True)
        self.clock.advance(ms=self.delay - self.delay // 2)
        read_date(to, date, sent)


@pytest.mark.parametrize("ahead", [-HOUR, -700, 0, 700, HOUR])
@pytest.mark.parametrize("delay", [1, 400, 5000])
def test_a_clock_is_never_off_by_more_than_a_second_and_a_round_trip(ahead: int, delay: int):
    service = Service(ahead, delay)
    clock = ServiceClock(wall=service.clock, steady=service.clock)
    for _ in range(20):
        service.reply(clock)
        assert abs(clock.now() - service.clock() - ahead) <= 1000 + delay
        service.clock.advance(ms=333)


def test_setting_the_wall_clock_changes_nothing():
    service, walls = Service(0, 10), [0]
    clock = ServiceClock(wall=lambda: service.clock() + walls[0], steady=service.clock)
    service.reply(clock)
    before = clock.now()
    walls[0] = HOUR
    assert clock.now() == before


@pytest.mark.parametrize("date", [None, "", "not a date"])
def test_a_reply_without_a_date_is_no_error(date: str | None):
    service = Service(0, 10)
    clock = ServiceClock(wall=service.clock, steady=service.clock)
    read_date(clock, date, service.clock())
    assert clock.now() == service.clock()


# --- what is remembered ------------------------------------------------------------------------


def item(number: int, revision: int = 1) -> Versioned:
    id_ = number.to_bytes(32, "big")
    row = Row(id_, (), "k", State.IN_PROGRESS, 1, 1, A, 2 * HOUR, 0, 0)
    return Versioned(row, revision, LEASE)


def test_a_process_remembers_a_bounded_number_of_versions():
    clock = FakeClock(0)
    leases = LeaseWatch(GivenClock(clock), 3600)
    for number in range(MOST + 10):
        leases.saw(item(number))
    assert len(leases._sights) == MOST
    clock.advance(ms=LEASE)
    forgotten = leases.judged(item(0), clock())
    kept = leases.judged(item(MOST), clock())
    assert (forgotten.lease_until, kept.lease_until) == (clock() + LEASE, clock())


def test_another_version_is_watched_from_its_own_first_sight():
    clock = FakeClock(0)
    leases = LeaseWatch(GivenClock(clock), 3600)
    leases.saw(item(1))
    clock.advance(ms=LEASE)
    assert leases.judged(item(1, revision=2), clock()).lease_until == clock() + LEASE
