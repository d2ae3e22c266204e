"""``twicesafe relay`` and ``twicesafe outbox …``: publish pending messages, handle parked lanes.

The relay runs until SIGTERM or Ctrl-C. Then it finishes the current publishes, returns its leases and
exits with 0. You can run several relays. With ``--once`` it exits with 3 if the broker or the store
does not answer; unpublished messages wait for the next run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from .._core.outbox.requests import Depth, ParkedLane
from .._values.quantities import duration_text
from ..errors import ConfigurationError, UsageError
from ..outbox import Outbox, OutboxRelay
from ..stores._urls import mask
from .exits import NO, CommandEnded
from .metrics import MetricsOption, metrics_page
from .options import ByOption, ConfigOption, JsonOption, StoreOption, WhyOption, duration, flag
from .output import Screen, ago, counted, shortened, table, visible
from .settings import expect_store, settle, settled
from .stopping import interruptible

__all__ = ["parked", "relay", "relays", "retry", "skip", "status"]

LANE_CELLS = 32
"""Length of a lane name. The table never cuts it: `retry` and `skip` need the full name."""

LaneArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="LANE", help="Lane names, from `outbox parked`."),
]
AllOption = Annotated[bool, flag("--all", help="Every parked lane.")]


def relay(
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="URL",
            help="The broker: an http(s), redis, nats, amqp, kafka or sqs URL.",
            show_default=False,
        ),
    ] = None,
    once: Annotated[
        bool,
        flag("--once", help="Publish pending messages, then exit."),
    ] = False,
    batch: Annotated[
        int | None,
        typer.Option(
            "--batch", metavar="N", help="Messages in flight, at most.", show_default="500"
        ),
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(
            "--lease",
            metavar="DURATION",
            parser=duration(),
            help="Lease of a relay's share; if it is not renewed, another relay takes over.",
            show_default="10s",
        ),
    ] = None,
    max_attempts: Annotated[
        int | None,
        typer.Option(
            "--max-attempts",
            metavar="N",
            help="Failed attempts before the lane is parked.",
            show_default="10",
        ),
    ] = None,
    metrics: MetricsOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Publish the messages of an outbox, in order per key, until SIGTERM or Ctrl-C.

    Settings: also \[relay] in twicesafe.toml, or variables like TWICESAFE_RELAY_TO.
    Example: [cyan]twicesafe relay --store postgresql:///shop --to nats://localhost[/]
    """
    screen = Screen(json)
    given = {
        "to": to,
        "batch": batch,
        "lease": lease,
        "max_attempts": max_attempts,
        "metrics": metrics,
    }
    settings, found = settled(("relay",), store, config, {"relay": given})
    options = found.section("relay")
    if not options.to:
        raise ConfigurationError(
            "no broker is set: add --to nats://localhost (or set TWICESAFE_RELAY_TO, or [relay] to)"
        )
    if once:  # else the application may create it later
        expect_store(settings)
    with metrics_page(screen, options.metrics) as page:
        made = OutboxRelay.open(
            settings.url,
            options.to,
            batch=options.batch,
            lease=options.lease,
            max_attempts=options.max_attempts,
            observers=page.observers,
            encryption=settings.policy.encryption,
        )
        began = time.monotonic()
        screen.place(f"{mask(settings.url)} → {mask(options.to)}")
        with interruptible(made.stop if once else None) as stop:
            try:
                if once:
                    made.drain()
                else:
                    made.start()
                    while not stop.wait(0.5):
                        if not made.running:
                            break
            finally:
                made.close()
    seconds = time.monotonic() - began
    if json:
        screen.data({"published": made.published, "seconds": round(seconds, 3)})
    screen.say(Text("✓", "green"), f"{counted(made.published, 'message')} published")


def status(
    store: StoreOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """Count pending and parked messages; exit status 1 if a lane is parked.

    Example: [cyan]twicesafe outbox status --json[/]
    """
    screen = Screen(json)
    with _opened(store, config) as outbox:
        depth, url = outbox.depth(), outbox.store.url
    if json:
        screen.data({"store": url, **_depth_data(depth)})
    else:
        screen.place(url)
        made = table("messages", "")
        made.add_row("waiting", f"{depth.pending:,}")
        made.add_row("oldest", f"{depth.oldest_age:.1f} s" if depth.pending else "–")
        made.add_row("parked", f"{depth.parked:,} in {counted(depth.parked_lanes, 'lane')}")
        made.add_row("resting lanes", f"{depth.resting_lanes:,}")
        made.add_row("relays", f"{depth.relays:,}")
        screen.out.print(made)
    if depth.parked_lanes:
        raise typer.Exit(NO)


def parked(
    limit: Annotated[int, typer.Option("--limit", metavar="N", help="Show at most N lanes.")] = 50,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the parked lanes, which wait for an operator; the longest parked first.

    Example: [cyan]twicesafe outbox parked[/]
    """
    screen = Screen(json)
    with _opened(store, config) as outbox:
        lanes = outbox.parked(limit)
    if json:
        screen.data({"lanes": [_lane_data(lane) for lane in lanes]})
        return
    if not lanes:
        screen.say("no lane is parked")
        return
    made = table("lane", "topic", "key", "waiting", "tries", "parked", "error")
    made.columns[0].no_wrap, made.columns[0].min_width = True, LANE_CELLS
    for lane in lanes:
        made.add_row(
            lane.lane,
            Text(shortened(lane.topic, 20)),
            Text(shortened(lane.key or "–", 20)),
            str(lane.waiting),
            str(lane.attempts),
            ago(lane.since),
            Text(visible(lane.error)[:60]),
        )
    screen.out.print(made)


def relays(
    store: StoreOption = None, config: ConfigOption = None, json: JsonOption = False
) -> None:
    """List the relays of the last day: which are alive, and how far behind each is.

    Example: [cyan]twicesafe outbox relays[/]
    """
    screen = Screen(json)
    with _opened(store, config) as outbox:
        found = outbox.relays()
    if json:
        data = [
            {**msgspec.structs.asdict(one), "until": one.until.isoformat()} for one in found.relays
        ]
        rest = {"unserved": found.unserved, "unserved_age": found.unserved_age}
        screen.data({"relays": data, **rest})
        return
    if found.relays:
        made = table("relay", "state", "lease", "slots", "pending", "oldest")
        for one in found.relays:
            state = "idle" if one.is_idle else "active"
            made.add_row(
                one.id[:8],
                state if one.is_alive else "gone",
                "renewed" if one.is_alive else f"ended {ago(one.until)}",
                str(one.slots),
                f"{one.pending:,}",
                duration_text(one.oldest_age) if one.pending else "–",
            )
        screen.out.print(made)
    else:
        screen.say("no relay ran in the last day")
    if found.unserved:
        shown = counted(found.unserved, "message")
        age = duration_text(found.unserved_age)
        screen.say(Text("!", "yellow"), f"no relay publishes {shown}, the oldest added {age} ago")


def retry(
    by: ByOption,
    why: WhyOption,
    lane: LaneArgument = None,
    all_: AllOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Resume parked lanes: publish the failed message again.

    Example: [cyan]twicesafe outbox retry --all --by ana --why "the broker is back"[/]
    """
    _resume(False, by, why, lane, all_, store, config, json)


def skip(
    by: ByOption,
    why: WhyOption,
    lane: LaneArgument = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Resume parked lanes with the next message; the failed one is kept and never published.

    Example: [cyan]twicesafe outbox skip 3f0c… --by ana --why "customer is gone"[/]
    """
    _resume(True, by, why, lane, False, store, config, json)


def _resume(
    skipping: bool,
    by: str,
    why: str,
    lanes: list[str] | None,
    everything: bool,
    store: str | None,
    config: Path | None,
    json: bool,
) -> None:
    screen = Screen(json)
    if bool(lanes) == everything:
        raise UsageError("name the lanes" if skipping else "name the lanes, or give --all")
    word = "skipped the failed message and resumed" if skipping else "resumed"
    done: list[str] = []
    with _opened(store, config) as outbox:
        for lane in lanes or _every(outbox):
            try:
                (outbox.skip if skipping else outbox.retry)(lane, by=by, why=why)
            except UsageError as error:
                raise CommandEnded(str(error), NO, "Refused") from error
            done.append(lane)
            screen.say(Text("✓", "green"), f"{lane} {word}")
    if json:
        screen.data({"lanes": done})


def _every(outbox: Outbox) -> Iterator[str]:
    """Each lane once: a broker that still refuses its message has it parked again soon."""
    seen: set[str] = set()
    while found := [one.lane for one in outbox.parked(500) if one.lane not in seen]:
        seen.update(found)
        yield from found


@contextmanager
def _opened(store: str | None, config: Path | None) -> Iterator[Outbox]:
    with Outbox.open(expect_store(settle(store, config)).url) as outbox:
        yield outbox


def _depth_data(depth: Depth) -> dict[str, Any]:
    return {name: getattr(depth, name) for name in depth.__struct_fields__}


def _lane_data(lane: ParkedLane) -> dict[str, Any]:
    data = {name: getattr(lane, name) for name in lane.__struct_fields__}
    return {**data, "since": lane.since.isoformat(timespec="milliseconds")}
