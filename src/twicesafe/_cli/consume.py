"""``twicesafe consume``: run a handler for the messages of a broker, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack
from typing import Annotated, Any

import typer
from rich.text import Text

from ..consumers import AsyncConsumer, Consumer, Report
from ..consumers.sources import Source, open_source
from ..errors import UsageError
from ..receiver import AsyncReceiver, Receiver
from ..stores._urls import mask
from .loading import import_here, load_function
from .metrics import MetricsOption, MetricsPage, metrics_page
from .options import ConfigOption, JsonOption, StoreOption, duration, flag
from .output import Screen, counted
from .progress import status_line
from .settings import settled

__all__ = ["consume"]


def consume(
    handler: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:HANDLER",
            help="Your function, blocking or async, importable from here; it gets one message.",
            show_default=False,
        ),
    ],
    source: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="URL",
            help="The broker: a kafka, amqp, nats, redis or sqs URL.",
            show_default=False,
        ),
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", metavar="N", min=1, help="Handlers that run at once.")
    ] = 8,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Messages to fetch ahead, at most.")
    ] = 100,
    order: Annotated[
        str,
        typer.Option(
            "--order",
            metavar="key|none",
            help="key: messages of one key run one after the other; none: in any order.",
        ),
    ] = "key",
    dead_letter: Annotated[
        str | None,
        typer.Option(
            "--dead-letter",
            metavar="URL",
            help="Where dead letters go: a publisher's URL with topic=. Default: next to the source.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        bool, flag("--drain", help="Exit when no message has come for --idle seconds.")
    ] = False,
    idle: Annotated[
        float,
        typer.Option(
            "--idle",
            metavar="DURATION",
            parser=duration(0.01),
            help="With --drain: how long to wait.",
        ),
    ] = 1.0,
    metrics: MetricsOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    r"""Run your handler for the messages of a broker: each is recorded, then acknowledged.

    A repeat is answered from its record. A message that keeps failing goes to the dead letters. The policy comes
    from the settings file. With [cyan]transactional_id=[/] in a Kafka URL no store is used: what the handler
    publishes and the offset commit together. Settings: also \[consume] in twicesafe.toml. Example: [cyan]twicesafe consume shop:handle --from
    'kafka://localhost:9092?topics=orders&group=billing' --store postgresql:///shop[/]
    """
    screen = Screen(json)
    if order not in ("key", "none"):
        raise UsageError(f"--order must be key or none, not {order!r}")
    import_here()
    function = load_function(handler, "the handler")
    settings, found = settled(("consume",), store, config, {"consume": {"metrics": metrics}})
    opened = open_source(source)
    place = None if getattr(opened, "publishes", False) else settings.url
    screen.place(f"{mask(source)} → {handler} · {mask(place) if place else 'Kafka transactions'}")
    given: dict[str, Any] = {
        "concurrency": concurrency,
        "batch": batch,
        "order": order,
        "dead_letter": dead_letter,
        "policy": settings.policy,
    }
    began = time.monotonic()
    run = _run_async if inspect.iscoroutinefunction(function) else _run
    with metrics_page(screen, found.section("consume").metrics) as page:
        report = run(screen, function, opened, place, idle if drain else None, given, page)
    seconds = time.monotonic() - began
    if json:
        data = {name: getattr(report, name) for name in report.__struct_fields__}
        screen.data({**data, "seconds": round(seconds, 3)})
    screen.say(Text("✓", "green"), _said(report))


def _run(
    screen: Screen,
    function: Any,
    source: Source,
    store: str | None,
    idle: float | None,
    given: dict[str, Any],
    page: MetricsPage,
) -> Report:
    with ExitStack() as stack:
        if store is not None:
            receiver = stack.enter_context(Receiver.open(store, observers=page.observers))
            stack.enter_context(page.watching(receiver))
            given["receiver"] = receiver
        consumer = stack.enter_context(Consumer(source, **given))
        page.observe(consumer._home)  # in Kafka transactions it has made its own
        stack.enter_context(_progress(screen, consumer))
        return consumer.run(function) if idle is None else consumer.drain(function, idle)


def _run_async(
    screen: Screen,
    function: Any,
    source: Source,
    store: str | None,
    idle: float | None,
    given: dict[str, Any],
    page: MetricsPage,
) -> Report:
    async def run() -> Report:
        async with AsyncExitStack() as stack:
            if store is not None:
                opened = AsyncReceiver.open(store, observers=page.observers)
                given["receiver"] = await stack.enter_async_context(opened)
                await stack.enter_async_context(page.watching_async(opened))
            consumer = await stack.enter_async_context(AsyncConsumer(source, **given))
            page.observe(consumer._home)
            stack.enter_context(_progress(screen, consumer))
            if idle is None:
                return await consumer.run(function)
            return await consumer.drain(function, idle)

    return asyncio.run(run())


def _progress(screen: Screen, consumer: Consumer | AsyncConsumer) -> AbstractContextManager[None]:
    return status_line(screen, "waiting for messages", lambda: _said(consumer.report))


def _said(report: Report) -> str:
    return (
        f"{counted(report.received, 'message')} received: {report.ran:,} run, "
        f"{report.replayed:,} repeated, {report.retried:,} to retry, {report.dead:,} dead"
    )
