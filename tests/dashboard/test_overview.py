"""The overview as data: what it says of counts, rates, ages and trouble, and what it says when there is nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.dashboard.test_timeline import record
from twicesafe import Key, State
from twicesafe import events as ev
from twicesafe._core.health import Signs, Thresholds, judge
from twicesafe.dashboard._charts import SIZES, Bar, Drawing, Part, draw, share_bar
from twicesafe.dashboard._overview import Overview, OverviewData, ReceivedCounts, overview
from twicesafe.observers._activity import SLICE, Activity
from twicesafe.stores import Depth, Stats

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
DAY = 86400.0


def stats(**given: Any) -> Stats:
    fields = {"by_state": {State.COMPLETED: 97, State.HELD: 3}, "stuck": 0, "expired": 0}
    return Stats(**{**fields, "oldest_in_progress": None, **given})


def look(**given: Any) -> OverviewData:
    counted = given.pop("stats", stats())
    health = judge(Signs(answered_in=0.001, stats=counted), Thresholds())
    fields = {
        "now": NOW,
        "health": health,
        "stats": counted,
        "counted_at": NOW,
        "newest": [],
        "window": DAY,
    }
    return OverviewData(**{**fields, **given})


def figure(page: Overview, title: str) -> Any:
    return next(each for each in page.figures if each.title.startswith(title))


def tiles(page: Overview) -> dict[str, str]:
    return {tile.label: tile.value for tile in page.tiles}


def test_what_waits_for_an_operator_comes_first_with_its_path():
    depth = Depth(5, 3.0, 7, 2, 0, 1)
    page = overview(look(stats=stats(stuck=4), depth=depth))
    assert [(task.count, task.title, task.path) for task in page.tasks] == [
        ("3", "held", "keys?state=held"),
        ("4", "stuck", "keys?stuck=yes"),
        ("2", "parked lanes", "outbox"),
    ]
    assert (page.status, page.headline) == ("degraded", "1 check needs a look")
    assert page.checks[0].name == "held"
    assert tiles(page)["Outbox pending"] == "5"


def test_an_empty_store_says_so():
    page = overview(look(stats=stats(by_state={})))
    assert (page.headline, page.tasks, page.states, page.share_bar) == (
        "All checks pass",
        (),
        (),
        "",
    )
    assert "too few records" in figure(page, "New keys").empty


def test_a_store_that_does_not_answer():
    health = judge(Signs(answered_in=None, error="no route"), Thresholds())
    page = overview(look(health=health, stats=None))
    assert (page.status, page.counted) == ("failing", "not counted")
    assert "no route" in page.checks[0].reason


def test_new_keys_from_the_records_alone():
    newest = [
        record(
            created_at=NOW - timedelta(seconds=n),
            changed_at=NOW - timedelta(seconds=n - 0.2),
            result_bytes=9,
        )
        for n in range(1, 301)
    ]
    page = overview(look(newest=newest, stats=stats(size=100_000)))
    assert tiles(page)["New keys"] == "1.0/s"
    assert tiles(page)["Claim to answer"] == "200 ms"
    assert tiles(page)["Store size"] == "100 kB"
    drawn = figure(page, "New keys")
    assert len(drawn.svgs) == len(SIZES)
    assert "10s" in drawn.note
    assert sum(int(n) for n in re.findall(r"UTC: (\d+) done", drawn.svgs[0])) == 300


def test_records_of_twicesafe_itself_are_no_new_keys():
    """A follower's record is old, and changes with every pass."""
    newest = [
        record(
            created_at=NOW - timedelta(minutes=n), changed_at=NOW - timedelta(minutes=n, seconds=-1)
        )
        for n in range(10)
    ]
    began = NOW - timedelta(days=400)
    follower = record(scope=("twicesafe.follow", "eu"), created_at=began, changed_at=NOW)
    page = overview(look(newest=[follower, *newest]))
    assert page.figures == overview(look(newest=newest)).figures
    assert tiles(page) == tiles(overview(look(newest=newest)))


def test_without_observers_the_page_says_why_there_are_no_duplicates():
    page = overview(look())
    assert "observers=[LogObserver()]" in page.missing
    assert "window of 1d" in page.missing
    assert [each.title for each in page.figures] == ["New keys"]
    assert page.trouble is None


def seen(*events: ev.Event) -> Activity:
    now = [1000.0]
    activity = Activity(lambda: now[0], lambda: 1_000_000)
    for event in events:
        activity(event)
    now[0] += SLICE
    activity.course()
    now[0] += SLICE
    return activity


def test_ages_of_duplicates_against_the_window():
    key = Key("k")
    activity = seen(*(ev.Replayed(key, age * DAY, window=DAY) for age in (0.001, 0.001, 0.3, 0.97)))
    page = overview(look(seen=ReceivedCounts.of(activity)))
    drawn = figure(page, "Age of duplicates")
    assert "covers 100 % of the 4 duplicates" in drawn.note
    titles = re.findall(r"<title>(\d+) duplicates? ([^<]*)</title>", drawn.svgs[0])
    assert [(n, said) for n, said in titles if n != "0"] == [
        ("2", "aged 0 to 14m"),
        ("1", "aged 6h to 12h"),
        ("1", "aged 23h to 1d"),
    ]


def test_duplicates_after_the_window_are_counted_apart():
    made = ReceivedCounts.of(seen())
    ages = made.ages._replace(counts=[90, *made.ages.counts[1:]], late=10)
    page = overview(look(seen=replace(made, ages=ages)))
    drawn = figure(page, "Age of duplicates")
    assert "covers 90 % of the 100 duplicates" in drawn.note
    assert "10 duplicates after the window" in drawn.svgs[0]
    assert 'class="limit"' in drawn.svgs[0]


def test_deliveries_by_outcome():
    key = Key("k")
    events = [
        *(ev.Started(key, 1, None) for _ in range(30)),
        *(ev.Replayed(key, 5.0) for _ in range(15)),
    ]
    page = overview(look(seen=ReceivedCounts.of(seen(*events))))
    drawn = figure(page, "Deliveries")
    assert "30 first deliveries, 15 duplicates that got the recorded answer" in drawn.svgs[0]
    assert tiles(page)["Duplicates"] == "33.3 %"


def test_recent_trouble_is_newest_first_and_short():
    key = Key("k", absolute=True)
    events = [ev.Failed(key, f"Error{n}", n, False) for n in range(20)]
    page = overview(look(seen=ReceivedCounts.of(seen(*events, ev.LeaseLost(key)))))
    assert page.trouble is not None
    assert len(page.trouble) == 8
    assert page.trouble[0].title == "A late answer was refused"
    assert page.trouble[0].path == f"keys/{key.id.hex()}"
    assert page.trouble[1].title == "Attempt 19 failed: Error19"


# --- charts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("amounts", [[0.0], [1e-9, 5], [3, 7e12], [1] * 400])
@pytest.mark.parametrize("logarithmic", [False, True])
def test_a_chart_stays_in_its_frame(amounts: list[float], logarithmic: bool):
    each = 1 / len(amounts)
    bars = [Bar(n * each, each, (Part("first", a),), f"{a}") for n, a in enumerate(amounts)]
    for svg, size in zip(
        draw(Drawing(bars=bars, ticks=[], logarithmic=logarithmic), "x"), SIZES, strict=True
    ):
        for x, y, wide, high in re.findall(
            r'x="([\d.-]+)" y="([\d.-]+)" width="([\d.]+)" height="([\d.]+)"', svg
        ):
            assert 0 <= float(x) <= float(x) + float(wide) <= size.wide + 1
            assert -1 <= float(y) <= float(y) + float(high) <= size.high


def test_words_of_a_chart_are_escaped_and_nothing_is_styled_inline():
    bars = [Bar(0, 1, (Part("first", 1),), "<script>", "<b>")]
    svg = draw(Drawing(bars=bars, ticks=[(0, "<i>")], limit=0.5, limit_words="<u>"), "<title>")[0]
    assert not re.search(r"<(script|b|i|u)>", svg)
    assert "style" not in svg


def test_every_state_is_seen_in_the_bar_of_shares():
    svg = share_bar([Part("a", 1), Part("b", 1_000_000), Part("c", 0)], "x")
    assert svg.count("<rect") == 2
    assert min(float(w) for w in re.findall(r'<rect[^>]* width="([\d.]+)"', svg)) >= 4
