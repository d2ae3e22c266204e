"""Numbers of services, read from their metrics: by a dashboard that receives nothing itself."""

from __future__ import annotations

from http.client import BadStatusLine, IncompleteRead

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from tests.dashboard.conftest import ALL, Visitor, words
from twicesafe import Key, Receiver
from twicesafe import events as ev
from twicesafe.dashboard._app import Dashboard
from twicesafe.dashboard._backend import Backend
from twicesafe.dashboard._metrics import ServiceMetrics, read_metrics
from twicesafe.dashboard._security import LOOPBACK, SecurityMiddleware
from twicesafe.dashboard._settings import DashboardSettings
from twicesafe.errors import ConfigurationError
from twicesafe.health import Thresholds
from twicesafe.observers import PrometheusObserver
from twicesafe.observers._activity import Activity

KEY = Key("k")
URL = "http://me:secret@shop:9100/metrics"


class Service:
    """A service that counts, and its page."""

    def __init__(self, scope: bool = False) -> None:
        self.registry = CollectorRegistry()
        labelled = (lambda key: 'a"b}{ ,c=\\') if scope else None
        self.observer = PrometheusObserver(registry=self.registry, scope=labelled)
        self.page = ""

    def receive(self, *events: ev.Event) -> None:
        for event in events:
            self.observer(event)
        self.page = generate_latest(self.registry).decode()


def events(first: int, ages: tuple[float, ...], late: int = 0) -> list[ev.Event]:
    from twicesafe import Cause

    return [
        *(ev.Started(KEY, 1, None, 0.002) for _ in range(first)),
        *(ev.Replayed(KEY, age, window=100.0, store=0.001) for age in ages),
        *(ev.Started(KEY, 1, Cause.RETENTION_EXPIRED, 0.002) for _ in range(late)),
    ]


@pytest.mark.parametrize("scope", [False, True])
def test_a_page_says_what_the_process_itself_knows(scope: bool):
    given = events(7, (0.5, 30.0, 99.0), late=2)
    service, activity = Service(scope), Activity()
    service.receive(*given)
    for event in given:
        activity(event)
    metrics = ServiceMetrics([URL], lambda _: service.page)
    assert metrics.ages() == activity.ages()
    assert metrics.ages().late == 2


def test_rates_begin_with_the_first_look_and_survive_a_restart():
    now = [0.0]
    one, two = Service(), Service()
    one.receive(*events(1000, ()))
    two.receive(*events(500, (1.0,)))
    pages = {"http://a/metrics": one, "http://b/metrics": two}
    metrics = ServiceMetrics(list(pages), lambda url: pages[url].page, lambda: now[0])
    assert metrics.history.recent().deliveries == 0  # what came before is not recent
    one.receive(*events(10, (5.0, 5.0)))
    pages["http://b/metrics"] = two = Service()  # restarted
    two.receive(*events(3, ()))
    now[0] += 60
    metrics.look()
    recent = metrics.history.recent()
    assert (recent.deliveries, recent.duplicates, recent.seconds) == (15, 2, 60)
    (only,) = metrics.history.course()
    assert only.outcomes == {"first": 13, "replayed": 2}
    assert metrics.origin == "of 2 services"


def test_a_page_that_does_not_answer_is_said_without_its_password():
    def fetch(_: str) -> str:
        raise OSError("connection refused")

    metrics = ServiceMetrics([URL], fetch)
    assert "connection refused" in metrics.problem
    assert "secret" not in metrics.problem
    service = Service()
    service.receive(*events(1, ()))
    metrics._fetch = lambda _: service.page
    metrics.look()
    assert metrics.problem == ""


@pytest.mark.parametrize("problem", [BadStatusLine("SSH-2.0"), IncompleteRead(b""), TimeoutError()])
def test_what_does_not_speak_http_is_a_problem_like_any_other(problem: Exception):
    """Errors of http.client are no OSErrors: the dashboard did not start, or its thread ended unseen."""

    def fetch(_: str) -> str:
        raise problem

    metrics = ServiceMetrics([URL], fetch)
    assert "does not answer (" in metrics.problem
    assert "()" not in metrics.problem


@pytest.mark.parametrize(
    "page",
    [
        "", "<html>", "twicesafe_deliveries_total", "twicesafe_deliveries_total{", "\0" * 100,
        'twicesafe_store_seconds_bucket{operation="claim",le="9"} 1', "twicesafe_other_total 1",
    ],
)  # fmt: skip
def test_what_is_no_page_of_ours_counts_nothing(page: str):
    assert all(not any(cell) for cell in read_metrics(page).values())


@pytest.mark.parametrize("number", ["many", "NaN", "+Inf"])
def test_a_number_that_is_none_is_a_problem(number: str):
    page = f'twicesafe_deliveries_total{{outcome="first"}} {number}'
    metrics = ServiceMetrics([URL], lambda _: page)
    assert "could not convert" in metrics.problem or "is no count" in metrics.problem
    assert metrics.history.recent().deliveries == 0


async def test_the_overview_shows_them(receiver: Receiver):
    service = Service()
    service.receive(*events(7, (0.5, 30.0, 99.0), late=1))
    metrics = ServiceMetrics([URL], lambda _: service.page)
    with Receiver(receiver.store) as plain:
        backend = Backend(plain, Thresholds(), None, metrics)
        visitor = Visitor(SecurityMiddleware(Dashboard(backend, lambda _: ALL).app(), LOOPBACK))
        page = words(await visitor.get("/"))
        await visitor.client.aclose()
    assert "the window covers 75 % of the 4 duplicates seen" in page
    assert "of your service" in page
    assert "Recent trouble" not in page


@pytest.mark.parametrize("url", ["shop:9100", "file:///etc/passwd", "http://", "ftp://x/metrics"])
def test_what_is_no_url_of_metrics_is_refused(url: str):
    with pytest.raises(ConfigurationError, match="metrics="):
        DashboardSettings(metrics=(url,))


def test_passwords_of_metrics_are_not_shown():
    from twicesafe.configuration import resolve

    found = resolve("dashboard", given={"dashboard": {"metrics": [URL]}})
    assert "secret" not in str(list(found.shown()))
