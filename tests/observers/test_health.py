"""Health: thresholds, each with a reason and a next step; from Python, over HTTP and on the command line."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.receiver.bench import Bench, Counter
from tests.receiver.faults import AsyncFaultyStore, FaultyStore, Outage
from twicesafe import AsyncReceiver, Breaker, ConfigurationError, Key, Receiver, State
from twicesafe import events as ev
from twicesafe._core.health import Recent, Signs, judge
from twicesafe.health import Thresholds, health_app, wsgi_health_app
from twicesafe.observers._activity import APART, LATELY, Activity
from twicesafe.stores import Stats
from twicesafe.stores.memory import AsyncMemoryStore, MemoryStore

QUIET: dict[str, Any] = {
    "seconds": 300.0,
    "deliveries": 100,
    "duplicates": 2,
    "conflicts": 0,
    "unprotected": 0,
    "too_late": 0,
    "oldest_share": 0.1,
    "store_p99": 0.01,
}


def stats(**changes: Any) -> Stats:
    given: dict[str, Any] = {
        "by_state": {State.COMPLETED: 10},
        "stuck": 0,
        "expired": 0,
        "oldest_in_progress": None,
        "size": 1000,
    }
    return Stats(**(given | changes))


def signs(recent: dict[str, Any] | None = None, **changes: Any) -> Signs:
    lately = Recent(**(QUIET | (recent or {})))
    given: dict[str, Any] = {"answered_in": 0.001, "stats": stats(), "recent": lately}
    return Signs(**(given | changes))


def test_a_quiet_receiver_is_ok():
    health = judge(signs(), Thresholds(max_bytes=10_000))
    assert health.status == "ok"
    assert {check.status for check in health.checks} == {"ok"}


@pytest.mark.parametrize(
    "name, seen, status, step",
    [
        ("store", {"answered_in": None, "error": "refused"}, "failing", "network"),
        ("held", {"stats": stats(by_state={State.HELD: 1})}, "degraded", "--state held"),
        ("parked", {"stats": stats(by_state={State.PARKED: 1})}, "degraded", "--state parked"),
        ("size", {"stats": stats(size=9_000)}, "degraded", "sweep"),
        ("size", {"stats": stats(size=10_000)}, "failing", "sweep"),
        ("sweep", {"oldest_expired": 3601.0}, "degraded", "twicesafe sweep"),
        ("store_p99", {"recent": {"store_p99": 1.0}}, "degraded", "load"),
        ("duplicates", {"recent": {"duplicates": 60}}, "degraded", "sender"),
        ("conflicts", {"recent": {"conflicts": 30}}, "degraded", "time-out"),
        ("window", {"recent": {"oldest_share": 0.95}}, "degraded", "retention"),
        ("window", {"recent": {"too_late": 1}}, "degraded", "retention"),
        ("unprotected", {"recent": {"unprotected": 1}}, "degraded", "twice"),
    ],
)
def test_what_is_wrong_says_what_to_do_next(
    name: str, seen: dict[str, Any], status: str, step: str
):
    health = judge(signs(**seen), Thresholds(max_bytes=10_000))
    assert health.status == status
    assert health[name].status == status
    assert health[name].reason
    assert step in health[name].next_step
    others = [check for check in health.checks if check.name != name]
    assert all(check.status in ("ok", "unknown") for check in others)


@pytest.mark.parametrize(
    "limits",
    [
        Thresholds(max_bytes=10_000, held=1),
        Thresholds(max_bytes=10_000, duplicates=1.0, held=5),
    ],
)
def test_thresholds_are_yours(limits: Thresholds):
    found = signs(
        {"duplicates": 60 if limits.duplicates == 1 else 1}, stats=stats(by_state={State.HELD: 1})
    )
    assert judge(found, limits).status == "ok"


def test_a_few_deliveries_are_no_share():
    assert judge(signs({"deliveries": 19, "duplicates": 19}), Thresholds()).status == "ok"


def test_the_receiver_judges_its_store_and_its_activity(bench: Bench):
    receiver = bench.new_receiver(observers=[bench.seen.append])
    counter = Counter()
    for _ in range(30):
        bench.call(receiver.process, "k", bench.in_mode(counter.quick))
    health = bench.call(receiver.health)
    assert health.status == "degraded"
    assert health["duplicates"].value == pytest.approx(29 / 30)
    assert health["store"].status == "ok"
    assert health["store_p99"].value is not None
    assert bench.call(receiver.health, Thresholds(duplicates=1)).status == "ok"
    assert bench.events(ev.StoreSampled), "and observers get what it counted"


def test_a_receiver_without_observers_judges_what_is_in_the_store(bench: Bench):
    receiver = bench.new_receiver(observers=[])
    bench.call(receiver.process, "k", bench.in_mode(Counter().quick))
    health = bench.call(receiver.health)
    assert health.status == "ok"
    assert health["duplicates"].status == "unknown"
    assert "observers" in health["duplicates"].reason


def test_a_store_that_does_not_answer_is_failing(bench: Bench):
    bench.process("k", Counter().quick)
    bench.store.before = Outage("read")
    health = bench.health()
    assert health.status == "failing"
    assert health["held"].status == "unknown"


def test_activity_forgets_what_is_long_ago():
    now = [0.0]
    activity = Activity(lambda: now[0])
    key = Key("k")
    activity(ev.Replayed(key, 95.0, window=100.0, store=0.3))
    activity(ev.Started(key, 1, None, 0.001))
    first = activity.recent()
    assert (first.deliveries, first.duplicates, first.oldest_share) == (2, 1, 0.95)
    assert first.store_p99 == 0.5
    now[0] += APART
    assert activity.recent().deliveries == 2
    now[0] += LATELY + 1
    activity(ev.Started(key, 2, None, 0.001))
    later = activity.recent()
    assert (later.deliveries, later.duplicates) == (1, 0)
    assert later.seconds == pytest.approx(LATELY + 1)
    assert later.store_p99 == 0.001


# --- over HTTP ---------------------------------------------------------------------------------


def wsgi(app: Any, path: str, method: str = "GET") -> tuple[str, dict[str, Any]]:
    said: list[str] = []
    body = app(
        {"PATH_INFO": path, "REQUEST_METHOD": method}, lambda status, fields: said.append(status)
    )
    return said[0], json.loads(b"".join(body))


async def asgi(app: Any, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": method, "path": path}, None, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_wsgi_probes():
    with Receiver.open("memory://", observers=[lambda event: None]) as receiver:
        app = wsgi_health_app(receiver)
        assert wsgi(app, "/ready") == ("200 OK", {"ready": True})
        status, said = wsgi(app, "/twicesafe/health")
        assert (status, said["status"]) == ("200 OK", "ok")
        assert {check["name"] for check in said["checks"]} >= {"store", "held", "window"}
        assert wsgi(app, "/")[0] == "404 Not Found"
        assert wsgi(app, "/health", "POST")[0] == "405 Method Not Allowed"


def test_a_probe_by_head_has_no_body_and_a_refusal_names_what_is_allowed():
    with Receiver.open("memory://") as receiver:
        fields: dict[str, str] = {}
        app, start = wsgi_health_app(receiver), lambda _, some: fields.update(some)
        assert app({"PATH_INFO": "/ready", "REQUEST_METHOD": "HEAD"}, start) == [b""]
        assert fields["content-length"] == "16"
        app({"PATH_INFO": "/ready", "REQUEST_METHOD": "POST"}, start)
        assert fields["allow"] == "GET, HEAD"


async def test_asgi_probes_of_both_receivers():
    async with AsyncReceiver.open("memory://") as receiver:
        app = health_app(receiver)
        assert await asgi(app, "/ready") == (200, {"ready": True})
        assert (await asgi(app, "/health"))[1]["status"] == "ok"
        assert (await asgi(app, "/nothing"))[0] == 404
    blocking = Receiver.open("memory://")
    app = health_app(blocking)
    assert (await asgi(app, "/health"))[0] == 200
    assert (await asgi(app, "/ready"))[0] == 200
    blocking.close()


def probe(bench: Bench, path: str) -> tuple[int, dict[str, Any]]:
    if bench.is_async:
        return bench._wait(asgi(health_app(bench.receiver), path))
    line, body = wsgi(wsgi_health_app(bench.receiver), path)
    return int(line.split()[0]), body


@pytest.mark.parametrize("path, said", [("/ready", "reason"), ("/health", "checks")])
def test_a_probe_says_503_while_the_store_is_down(bench: Bench, path: str, said: str):
    bench.process("k", Counter().quick)
    bench.store.before = Outage("read")
    status, body = probe(bench, path)
    assert status == 503
    assert body[said]


def test_a_fallback_that_answers_keeps_the_service_in_rotation(bench: Bench):
    """Before the circuit opens, too: a service that gets no requests makes no claim that could open it."""
    other: Any = FaultyStore(MemoryStore())
    if bench.is_async:
        other = AsyncFaultyStore(AsyncMemoryStore(MemoryStore()))
    bench.receiver = bench.new_receiver(bench.store, breaker=Breaker(fallback=other))
    bench.store.before = Outage("read")
    assert probe(bench, "/ready") == (200, {"ready": True})
    status, body = probe(bench, "/health")
    assert (status, body["status"]) == (200, "degraded")
    assert "the fallback store answers" in body["checks"][0]["reason"]
    other.before = Outage("read")
    assert probe(bench, "/ready")[0] == probe(bench, "/health")[0] == 503


def test_probes_count_the_records_at_a_bounded_pace(monkeypatch: pytest.MonkeyPatch):
    with Receiver.open("memory://") as receiver:
        counted = []
        ask = receiver._together
        monkeypatch.setattr(receiver, "_together", lambda *asks: counted.append(1) or ask(*asks))
        app = wsgi_health_app(receiver)
        for _ in range(5):
            assert wsgi(app, "/health")[0] == "200 OK"
    assert len(counted) == 1


def test_the_wsgi_form_is_for_blocking_receivers():
    with pytest.raises(ConfigurationError, match="health_app"):
        wsgi_health_app(AsyncReceiver.open("memory://"))  # type: ignore[arg-type]


def test_a_websocket_is_ignored():
    app = health_app(Receiver.open("memory://"))
    asyncio.run(app({"type": "lifespan"}, None, None))


def test_an_expired_record_is_as_late_as_its_retention():
    old = datetime.fromtimestamp(0, UTC)
    from twicesafe.receiver._operator_flows import sampled

    assert sampled(stats(oldest_expired=old, expired=1)).oldest_expired > 1e9
