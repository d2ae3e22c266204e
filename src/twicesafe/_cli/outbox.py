"""``twicesafe relay`` and ``twicesafe outbox …``: publish what waits, and look after what cannot go.

The relay runs until SIGTERM or Ctrl-C; then it ends what is under way, gives its leases back and
leaves with status 0. Start as many as you like. With ``--once`` it ends with status 3 if the broker or
the store does not answer; what could not go waits for the next run.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from .._core.outbox_requests import Depth, ParkedLane
from ..errors import UsageError
from ..outbox import Outbox, OutboxRelay
from ..stores._urls import mask
from .config import existing, settle
from .exits import NO, Ended
from .options import ByOption, ConfigOption, JsonOption, StoreOption, WhyOption, flag
from .output import Screen, ago, counted, shortened, table, visible
from .upkeep import interruptible

__all__ = ["parked", "relay", "retry", "skip", "status"]

LANE_CELLS = 32
"""All digits of a lane: `retry` and `skip` want them all."""

LaneArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="LANE…", help="Lanes, as `outbox parked` names them."),
]
RetriedByOption = Annotated[
    str, typer.Option("--by", metavar="WHO", help="Who does this; a retry is not kept on record.")
]
RetriedWhyOption = Annotated[
    str, typer.Option("--why", metavar="TEXT", help="Why; a retry is not kept on record.")
]
AllOption = Annotated[bool, flag("--all", help="Every parked lane.")]


def relay(
    to: Annotated[
        str,
        typer.Option(
            "--to", metavar="URL", help="http(s):, redis:, nats:, amqp: or kafka:, with options."
        ),
    ],
    once: Annotated[
        bool,
        flag("--once", help="Publish what may go now, and end."),
    ] = False,
    batch: Annotated[int, typer.Option("--batch", help="Messages under way at most.")] = 500,
    lease: Annotated[
        float, typer.Option("--lease", help="Seconds until others go on with a dead one's share.")
    ] = 10,
    max_attempts: Annotated[
        int, typer.Option("--max-attempts", help="Then the message's lane is parked.")
    ] = 10,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Publish the messages of an outbox, in order per key, until told to stop.

    Example: [cyan]twicesafe relay --store postgresql:///shop --to nats://localhost[/]
    """
    screen = Screen(json)
    settings = settle(store, config)
    made = OutboxRelay(settings.url, to, batch=batch, lease=lease, max_attempts=max_attempts)
    began = time.monotonic()
    screen.place(f"{mask(settings.url)} → {mask(to)}")
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
    """Show how much waits, how old it is, and what is parked; status 1 if a lane is parked.

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
    limit: Annotated[int, typer.Option("--limit", help="Lanes to show.")] = 50,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """List the lanes that wait for an operator, the longest parked first.

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


def retry(
    by: RetriedByOption,
    why: RetriedWhyOption,
    lane: LaneArgument = None,
    all_: AllOption = False,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let parked lanes go on, from the message that was refused.

    Example: [cyan]twicesafe outbox retry --all --by ana --why "the broker is back"[/]
    """
    _let_go(False, by, why, lane, all_, store, config, json)


def skip(
    by: ByOption,
    why: WhyOption,
    lane: LaneArgument = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Let parked lanes go on behind the message that was refused; it is kept aside, with who and why.

    Example: [cyan]twicesafe outbox skip 3f0c… --by ana --why "customer is gone"[/]
    """
    _let_go(True, by, why, lane, False, store, config, json)


def _let_go(
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
        raise UsageError("name the lanes, or say --all" if not skipping else "name the lanes")
    done: list[str] = []
    with _opened(store, config) as outbox:
        for lane in lanes or _every(outbox):
            try:
                (outbox.skip if skipping else outbox.retry)(lane, by=by, why=why)
            except UsageError as error:
                raise Ended(str(error), NO, "Refused") from error
            done.append(lane)
    if json:
        screen.data({"lanes": done})
    word = "skipped its first message and goes on" if skipping else "goes on"
    for lane in done:
        screen.say(Text("✓", "green"), f"{lane} {word}")


def _every(outbox: Outbox) -> Iterator[str]:
    while found := outbox.parked(500):
        yield from (lane.lane for lane in found)


@contextmanager
def _opened(store: str | None, config: Path | None) -> Iterator[Outbox]:
    with Outbox.open(existing(store, config).url) as outbox:
        yield outbox


def _depth_data(depth: Depth) -> dict[str, Any]:
    return {name: getattr(depth, name) for name in depth.__struct_fields__}


def _lane_data(lane: ParkedLane) -> dict[str, Any]:
    data = {name: getattr(lane, name) for name in lane.__struct_fields__}
    return {**data, "since": lane.since.isoformat(timespec="milliseconds")}
