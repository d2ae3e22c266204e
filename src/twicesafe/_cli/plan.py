"""``twicesafe plan``: the window, the storage and the cost, before you deploy or from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from .. import planning
from .._values.quantities import per_second, share, size
from .._values.settings import seconds
from ..errors import ConfigurationError
from .options import ConfigOption, JsonOption, StoreOption, duration, flag, quantity
from .output import Screen, visible
from .plan_report import measured_data, print_plan
from .settings import CliSettings, opened, settle

__all__ = ["plan"]

_TRAFFIC, _DELAYS, _PRICES = "Traffic", "Delays of duplicates", "Prices"


def plan(
    rate: Annotated[
        float | None,
        typer.Option(
            "--rate",
            metavar="RATE",
            parser=quantity(per_second),
            help="Deliveries, duplicates included, like 500/s, 30/m or 2M/d.",
            rich_help_panel=_TRAFFIC,
            show_default="measured, with --measure",
        ),
    ] = None,
    duplicates: Annotated[
        float | None,
        typer.Option(
            "--duplicates",
            metavar="SHARE",
            parser=quantity(share),
            help="Share of the deliveries that are duplicates, like 2%.",
            rich_help_panel=_TRAFFIC,
            show_default=False,
        ),
    ] = None,
    result: Annotated[
        float | None,
        typer.Option(
            "--result",
            metavar="SIZE",
            parser=quantity(size),
            help="Size of a stored result, like 200B or 4KiB.",
            rich_help_panel=_TRAFFIC,
            show_default="measured, or that of the benchmark",
        ),
    ] = None,
    retries_within: Annotated[
        float | None,
        typer.Option(
            "--retries-within",
            metavar="DURATION",
            parser=duration(1),
            help="How long senders retry before they give up, like 3d.",
            rich_help_panel=_DELAYS,
            show_default=False,
        ),
    ] = None,
    delays: Annotated[
        Literal["backoff", "uniform"],
        typer.Option(
            "--delays",
            help="How retries are spread over that time: exponential back-off, or evenly.",
            rich_help_panel=_DELAYS,
        ),
    ] = "backoff",
    mean_delay: Annotated[
        float | None,
        typer.Option(
            "--mean-delay",
            metavar="DURATION",
            parser=duration(0.001),
            help="Instead of --retries-within: exponential delays with this mean.",
            rich_help_panel=_DELAYS,
            show_default=False,
        ),
    ] = None,
    ages: Annotated[
        Path | None,
        typer.Option(
            "--ages",
            metavar="PATH",
            help="Instead of --retries-within: a file with one observed age per line.",
            rich_help_panel=_DELAYS,
            show_default=False,
        ),
    ] = None,
    redrives: Annotated[
        float | None,
        typer.Option(
            "--redrives",
            metavar="SHARE",
            parser=quantity(share),
            help="Share of the duplicates that people redrive by hand, like 1%.",
            rich_help_panel=_DELAYS,
            show_default=False,
        ),
    ] = None,
    redrives_within: Annotated[
        float | None,
        typer.Option(
            "--redrives-within",
            metavar="DURATION",
            parser=duration(1),
            help="How late redrives come, evenly spread, like 30d.",
            rich_help_panel=_DELAYS,
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        float | None,
        typer.Option(
            "--window",
            metavar="DURATION",
            parser=duration(),
            help="How long records are kept.",
            show_default="measured, or the retention of the policy",
        ),
    ] = None,
    risk: Annotated[
        float,
        typer.Option(
            "--risk",
            metavar="SHARE",
            parser=quantity(share),
            help="Share of duplicates that may come after the window.",
        ),
    ] = 1e-6,
    duplicate_price: Annotated[
        float | None,
        typer.Option(
            "--duplicate-price",
            metavar="AMOUNT",
            min=0,
            help="What one effect that happens twice costs you.",
            rich_help_panel=_PRICES,
            show_default=False,
        ),
    ] = None,
    storage_price: Annotated[
        float | None,
        typer.Option(
            "--storage-price",
            metavar="AMOUNT",
            min=0,
            help="Price of a gigabyte for a month.",
            rich_help_panel=_PRICES,
            show_default=False,
        ),
    ] = None,
    fixed_price: Annotated[
        float,
        typer.Option(
            "--fixed-price",
            metavar="AMOUNT",
            min=0,
            help="Price of the server per month, without storage.",
            rich_help_panel=_PRICES,
        ),
    ] = 0.0,
    measure: Annotated[
        bool,
        flag("--measure", help="Read rate, sizes and window from the newest records of the store."),
    ] = False,
    sample: Annotated[
        int, typer.Option("--sample", metavar="N", min=2, help="With --measure: records to read.")
    ] = 2000,
    svg: Annotated[
        Path | None,
        typer.Option(
            "--svg", metavar="PATH", help="Also write the charts as SVG.", show_default=False
        ),
    ] = None,
    store: StoreOption = None,
    config: ConfigOption = None,
    json: JsonOption = False,
) -> None:
    """Compute how long to keep records, how much space they take, and what that costs.

    Without --measure the store is not opened; its URL only says which store to plan for.
    Example: [cyan]twicesafe plan --rate 500/s --duplicates 2% --retries-within 3d --store postgresql://…[/]
    """
    screen = Screen(json)
    settings = settle(store, config)
    measured = _measured(settings, sample) if measure else None
    if duplicates is None:
        raise ConfigurationError(
            "give the share of duplicates, like --duplicates 2%"
            + ("; a store does not count them" if measure else "")
        )
    if rate is None and measured is None:
        raise ConfigurationError("give the rate, like --rate 500/s, or --measure it from the store")
    workload = planning.Workload(
        rate=rate if rate is not None else _rate(measured, duplicates),
        duplicates=duplicates,
        delays=_delays(delays, retries_within, mean_delay, ages, (redrives, redrives_within)),
        **_sizes(result, measured),
    )
    found = planning.plan(
        workload,
        store=settings.url,
        window=_window(window, measured, settings),
        risk=risk,
        prices=_prices(duplicate_price, storage_price, fixed_price),
    )
    if svg is not None:
        svg.write_text(planning.svg(found), "utf-8")
    if json:
        screen.data(
            {**found.data(), "measured": None if measured is None else measured_data(measured)}
        )
        return
    print_plan(screen, found, measured)
    if svg is not None:
        screen.say(f"charts: {visible(str(svg))}")


# --- from options to values ------------------------------------------------------------------


def _measured(settings: CliSettings, sample: int) -> planning.Measured:
    with opened(settings) as receiver:
        return planning.measure(receiver, sample)


def _rate(measured: planning.Measured | None, duplicates: float) -> float:
    assert measured is not None
    if measured.new_keys is None:
        raise ConfigurationError(
            f"the store has {measured.records} records in {measured.span:g} seconds, too few to measure a "
            "rate: give it, like --rate 500/s"
        )
    return measured.rate(duplicates)


def _sizes(result: float | None, measured: planning.Measured | None) -> dict[str, float]:
    """The sizes that are known; the others are those of the benchmark."""
    found: dict[str, float] = {}
    if measured is not None and measured.records:
        found = {"result": measured.result, "key": measured.key}
    return found if result is None else {**found, "result": result}


def _window(
    given: float | None, measured: planning.Measured | None, settings: CliSettings
) -> float:
    if given is not None:
        return given
    if measured is not None and measured.retention is not None:
        return measured.retention
    return seconds(settings.policy.retention)


def _delays(
    spread: str,
    within: float | None,
    mean: float | None,
    ages: Path | None,
    redriven: tuple[float | None, float | None],
) -> planning.Delays:
    chosen = [
        name
        for name, value in (
            ("--retries-within", within), ("--mean-delay", mean), ("--ages", ages),
        )
        if value is not None
    ]  # fmt: skip
    if len(chosen) != 1:
        named = f", not {' and '.join(chosen)}" if chosen else ""
        raise ConfigurationError(
            f"choose one way to say how late duplicates come{named}: --retries-within 3d, --mean-delay 10m or --ages PATH"
        )
    found: planning.Delays
    if ages is not None:
        found = planning.ObservedDelays(_ages_in(ages))
    elif mean is not None:
        found = planning.ExponentialDelays(mean)
    else:
        assert within is not None
        kind = planning.UniformDelays if spread == "uniform" else planning.BackoffDelays
        found = kind(within)
    part, late = redriven
    if (part is None) != (late is None):
        raise ConfigurationError(
            "--redrives and --redrives-within belong together, like --redrives 1% --redrives-within 30d"
        )
    if part is None or late is None:
        return found
    return planning.MixedDelays((1 - part, found), (part, planning.UniformDelays(late)))


def _ages_in(path: Path) -> list[float]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigurationError(
            f"{path} is not text: write one age per line, like 90 or 1h30m"
        ) from None
    found = []
    for number, text in enumerate(lines, 1):
        if text.strip():
            found.append(seconds(text.strip(), f"{path}:{number}: age"))
    if not found:
        raise ConfigurationError(f"{path} has no ages: write one per line, like 90 or 1h30m")
    return found


def _prices(duplicate: float | None, storage: float | None, fixed: float) -> planning.Prices | None:
    if duplicate is None and storage is None and not fixed:
        return None
    if duplicate is None or storage is None:
        raise ConfigurationError(
            "costs need both prices: --duplicate-price 25 --storage-price 0.12"
        )
    return planning.Prices(duplicate=duplicate, storage=storage, fixed=fixed)
