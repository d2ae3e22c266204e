"""Writes the reference pages from the code: ``python docs/generate.py``.

The code is the only source: settings with their defaults and meaning, errors with their status,
states with their transitions, stores with their capabilities. These pages show it.
`tests/house/test_reference.py` fails if a committed page differs from what this script writes.
"""  # noqa: INP001 - a script beside the pages it writes

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import json
import logging
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

import twicesafe
from twicesafe import client, consumers, errors, events, planning
from twicesafe._core import protocol
from twicesafe._core.transitions import TRANSITIONS, RecordEvent
from twicesafe._proxy.mcp_settings import MCP_SECTION, ToolSettings
from twicesafe._proxy.settings import HTTP_SECTION, PROXY_SECTION
from twicesafe._values import context, policy, records
from twicesafe._values.quantities import duration_text, percent_text
from twicesafe._values.records import Cause, State
from twicesafe._values.settings import seconds
from twicesafe.client import _budget as budget
from twicesafe.client import _final_answers as judging
from twicesafe.client._policy import TRY_AGAIN
from twicesafe.configuration import SECTIONS
from twicesafe.configuration._fields import fields_of
from twicesafe.configuration._model import REQUIRED, Section, notes_of
from twicesafe.configuration._sections import section_named
from twicesafe.health import Thresholds
from twicesafe.observers import _log as log_observer
from twicesafe.observers._alerts import ALERTS, RULES_FILE, metrics_of, rules
from twicesafe.observers._grafana import DASHBOARD_FILE, dashboard
from twicesafe.observers._metric import Metric
from twicesafe.observers._metric_table import METRICS, OUTCOMES
from twicesafe.planning._published import KEY_BYTES, RESULT_BYTES
from twicesafe.receiver import _claim as claims
from twicesafe.receiver import _message_handler as handlers
from twicesafe.stores._base import Capabilities
from twicesafe.stores._urls import SCHEMES

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

import choosing  # noqa: E402 - the file beside this script
import drawing  # noqa: E402 - the folder beside this script
from drawing.svg import box, document  # noqa: E402
from drawing.svg import text as words  # noqa: E402

NOTE = "<!-- Made by docs/generate.py from the code: change the code, then run it again. -->\n\n"


def pages() -> dict[str, str]:
    """Every generated file, by its path under docs/."""
    return {
        "reference/api.md": NOTE + api_page(),
        "reference/policy.md": NOTE + policy_page(),
        "reference/client.md": NOTE + client_page(),
        "explanation/flows.md": NOTE + flows_page(),
        "reference/proxy.md": NOTE + proxy_page(),
        "reference/errors.md": NOTE + errors_page(),
        "reference/states.md": NOTE + states_page(),
        "reference/protocol.md": NOTE + protocol_page(),
        "reference/stores.md": NOTE + stores_page(),
        "how-to/choose-a-store.md": NOTE + choosing.page(_titled_stores(), table),
        "reference/values.md": NOTE + values_page(),
        "reference/cli.md": NOTE + cli_page(),
        "reference/configuration.md": NOTE + configuration_page(),
        "reference/planning.md": NOTE + planning_names_page(),
        "explanation/planning.md": NOTE + planning_page(),
        "reference/metrics.md": NOTE + metrics_page(),
        "explanation/map.md": NOTE + map_page(),
        "contributing/walks.md": NOTE + walks_page(),
        "reference/lifecycle.svg": lifecycle_svg(),
        "../src/twicesafe/planning/_published.py": published_sizes(),
        **{f"pictures/{name}.svg": picture for name, picture in pictures().items()},
    }


def shipped() -> dict[str, str]:
    """Files of the package that are made from its tables, by their path in the repository."""
    folder = "src/twicesafe/observers/files"
    return {f"{folder}/{RULES_FILE}": rules(), f"{folder}/{DASHBOARD_FILE}": dashboard()}


def pictures() -> dict[str, str]:
    """Every picture of docs/pictures, by its name: see docs/drawing."""
    sources = HERE / "drawing" / "sources"
    made = {path.stem: drawing.sequence(path.read_text("utf-8")) for path in sources.glob("*.seq")}
    made |= {path.stem: drawing.tree(path.read_text("utf-8")) for path in sources.glob("*.tree")}
    made["demo"] = drawing.demo((sources / "demo.json").read_text("utf-8"))
    for path in sources.glob("*.ansi"):
        made[path.stem] = drawing.screen(f"twicesafe: {path.stem}", path.read_text("utf-8"))
    for name, title in WALKS.items():
        made[f"walk-{name}"] = drawing.walk(_recording(name), title)
    made["rooms"] = drawing.map_of_rooms(ROOT / "src" / "twicesafe")
    results = ROOT / "benchmarks" / "results" / "published.json"
    made |= drawing.plots(results.read_text("utf-8"))
    made["plan"] = planning.svg(example_plan())
    return made


def published_sizes() -> str:
    """The module with which the package knows the sizes that the published benchmark measured."""
    from benchmarks.workload import RESULT, key_of
    from twicesafe._values.codecs import DEFAULT_CODEC

    published = json.loads((ROOT / "benchmarks/results/published.json").read_text("utf-8"))
    sizes = {
        row["id"].removeprefix("size/"): row["raw"]
        for row in published["rows"]
        if row["id"].startswith("size/")
    }
    counted = json.loads((ROOT / "benchmarks/results/calls.json").read_text("utf-8"))
    sizes |= {
        name: {"bytes_per_key": has["bytes"]} for name, has in counted.items() if "bytes" in has
    }
    (section,) = {row["section"] for row in published["rows"] if row["id"].startswith("size/")}

    def numbers(field: str) -> str:
        found = {name: raw[field] for name, raw in sizes.items() if field in raw}
        return "".join(f'    "{name}": {value!r},\n' for name, value in found.items())

    return f'''"""Sizes that the published benchmark measured: {section[0].lower() + section[1:]}.

Those of DynamoDB and MongoDB are of the item or document alone, as `benchmarks.calls` counts them.
Made by docs/generate.py from benchmarks/results: run the benchmark, then the script.
"""

from __future__ import annotations

from typing import Final

__all__ = ["BYTES_PER_KEY", "KEY_BYTES", "RESULT_BYTES", "SWEEP_SECONDS"]

RESULT_BYTES: Final = {len(DEFAULT_CODEC.encode(RESULT))}
KEY_BYTES: Final = {len(key_of(0).encode())}
BYTES_PER_KEY: Final = {{
{numbers("bytes_per_key")}}}
SWEEP_SECONDS: Final = {{
{numbers("sweep_seconds")}}}
"""Per removed key."""
'''


# ------------------------------------------------------------------ reading the code


def line(text: str | None) -> str:
    """A docstring in one line, with its double back-quotes as Markdown wants them."""
    return " ".join((text or "").split()).replace("``", "`")


def fitted(text: str, room: int = 96) -> str:
    """A docstring for a text block: a line that is wider than the page's column is broken."""
    rows = []
    for row in text.strip().splitlines():
        indent = " " * (len(row) - len(row.lstrip()))
        rows += textwrap.wrap(row, room, subsequent_indent=indent) or [""]
    return "\n".join(rows)


def first_line(thing: Any) -> str:
    return line(inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0])


def own_doc(cls: type) -> str:
    """A class's docstring; a dataclass's made-up one is none."""
    doc = cls.__dict__.get("__doc__") or ""
    return "" if doc.startswith(f"{cls.__name__}(") else line(doc.split("\n\n")[0])


def annotations_of(cls: type) -> dict[str, str]:
    """Each attribute's annotation, word for word."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name, what in inspect.get_annotations(base).items():
            if not name.startswith("_"):
                text = what if isinstance(what, str) else getattr(what, "__name__", str(what))
                found[name] = text.replace(" | ", " or ")  # a bar would end a table's cell
    return found


def table(*head: str, rows: list[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in r)} |\n" for r in lines
    )


def code(text: object) -> str:
    return f"`{text}`"


# ------------------------------------------------------------------ pages


def policy_page() -> str:
    def rows(cls: Any) -> list[tuple[str, ...]]:
        notes, types = notes_of(cls), annotations_of(cls)
        made = []
        for field in fields(cls):
            default = field.default
            shown = (
                "—" if default is MISSING else "Backoff()" if field.name == "backoff" else default
            )
            text = repr(shown) if isinstance(shown, str) and shown != "Backoff()" else str(shown)
            made.append(
                (code(field.name), code(text), code(types[field.name]), notes.get(field.name, ""))
            )
        return made

    return f"""# Policy

{own_doc(policy.Policy)} Durations are seconds, a `timedelta`, or text: `"90s"`, `"1h30m"`, `"7d"`, `"250ms"`. An invalid value raises
`ConfigurationError`, which names the setting and the fix.

Policies are not merged. A decorator's own policy applies if it has one, otherwise the receiver's, otherwise the default. So a
`Policy(takeover="hold")` on a decorator has the default `retention`, not the receiver's. To change one setting and keep the others,
use `receiver.policy.replace(takeover="hold")`. For a single call, use `receiver.options(policy=…).process(…)`.

The HTTP middlewares use [HttpPolicy](http.md#settings). Without one, they take `lease`, `max_lease`, `retention` and `max_waiters` from
the receiver's `Policy`. Its other settings have no effect there and are logged as a warning; a codec without effect raises
`ConfigurationError`.

{table("setting", "default", "type", "meaning", rows=rows(policy.Policy))}
```python
from twicesafe import ConfigurationError, Policy

strict = Policy(takeover="hold", retention=7 * 86400)
assert strict.replace(lease=5).takeover == "hold"

try:
    Policy(retention=3600, retry_horizon=86400)
except ConfigurationError as error:
    assert "retention" in str(error)
```

## Backoff

{line(inspect.getdoc(policy.Backoff))}

{table("setting", "default", "type", rows=[row[:3] for row in rows(policy.Backoff)])}"""


def client_page() -> str:
    shown = {
        "http": "HttpPolicy()",
        "backoff": "Backoff(0.2, 2, 10, 1)",
        "retry_on": "{" + ", ".join(map(str, sorted(TRY_AGAIN))) + "}",
        "new_key": "a UUIDv7",
    }
    notes = notes_of(client.RetryPolicy)
    settings = [
        (code(field.name), code(shown.get(field.name, field.default)), notes[field.name])
        for field in fields(client.RetryPolicy)
    ]
    sent = [(code(name), text) for name, text in notes_of(client.Sent).items()]
    judged = (judging.__doc__ or "").split("\n\n")
    return f"""# Clients

How to use them: [Call an API that supports Idempotency-Key](../how-to/call-an-api.md),
[Keys across services](../how-to/keys-across-services.md).

| library | name | extra |
|---|---|---|
| httpx | `twicesafe.client.httpx.RetryTransport`, `AsyncRetryTransport` | `twicesafe[httpx]` |
| httpx2 | `twicesafe.client.httpx2.RetryTransport`, `AsyncRetryTransport` | `twicesafe[httpx2]` |
| requests | `twicesafe.client.requests.RetryAdapter` | `twicesafe[requests]` |
| aiohttp | `twicesafe.client.aiohttp.RetryMiddleware` | `twicesafe[aiohttp]` |
| gRPC | `twicesafe.client.grpc.KeyInterceptor`, `async_interceptors` | `twicesafe[grpc]` |

## RetryPolicy

{own_doc(client.RetryPolicy)}

{table("setting", "default", "meaning", rows=settings)}
## Which answers are final

{judged[1]}

{judged[2]}

{line(judged[3])}

## Budget

{own_doc(client.Budget)} {line((budget.__doc__ or "").split(chr(10) * 2)[1])}

## Sent

{own_doc(client.Sent)} `sent_of(response)` and `sent_of(error)` return it.

{table("name", "meaning", rows=sent)}"""


def proxy_page() -> str:
    proxy = settings_table(PROXY_SECTION)
    http = ", ".join(code(name) for name in HTTP_SECTION.names if name != "profile")
    notes = notes_of(ToolSettings)
    tools = table(
        "setting",
        "default",
        "meaning",
        rows=[
            (code(each.name), code(repr(each.default)), notes[each.name])
            for each in fields_of(ToolSettings)
        ],
    )
    return f"""# Proxy

How to use it: [Protect a service in any language](../how-to/proxy.md). The command: [twicesafe proxy](cli.md).

## Settings

Set them in the section `[proxy]` of `twicesafe.toml`, or in environment variables. The options `--upstream`, `--listen`, `--admin`,
`--workers` and `--store` override both. Durations are seconds, or text: `"30s"`, `"1h30m"`, `"7d"`. In a variable, separate several
values with commas. An unknown name is an error.

{proxy}
The store comes from `--store`, `TWICESAFE_STORE_URL`, or `url` in `[store]`.

## Settings of the HTTP layer

Set them in the section `[http]`, or in variables that begin with `TWICESAFE_HTTP_`. `profile` is `draft`, `stripe`, `paypal`,
`webhook:github` or similar. The other settings are those of [HttpPolicy](http.md#settings): {http}.

In the proxy, `unknown_status` is 502 by default, and `key_from` is a list of `header:NAME`, `query:NAME`, `json:PATH` and `body`.

## MCP tools

Set them in the section `[mcp]`: [An MCP server behind the proxy](../how-to/mcp-proxy.md).

{settings_table(MCP_SECTION)}
Each protected tool has its own section, `[mcp.tools.NAME]`:

{tools}
## Signals and exit

| signal | what happens |
|---|---|
| SIGTERM, SIGINT | the proxy accepts no new requests, gives running ones `grace` seconds, and exits with status 0 |
| SIGHUP | the proxy reads the settings again, and new workers take over; invalid settings change nothing |

If the settings are invalid at the start, the proxy exits with status 2 before it listens.

## Metrics

`/metrics` of the admin listener shows [the metrics of a receiver and those of the proxy](metrics.md), added up over all workers.
"""


def flows_page() -> str:
    """The last published run of ``python -m benchmarks.flows``."""
    found = json.loads((ROOT / "benchmarks" / "results" / "flows.json").read_text("utf-8"))
    rows = [
        (
            row["name"],
            row["version"],
            row["needs"],
            f"{row['milliseconds']:.1f}",
            f"{row['finished']:.1f}",
            ", ".join(map(str, row["effects"])),
            f"{row['server_mb']} MB" if row["server_mb"] else "–",
            row["settings"],
        )
        for row in found["rows"]
    ]
    made = table(
        "engine",
        "version",
        "needs besides the worker",
        "ms per flow",
        "s to finish after the kill",
        "effects of steps 1 to 5",
        "memory of its server",
        "settings",
        rows=rows,
    )
    once = all(row["effects"] == [1, 1, 2, 1, 1] for row in found["rows"])
    repeats = (
        "- Each engine repeats only the step that its worker died in, because nothing had recorded the effect. With "
        "[`steps.transact`](../how-to/durable-functions.md)\n  effect and record are one transaction, and nothing repeats."
        if once
        else "- The engines differ in what they repeat: see the column of the effects."
    )
    left = "".join(f"- Not measured: {name} ({why}).\n" for name, why in found["missing"].items())
    return f"""# The same flow on other engines

A flow has five steps, and each step writes a line to a file on disk. We measured two things on each engine:

- How long does a flow take? {found["flows"]} flows ran one after the other, the engines in turns; the table has the median.
- What does a crash cost? The worker gets SIGKILL in step 3, after its effect and before its record, and a new worker starts at once. The
  table has the time until the effect of step 5, and how often each step had its effect.

`python -m benchmarks.flows --publish` measured this on {found["at"]}.

{made}
{left}
{repeats}
- Most of the time after the kill passes until the engine notices the death. twicesafe waits for the lease, Temporal for the time-out of the
  activity; both are settings, here 2 seconds. DBOS recovers when a process with the same executor id starts; otherwise it needs its control
  plane. Restate notices the broken connection.
- The machine was busy (load {found["load"]} on {found["machine"]["processors"]} cores). Compare the engines with each other, and do not
  use one of these times as a benchmark.
- Temporal and Restate are servers that workers of any language share, with histories and a user interface. One worker with one flow at a
  time does not show these features, nor how the engines behave with many workers.
"""


def metrics_page() -> str:
    groups = dict.fromkeys(row.group for row in METRICS)
    sections = [
        f"## {group}\n\n"
        + table(
            "metric",
            "kind",
            "labels",
            "meaning",
            "comes from",
            rows=[_metric_row(row) for row in METRICS if row.group == group],
        )
        for group in groups
    ]
    alerts = [
        (
            code(alert.name),
            alert.severity,
            alert.lasting,
            alert.summary,
            ", ".join(code(row.full_name) for row in metrics_of(alert)),
            alert.next_step,
        )
        for alert in ALERTS
    ]
    levels: dict[str, list[str]] = {}
    for event, level in log_observer.LEVELS.items():
        levels.setdefault(logging.getLevelName(level), []).append(code(event.__name__))
    limits = notes_of(Thresholds)
    return f"""# Metrics, alerts, health

How to use them: [metrics](../how-to/metrics.md), [traces](../how-to/traces.md), [logs](../how-to/logs.md), [health](../how-to/health.md),
[alerts](../how-to/alerts.md).

In OpenTelemetry, names have a dot after the prefix and no `_total`: *twicesafe.deliveries*, *twicesafe.store_seconds*. No label grows with keys or tenants; `PrometheusObserver(scope=…)` adds the label `scope` to metrics that come from keys.

{"".join(section + chr(10) for section in sections)}
### Outcomes

{table("outcome", "meaning", rows=[(code(name), text) for name, text in OUTCOMES.items()])}
## Alerts

`twicesafe alerts` prints them as rules for Prometheus.

{table("alert", "severity", "for", "meaning", "looks at", "next step", rows=alerts)}
## Thresholds of health

Fields of `twicesafe.health.Thresholds`:

{table("threshold", "default", "what is compared", rows=[(code(field.name), code(repr(field.default)), limits[field.name]) for field in fields(Thresholds)])}
## Levels of the log

{table("level", "events", rows=[(name, ", ".join(events_)) for name, events_ in levels.items()])}
A `Refused` for a mismatch is a WARNING.
"""


def _metric_row(row: Metric) -> tuple[str, ...]:
    labels = "; ".join(
        f"{code(name)}: {', '.join(map(code, values)) or 'any value'}"
        for name, values in row.labels.items()
    )
    sources = dict.fromkeys(code(source.event.__name__) for source in row.sources)
    return code(row.full_name), row.kind, labels, row.meaning, ", ".join(sources) or "the proxy"


def settings_table(section: Section) -> str:
    """The settings of one section of the file, as its model has them."""
    notes = section.notes()
    rows = []
    for setting in section.settings.values():
        made = callable(setting.field.default)
        default = REQUIRED if made else section.default(setting.name, {})
        plain = default is not REQUIRED
        shown = sorted(default) if isinstance(default, frozenset) else default
        rows.append(
            (
                code(setting.name),
                code(repr(shown)) if plain else "",
                code(setting.variable),
                notes.get(setting.name, ""),
            )
        )
    return table("setting", "default", "variable", "meaning", rows=rows)


def configuration_page() -> str:
    parts = []
    for name in SECTIONS:
        section = section_named(name)
        parts.append(f"## {name}\n\n{section.words}\n\n{settings_table(section)}")
    return f"""# Settings

How to use them: [Settings in a file](../how-to/configuration.md). Every table below is one section of `twicesafe.toml` or
`twicesafe.yaml`. The command line overrides the variable, the variable overrides the file, the file overrides the default. Durations are
seconds, or text: `"30s"`, `"1h30m"`, `"7d"`. In a variable, separate several values with commas. `backoff.first` is `first` in the section
`[policy.backoff]`.

{chr(10).join(parts)}"""


def example_plan() -> planning.Plan:
    """The plan that the explanation shows: its inputs are stated there."""
    delays = planning.MixedDelays(
        (0.99, planning.BackoffDelays(within="3d")), (0.01, planning.UniformDelays("30d"))
    )
    workload = planning.Workload(rate="500/s", duplicates="2%", delays=delays)
    prices = planning.Prices(duplicate=0.01, storage=0.12, fixed=20)
    return planning.plan(workload, store="postgresql", window="7d", prices=prices)


def planning_page() -> str:
    found = example_plan()
    windows = ("1h", "6h", "1d", "3d", "7d", "30d")
    load, prices = found.workload, found.prices
    assert prices is not None
    covered = [
        (
            window,
            percent_text(1 - load.delays.outside(seconds(window))),
            f"{load.late_per_second(seconds(window)) * 86400:,.0f}",
            f"{planning.storage(load, 'postgresql', seconds(window)).bytes / 1e9:,.1f} GB",
            f"{planning.cost(load, 'postgresql', prices, seconds(window)).total:,.2f}",
        )
        for window in windows
    ]
    sizes = [
        (
            each.store,
            f"{each.bytes_per_key:.0f}",
            "–" if each.sweep_share is None else f"{each.sweep_share / load.new_keys * 1e6:.1f} µs",
        )
        for each in found.storage
    ]
    keys = [
        (
            each.keys,
            f"{each.bits} per ms" if each.per_millisecond else str(each.bits),
            f"{each.probability:.1g}",
        )
        for each in found.collisions
    ]
    best, returns = found.best, found.returns
    assert best is not None
    assert returns is not None
    return f"""# Planning: the formulas

[How to plan](../how-to/plan.md) shows the command. This page says what it computes, and from what. The tables and the picture are made by
the code.

The example on this page has 500 deliveries per second, and 2 % of them are duplicates. 99 % of the duplicates are retries with exponential
back-off over 3 days; people redrive the other 1 % within 30 days. An effect that happens twice costs 0.01, a gigabyte 0.12 a month, the
server 20 a month, in any currency. These prices are invented; the command has no default prices.

![Risk and cost by window](../pictures/plan.svg)

## How many duplicates come after the window

The *window* is the policy's `retention`: how long a record is kept after completion. A duplicate with a delay D longer than the
window W runs again. The share of duplicates that do is P(D > W), which depends on how delays are distributed:

| delays | P(D > W) | for |
|---|---|---|
| `UniformDelays(within=H)` | 1 − W/H | redrives by people, queues that were stopped |
| `BackoffDelays(within=H, first=F)` | ln(H/W) / ln(H/F), for W between F and H | senders with exponential back-off |
| `ExponentialDelays(mean=M)` | e^(−W/M) | delays without an upper limit |
| `ObservedDelays(ages)` | the share of the ages that are longer than W | what was measured |
| `MixedDelays((p, A), (1−p, B))` | p × P(A > W) + (1−p) × P(B > W) | several kinds of duplicates |

The second row assumes that a sender with exponential back-off makes equally many retries in each doubling of the delay, so its delays are
uniform on a logarithmic scale. It overestimates the risk for two reasons. It counts all retries equally, although a later one happens only
if all before it failed. And it counts delays from the sender's first attempt, but the retention counts from completion, which is later.

The *window for a risk* is the inverse: the smallest W with P(D > W) ≤ risk. For observed ages the command also states an upper bound with
95 % confidence, by [Wilson's score interval](https://doi.org/10.1080/01621459.1927.10502953) (1927). With n duplicates
and none of them late, the risk can still be about 3/n.

With a rate r of deliveries and a share d of duplicates, r × d × P(D > W) duplicates per second run again.

{table("window", "covers", "run twice per day", "size in PostgreSQL", "cost per month", rows=covered)}
## How much is stored

By [Little's law](https://doi.org/10.1287/opre.9.3.383) (1961), records = new keys per second × time that each is kept:

    records = r × (1 − d) × (W + S)
    bytes   = records × bytes per key

S is the interval of the sweep; it is 0 on Redis, which expires records by itself. The formula leaves out records of late duplicates, which are at
most d / (1 − d) × P(D > W) of all records. Bytes per key are those of the [published benchmark](performance.md), with indexes, for a result of
{RESULT_BYTES} bytes and a key of {KEY_BYTES}. If your results and keys are longer or shorter, the difference is added.
For DynamoDB and MongoDB this is the size of the item or document alone, without indexes and before compression:

{table("store", "bytes per key", "sweep, per removed key", rows=sizes)}
The plan is not exact, because databases store pages. For results up to 400 bytes, an SQLite file is up to a quarter smaller than planned.
It is up to a third larger for results up to 2 KiB, and up to two thirds larger between 2 and 4 KiB, where each result fills a page. A test
checks these bounds. PostgreSQL compresses large results; the plan does not include that.

**Memory of Redis and Valkey.** While the server writes a snapshot or rewrites its log, a child process shares the memory until
the parent writes to it. In the worst case all of it is copied: the [manual](https://redis.io/docs/latest/operate/oss_and_stack/management/optimization/memory-optimization/)
says that it may use up to twice the memory normally used. `memory while saving` is that bound.

## What a window costs

    cost(W) = fixed + bytes(W) × price of storage
              + r × d × P(D > W) × month × price of a duplicate

A month is a twelfth of 365.25 days, a gigabyte 10⁹ bytes. A longer window means more storage and fewer duplicates. Between the points where
the curve of P bends, the cost is convex. A golden-section search finds the lowest cost of each part, and the lowest of these is the result. In the
example the best window is {duration_text(best.window)}, for {best.total:,.2f} a month; the 7 days of the example cost {found.cost.total if found.cost else 0:,.2f}.

*Return*: without protection every duplicate has its effect, which costs r × d × month × price. The return is what you save, divided by what the
protection costs: {returns.ratio:,.0f} for each 1 spent in the example.

## Collisions of keys

Two of n random values of b bits are equal with probability 1 − e^(−n(n−1) / 2^(b+1)), the birthday bound. Ids that begin with a time can only meet
ids of the same millisecond. With λ ids per millisecond, one millisecond has λ²/2 pairs on average. A collision does harm only while the
other record is kept. Within a year, at the rate of the example and a window of 7 days:

{table("keys", "random bits", "two operations with one key", rows=keys)}
The bits of UUIDs are in [RFC 9562](https://www.rfc-editor.org/rfc/rfc9562), sections 5.4 and 5.7, those of ULIDs in their
[specification](https://github.com/ulid/spec), for generators without a counter. A content hash and the stored identity are SHA-256. A badly seeded
generator, or a sender that reuses ids, is far more likely than any of these collisions. Fingerprints detect both.

**What it cannot do.** Rate and share are averages, so it does not show bursts. It assumes that duplicates are independent of each other, but a
long outage makes many at once, all of them late. A store does not count repeats, so you or an observer in your process must provide their
share and ages.
"""


def planning_names_page() -> str:
    classes = [
        planning.Workload, planning.Plan, planning.Storage, planning.Prices, planning.Cost, planning.Return,
        planning.Collision, planning.Measured,
    ]  # fmt: skip
    sections = []
    for cls in classes:
        notes, types = notes_of(cls), annotations_of(cls)
        rows = [(code(f.name), code(types[f.name]), notes.get(f.name, "")) for f in fields(cls)]
        rows += [
            (code(n), code(_returns(p)), first_line(p))
            for n, p in vars(cls).items()
            if isinstance(p, property) and not n.startswith("_")
        ]
        sections.append(
            f"## {cls.__name__}\n\n{own_doc(cls)}\n\n"
            + table("field", "type", "meaning", rows=rows)
        )
    delays = [
        (code(cls.__name__), own_doc(cls))
        for cls in (
            planning.UniformDelays, planning.BackoffDelays, planning.ExponentialDelays,
            planning.ObservedDelays, planning.MixedDelays,
        )
    ]  # fmt: skip
    functions = [
        (code(f"{f.__name__}{_signature(f)}"), first_line(f))
        for f in (
            planning.plan, planning.storage, planning.bytes_per_key, planning.records, planning.cost,
            planning.cost_curve, planning.best_window, planning.return_on, planning.collisions,
            planning.collision_probability, planning.measure, planning.measured_from, planning.svg,
        )
    ]  # fmt: skip
    return f"""# Planning

How to use it: [Plan the window and the store](../how-to/plan.md). The formulas: [explanation](../explanation/planning.md). All names are in
`twicesafe.planning`, which needs no extra.

## Functions

{table("function", "meaning", rows=functions)}
## Delays

{table("class", "meaning", rows=delays)}
{_class_section(planning.DuplicateSample)}
{chr(10).join(sections)}"""


def errors_page() -> str:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    rows = []
    for name in errors.__all__:
        cls = getattr(errors, name)
        extra = sorted(set(_init_names(cls)) - {"message", "key"})
        rows.append(
            (
                code(name),
                own_doc(cls),
                str(cls.http_status),
                "yes" if cls.retryable else "no",
                ", ".join(map(code, extra)),
            )
        )
    return f"""# Errors

Import all errors from `twicesafe`. Each has `.key`, `.retryable` and `.http_status`, and its text says what happened, who must act and
what to do next. `retryable` means that the same call, unchanged, may succeed later. Errors can be pickled, so they work with process
pools. They never show a whole key, only the first eight hex digits of its identity.

Your handler's own exceptions are not in this list. They reach the caller unchanged.

```text
{fitted(textwrap.dedent(tree))}
```

{table("error", "meaning", "HTTP", "retryable", "also has", rows=rows)}"""


def _init_names(cls: type) -> Iterator[str]:
    for base in cls.__mro__:
        init = base.__dict__.get("__init__")
        if base is not Exception and init is not None and base.__module__ == errors.__name__:
            yield from (n for n in inspect.signature(init).parameters if n != "self")


def _enum_rows(cls: type[enum.StrEnum]) -> list[tuple[str, ...]]:
    notes = notes_of(cls)
    return [(code(member.value), notes.get(member.name, "")) for member in cls]


def states_page() -> str:
    by_event = {event: [] for event in RecordEvent}
    for (state, event), after in TRANSITIONS.items():
        by_event[event].append((state, after))
    notes = notes_of(RecordEvent)
    event_rows = [
        (
            code(event.value),
            "<br>".join(f"{_name(a)} → {_name(b)}" for a, b in moves),
            notes.get(event.name, ""),
        )
        for event, moves in by_event.items()
    ]
    return f"""# States and transitions

What can happen to a record is defined in one table, `_core.transitions.TRANSITIONS`; this page is generated from it. Every transition
is one atomic, conditional write. [The rules of the protocol](protocol.md) say what a store guarantees beyond this table.

## States

{table("state", "meaning", rows=_enum_rows(State))}
## What workers do

![The life of a record: claim, renew, take over, complete, remember, fail, abandon, hold, park](lifecycle.svg)

## Everything, as a table

Rows are states, columns are events, cells are the next state. An empty cell changes nothing.

```text
{_matrix()}
```

## Events

{table("event", "moves", "meaning", rows=event_rows)}
## Why a handler starts again

The reason is in `record.cause` and, inside a handler, in `current_claim().cause`. The first start has none. After a record was swept
or lost, the next start counts as the first.

{table("cause", "meaning", rows=_enum_rows(Cause))}"""


def protocol_page() -> str:
    from twicesafe.testing import StoreConformance
    from twicesafe.testing._conformance import rules_of

    doc = inspect.cleandoc(protocol.__doc__ or "").partition("by number:")[2]
    known = {name: line(text) for name, text in re.findall(r"    (P\d+) +(.+(?:\n {6,}.+)*)", doc)}
    checked: dict[str, list[str]] = {name: [] for name in known}
    for test, rule in rules_of(StoreConformance).items():
        for name in rule.protocol:
            checked[name].append(test)
    rows = [(name, text, folded(checked[name])) for name, text in known.items()]
    return f"""# The rules of the protocol

Every store and every worker keeps these rules. Comments in the code and tests cite them by number. The conformance suite, which is
part of the package, tests what they require of a store, blocking and async. What they require of a worker (all of P7, and most of
P9 and P10) is tested with the receiver.

{table("rule", "meaning", "conformance tests", rows=rows)}
[States and transitions](states.md) lists what can happen to a record. [Write your own store](../how-to/write-a-store.md) shows how to
run the suite.
"""


def folded(names: list[str]) -> str:
    """A list of tests for a table: its length, and the names on request."""
    if not names:
        return ""
    count = "1 test" if len(names) == 1 else f"{len(names)} tests"
    return f"<details><summary>{count}</summary>{'<br>'.join(map(code, names))}</details>"


def evidence() -> str:
    """What the last published run of the lab found, in a sentence, and where it found something, in another."""
    proof = json.loads((ROOT / "lab" / "results" / "proof.json").read_text("utf-8"))
    studies = proof["simulations"].values()
    schedules = sum(study["schedules"] for study in studies if not study["violations"])
    tried = [trial for trial in proof["field"] if not trial["skipped"]]
    broken = sum(len(trial["broken"]) for trial in tried)
    exceptions = "".join(
        f" The exception: {len(study['violations'])} of {study['schedules']:,} schedules of "
        f"{study['study']} broke a rule, and are not repaired yet."
        for study in studies
        if study["violations"]
    )
    found = sum(mutant["schedule"] is not None for mutant in proof["mutants"])
    return (
        f"{broken or 'No'} promise{'s were' if broken > 1 else ' was'} broken in {schedules:,} simulated "
        f"schedules {'and' if broken else 'or'} in {len(tried)} trials on real servers, with kills, cut "
        f"connections, frozen processes and wrong clocks."
        f"{exceptions} The simulation found {found} of {len(proof['mutants'])} bugs that we planted in the protocol."
    )


EVIDENCE = re.compile(r"(?<=<!-- evidence: made by docs/generate.py -->\n).*(?=\n)")


def with_evidence(text: str) -> str:
    """A page of ours with today's sentence after its mark."""
    return EVIDENCE.sub(evidence(), text)


def map_page() -> str:
    return f"""# Map of the package

![The layers of the package, from values at the top to testing at the bottom](../pictures/rooms.svg)

A layer imports only the layers above it; `tests/house/test_layers.py` checks the imports. The core makes the decisions and does no
I/O. Stores and the runtime do the I/O, and never import each other. [Why generators](why-generators.md) explains how blocking and async
code share one core.

{drawing.table_of_rooms(ROOT / "src" / "twicesafe")}
The docstring of each package lists its modules. [Walks through the code](../contributing/walks.md) follow one call through them.

## Where to look first

{drawing.table_of_questions(ROOT / "src" / "twicesafe")}"""


WALKS = {
    "function": "A function, blocking, on SQLite: the first delivery",
    "repeat": "The same function and key again: a duplicate",
    "request": "A POST request through the ASGI middleware, on PostgreSQL with asyncpg",
    "inbox": "A message through the inbox, in a SQLAlchemy AsyncSession on PostgreSQL",
    "outbox": "A message into the outbox, in a transaction of psycopg",
    "relay": "A relay starts, publishes this message to Kafka, and stops",
}


def _recording(name: str) -> str:
    return (HERE / "drawing" / "sources" / f"{name}.walk").read_text("utf-8")


def walks_page() -> str:
    parts = []
    for name, title in WALKS.items():
        steps = drawing.steps_of(_recording(name))
        files = len({step.file for step in steps})
        listing = textwrap.indent(drawing.listing(_recording(name)), "    ")
        parts.append(
            f"## {title}\n\n"
            f"{len(steps)} function calls in {files} files.\n\n"
            f"![{title}: the folders that the call visits](../pictures/walk-{name}.svg)\n\n"
            f'??? note "The functions, in order"\n    ```text\n{listing}\n    ```\n'
        )
    return """# Walks through the code

Where does a call go? Each picture shows one recorded call. Time runs to the right. Each dot is a call of one of the package's
functions, in the row of its folder. A pale dot is a generator or a coroutine that resumes.

To record the walks again on real servers, run `python -m tests.house.walks`; `python docs/generate.py` then draws them.
`tests/house/test_walks.py` fails if a function no longer exists, or if a call on SQLite takes a different path.

""" + "\n".join(parts)


def _name(state: State | None) -> str:
    return "no record" if state is None else state.value.replace("_", " ")


def _matrix() -> str:
    states: list[State | None] = [None, *State]
    workers = [e for e in RecordEvent if e not in _OTHERS]
    middle = (len(workers) + 1) // 2  # a table of all of them would be wider than its page
    parts = (workers[:middle], workers[middle:], [e for e in RecordEvent if e in _OTHERS])
    blocks = []
    for part in parts:
        rows = [["", *(event.value for event in part)]]
        for state in states:
            cells = [TRANSITIONS.get((state, event), "") for event in part]
            rows.append([_name(state), *("" if c == "" else _name(c) for c in cells)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        lines.insert(1, "  ".join("─" * width for width in widths))
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


_OTHERS = {RecordEvent.EXPIRE, RecordEvent.RELEASE, RecordEvent.RESOLVE, RecordEvent.FORGET}
"""What time and operators do; the rest is done by workers."""


def _merged(only: Callable[[RecordEvent], bool]) -> dict[tuple[State | None, State | None], str]:
    edges: dict[tuple[State | None, State | None], list[str]] = {}
    for (state, event), after in TRANSITIONS.items():
        if only(event):
            edges.setdefault((state, after), []).append(event.value)
    return {edge: ", ".join(labels) for edge, labels in edges.items()}


# ------------------------------------------------------------------ the drawing

_AT: dict[State | None, tuple[int, int]] = {
    None: (100, 60),
    State.RELEASED: (100, 300),
    State.IN_PROGRESS: (360, 180),
    State.HELD: (620, 60),
    State.PARKED: (620, 300),
    State.COMPLETED: (880, 60),
    State.FAILED: (880, 300),
    State.SUSPENDED: (360, 420),
}
_WIDE, _HIGH = 126, 40


def lifecycle_svg() -> str:
    """What workers do to a record. Positions are ours; nodes, arrows and words are the table's."""
    edges = _merged(lambda event: event not in _OTHERS)
    body = [_edge(a, b, label, edges) for (a, b), label in edges.items()]
    used = {state for edge in edges for state in edge}
    body += [_node(state) for state in _AT if state in used]
    return document(980, 460, "The life of a record, as workers move it", body)


def _node(state: State | None) -> str:
    x, y = _AT[state]
    shape = box(
        x - _WIDE // 2,
        y - _HIGH // 2,
        _WIDE,
        _HIGH,
        "note" if state is None else "box",
        dashed=state is None,
    )
    return shape + words(x, y + 5, _name(state), anchor="middle")


def _edge(a: State | None, b: State | None, label: str, edges: dict[Any, str]) -> str:
    (x1, y1), (x2, y2) = _AT[a], _AT[b]
    if a is b:
        top = y1 - _HIGH // 2
        path = f"M{x1 - 24},{top} C{x1 - 50},{top - 56} {x1 + 50},{top - 56} {x1 + 24},{top}"
        return _arrow(path, x1, top - 50, label)
    sx, sy = _rim(x1, y1, x2, y2)
    ex, ey = _rim(x2, y2, x1, y1)
    if (b, a) in edges:  # there and back: two lines side by side
        aside = 14 if x1 > x2 else -14
        sx, ex = sx - aside, ex - aside
    paired = (b, a) in edges
    at = 0.34 if a in (State.HELD, State.PARKED) and y1 != y2 else 0.5
    right, down = ((-46, -12) if x1 > x2 else (34, 16)) if paired else (0, -6)
    return _arrow(
        f"M{sx:.0f},{sy:.0f} L{ex:.0f},{ey:.0f}",
        round(sx + (ex - sx) * at) + right,
        round(sy + (ey - sy) * at) + down,
        label,
    )


def _rim(x: float, y: float, to_x: float, to_y: float) -> tuple[float, float]:
    """Where a line from the middle of a node leaves its box."""
    dx, dy = to_x - x, to_y - y
    reach = min(
        (_WIDE / 2 + 2) / abs(dx) if dx else float("inf"),
        (_HIGH / 2 + 2) / abs(dy) if dy else float("inf"),
    )
    return x + dx * reach, y + dy * reach


def _arrow(path: str, x: float, y: float, label: str) -> str:
    return f'<path class="edge" d="{path}" marker-end="url(#end)"/>' + words(
        x, y, label, "quiet halo", "middle", 13
    )


# ------------------------------------------------------------------ stores, values, names


def stores_page() -> str:
    stores: dict[Any, list[str]] = {}
    homes: dict[Any, ModuleType] = {}
    for scheme, target in SCHEMES.items():
        module, _, names = target.partition(":")
        home = importlib.import_module(module)
        cls = getattr(home, names.split(",")[0])
        stores.setdefault(cls, []).append(scheme)
        homes[cls] = home
    # The module's own first word: "SQLite: the embedded default."
    titles = {cls: re.split(r"[:,]", homes[cls].__doc__ or "")[0] for cls in stores}
    notes = notes_of(Capabilities)
    can = [
        (
            code(field.name),
            notes.get(field.name, ""),
            *(_declared(cls, field.name) for cls in stores),
        )
        for field in fields(Capabilities)
    ]
    sections = []
    for cls, schemes in stores.items():
        options = _options(homes[cls])
        rows = [(code(n), code(_shown(d)), _OPTIONS[n]) for n, d in options.items()]
        known = table("option", "default", "meaning", rows=rows) if options else "No options.\n"
        sections.append(
            f"## {titles[cls]}\n\nURL: {', '.join(code(s + ':') for s in schemes)}\n\n"
            f"{_for_users(homes[cls])}\n\n{_untried(cls)}{known}"
        )
    return f"""# Stores

A URL opens a store: `Receiver.open("sqlite:///keys.db?synchronous=normal")`. The scheme selects the store, and the query
parameters configure it. An unknown parameter is an error. `Receiver.open()` without a URL opens a SQLite file in the user's
data folder.

You can pass the same URL to twicesafe and to SQLAlchemy: `postgresql+psycopg://`, `postgresql+psycopg2://`, `mysql+pymysql://`,
`mysql+asyncmy://`, `mariadb+pymysql://`, `sqlite+aiosqlite:///` and similar spellings work. twicesafe still uses its own driver:
psycopg, PyMySQL or sqlite3, blocking and async. Only `postgresql+asyncpg://` selects another one, for async use.

Other packages can add schemes through the entry-point group `twicesafe.stores`: [write your own store](../how-to/write-a-store.md).

## What each can do

Each store declares its `Capabilities` in the code, and the conformance suite tests what it declares. *Untried*: the code is
there, but no server of the tests has what it needs; the store's section says what that is.

{table("capability", "meaning", *titles.values(), rows=can)}
Every store also takes `?hidden_keys=env:NAME` (or `file:/path`) in its URL: then it gets [hashes instead of the text of keys](../how-to/encryption.md#hide-the-text-of-keys).

For what a store cannot guarantee, see [what we cannot promise](../explanation/what-we-cannot-promise.md), and the pages of the
stores: [SQLite](../how-to/sqlite.md), [PostgreSQL](../how-to/postgresql.md), [MariaDB or MySQL](../how-to/mariadb.md), [Redis or Valkey](../how-to/redis.md), [DynamoDB](../how-to/dynamodb.md), [etcd](../how-to/etcd.md), [MongoDB](../how-to/mongodb.md).

{chr(10).join(sections)}"""


def _titled_stores() -> dict[str, Any]:
    """The class of each store, by the first word of its module: "SQLite: the embedded default."."""
    found = {}
    for target in SCHEMES.values():
        module, _, names = target.partition(":")
        home = importlib.import_module(module)
        found.setdefault(
            re.split(r"[:,]", home.__doc__ or "")[0], getattr(home, names.split(",")[0])
        )
    return found


def _declared(store: Any, capability: str) -> str:
    if not getattr(store.capabilities, capability):
        return "–"
    return "yes, *untried*" if capability in store.untried else "yes"


def _untried(store: Any) -> str:
    if not store.untried:
        return ""
    rows = [
        (code(name) if hasattr(store.capabilities, name) else name, why)
        for name, why in store.untried.items()
    ]
    return f"{table('*untried*', 'why', rows=rows)}\n"


def cli_page() -> str:
    from typer.main import get_command

    from twicesafe._cli import exits, settings
    from twicesafe._cli.app import app_of

    def section(name: str, command: Any) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is not None:
            for short in command.list_commands(None):
                yield from section(f"{name} {short}", inner[short])
            return
        rows = [
            (_shown_as(p), _meaning_of(p))
            for p in command.params
            if p.name != "help" and common.get(_shown_as(p)) != _meaning_of(p)
        ]
        known = table("option", "meaning", rows=rows) if rows else ""
        said = re.sub(r"(?<!\\)\[/?\w*\]", "`", inspect.cleandoc(command.help)).replace("\\[", "[")
        said = re.sub(r"(?<!\n)\nExample: ", "\n\nExample: ", said)
        yield f"## {name}\n\n{said}\n\n{known}"

    every = [p for p in get_command(app_of()).commands["stats"].params if p.name != "help"]
    common = {_shown_as(p): _meaning_of(p) for p in every}
    status = inspect.cleandoc(twicesafe._cli.__doc__ or "").partition("every command:\n\n")[2]
    failing = inspect.cleandoc(exits.__doc__ or "").split("\n\n")[1]
    return f"""# Command line

`pip install "twicesafe[cli]"` installs `twicesafe`; `python -m twicesafe` is the same.

## Options of every command

{table("option", "meaning", rows=list(common.items()))}
With `--json`, a command prints one document to standard output (`sweep --every`: one per round). The field names are stable.
`bench` and `demo` have their own `--store`.

## Exit status

```text
{textwrap.dedent(status)}
```

{line(failing)}

## Settings

{_for_users(settings)}

{chr(10).join(section("twicesafe", get_command(app_of())))}
## JSON

{table("command", "fields", rows=_JSON)}
A record has {", ".join(map(code, _RECORD))}. Times are ISO 8601, in UTC; `id` has 64 digits, or 32 once the key is forgotten.
"""


def _shown_as(parameter: Any) -> str:
    """The options of a parameter, or the name of an argument."""
    if parameter.opts[0].startswith("-"):
        return code(", ".join(parameter.opts))
    return code(str(parameter.metavar or parameter.name).replace("[", "").replace("]", ""))


_RECORD = (
    "id", "key", "scope", "state", "attempt", "fence", "cause", "error", "created_at", "changed_at",
    "lease_until", "not_before", "expires_at", "result_bytes",
)  # fmt: skip
_JSON = [
    ("`keys list`", "`records`: a list of records; `after`: the mark of the next page; empty: last page"),
    ("`keys show`", "a record, and `audit`: a list of `at`, `action`, `by`, `why`, `state_before`"),
    ("`keys release`, `resolve`, `forget`", "the record afterwards"),
    ("`stats`", "`store`, `total`, `by_state`, `stuck`, `expired`, `oldest_in_progress`"),
    ("`sweep`", "`removed`, `examined`, `more`"),
    ("`doctor`", "`store`, `source`, `healthy`, `findings`: a list of `level`, `what`, `remedy`"),
    ("`plan`", ("`store`, `window`, `duplicates`, `target`, `storage`: a list per store, `cost`, `best`, `returns`, "
     "`collisions`, `measured`; seconds, bytes and shares are numbers; null: infinite, or not asked for")),
    ("`config check`", "`file`, `valid`, `settings`: how many are set, `problems`: a list of texts"),
    ("`config show`", "`file`, `settings`: a list of `section`, `setting`, `value`, `from`, `place`"),
    ("`config schema`", "the JSON schema itself"),
    ("`migrate`", "`store`, `done`: what was done, in words; with `--sql`: `sql`"),
    ("`verify`", ("`handler`, `ok`, `verdict`, `notes`, `trials`: a list of `kind`, `name`, `starts`, "
     "`fault`, `note`, and `story` for a bad interleaving")),
    ("`demo`", ("`seed`, `payments`, `planned_deliveries`, `workers`, `kill_every`, `held`, "
     "`broken`, `runs`: the counts of each mode, `saga`: the counts of the checkouts")),
    ("`version`", "`version`, `python`"),
]  # fmt: skip


def _meaning_of(parameter: Any) -> str:
    default = parameter.default
    plain = isinstance(default, (int, float)) and not isinstance(default, bool)
    return (
        (parameter.help or "")
        + (" Required." if parameter.required else "")
        + (f" Default: {default}." if plain else "")
    )


def _options(home: ModuleType) -> dict[str, Any]:
    """The store's OPTIONS; a store in a folder keeps them in its settings."""
    settings = f"{home.__name__}.settings"
    if hasattr(home, "__path__") and importlib.util.find_spec(settings) is not None:
        home = importlib.import_module(settings)
    found: dict[str, Any] = getattr(home, "OPTIONS", {})
    return found


_OPTIONS = {
    "synchronous": "`full`: every commit is synced to the disk. `normal`: a power cut may lose the last commits.",
    "timeout": "Seconds to wait for a connection, a lock or an answer.",
    "table": "The first part of all table names.",
    "migrate": "Create or upgrade the tables when the store is opened.",
    "schema": "The database schema of the tables; default: the first one of `search_path`.",
    "pool": "Connections per process, at most.",
    "prepare": "Prepare statements on the server. Use `false` behind a pooler in transaction mode.",
    "wake": "Wake waiters in other processes by a notification. `false`: they poll.",
    "generations": "How long one partition is written to, such as `6h`: [drop tables instead of sweeping](../how-to/drop-cleanup.md).",
    "ssl": "`prefer`, `off`, `require` (encrypted) or `verify` (encrypted, and the server's name is checked).",
    "ssl_ca": "File with the CA certificate, for `verify`.",
    "socket": "Path of a Unix socket, instead of host and port.",
    "prefix": "The first part of all key names.",
    "wait_replicas": "How many replicas must have a claim or a result before it counts.",
    "wait_timeout": "Seconds to wait for those replicas.",
    "db": "Number of the database; a Cluster has none.",
    "sentinel_user": "User of the sentinels, if it differs.",
    "sentinel_password": "Password of the sentinels, if it differs.",
    "ca_certs": "File with the CA certificate, for TLS.",
    "certfile": "File with the client's certificate.",
    "keyfile": "File with the client's private key.",
    "verify": "`false` accepts any certificate of the server.",
    "region": "Such as `eu-central-1`; default: the one that boto3 finds.",
    "endpoint": "The URL of an emulator or of a VPC endpoint; default: AWS.",
    "skew": "Seconds by which two workers may disagree about the time: [leases](../how-to/dynamodb.md#leases).",
    "collection": "The name of the collection.",
}
"""What the options of the stores mean, by name."""


def _for_users(home: ModuleType) -> str:
    """The docstring of a module as Markdown, without its list of files."""
    beside = Path(home.__file__ or "").parent
    parts: list[str] = []
    for part in inspect.cleandoc(home.__doc__ or "").split("\n\n"):
        if not part.startswith(" "):
            parts.append(line(part))
        elif not (beside / f"{part.split()[0]}.py").exists():
            block = f"```text\n{textwrap.dedent(part)}\n```"
            if parts and parts[-1].endswith("```"):
                block = (
                    f"{parts.pop().removesuffix('```')}\n{block.removeprefix('```text' + chr(10))}"
                )
            parts.append(block)
    return re.sub(r"docs/([\w-]+/([\w-]+)\.md)", r"[\2](../\1)", "\n\n".join(parts))


def _shown(value: object) -> str:
    return (
        "(none)" if value == "" else str(value).lower() if isinstance(value, bool) else str(value)
    )


def values_page() -> str:
    def section(cls: Any, title: str = "") -> str:
        notes, types = notes_of(cls), annotations_of(cls)
        names = (
            [f.name for f in fields(cls)]
            if is_dataclass(cls)
            else list(cls.__struct_fields__)
            if issubclass(cls, msgspec.Struct)
            else []
        )
        rows = [(code(n), code(types[n]), notes.get(n, "")) for n in names]
        rows += [
            (code(n), code(_returns(p)), first_line(p))
            for n, p in vars(cls).items()
            if isinstance(p, property) and not n.startswith("_")
        ]
        doc = own_doc(cls)
        return f"## {title or cls.__name__}\n\n{doc}\n\n" + table(
            "field", "type", "meaning", rows=rows
        )

    event_rows = []
    for name in events.__all__:
        cls = getattr(events, name)
        if inspect.isclass(cls) and issubclass(cls, events.Event) and cls is not events.Event:
            shown = ", ".join(code(n) for n in cls.__struct_fields__)
            event_rows.append((code(name), shown, own_doc(cls)))
    parts = [
        section(twicesafe.Outcome),
        section(twicesafe.Failure),
        section(records.Record),
        section(records.Stats),
        section(records.SweepReport),
        section(records.AuditEntry),
        _active_claim(),
    ]
    return f"""# Values: outcomes, records, events

A receiver returns these values. All are immutable except the claim, which changes while it is held.

{chr(10).join(parts)}
## Events

{first_line(events)} {line((events.__doc__ or "").split(chr(10) + chr(10))[1])}

```python
from twicesafe import Receiver
from twicesafe.events import Replayed

seen = []
with Receiver.open("memory://", observers=[seen.append]) as receiver:
    receiver.process("tx-1", lambda: 7)
    receiver.process("tx-1", lambda: 7)

assert [type(event).__name__ for event in seen] == ["Started", "Completed", "Replayed"]
assert isinstance(seen[-1], Replayed) and seen[-1].age >= 0
```

{table("event", "fields", "meaning", rows=event_rows)}"""


def _returns(prop: property) -> str:
    text = str(typing.cast("Any", prop.fget).__annotations__.get("return", "Any"))
    return text.replace(" | ", " or ")


def _active_claim() -> str:
    cls = context.ActiveClaim
    rows = [
        (code("key"), "The key that this handler runs under."),
        (
            code("fence"),
            "Strictly increasing per key: pass it to resources that refuse smaller ones.",
        ),
        (code("attempt"), "1, or more with a `cause`."),
        (code("cause"), "Why the handler was started again; None on the first start."),
        *((code(n), first_line(p)) for n, p in vars(cls).items() if isinstance(p, property)),
        (code("check()"), first_line(cls.check)),
    ]
    return (
        f"## ActiveClaim\n\n{own_doc(cls)} In a handler, `current_claim()` returns it.\n\n"
        + table("name", "meaning", rows=rows)
    )


def api_page() -> str:
    sections = [
        _class_section(
            twicesafe.Receiver, "`AsyncReceiver` is the async version, with the same names."
        ),
        _class_section(twicesafe.Key),
        _class_section(claims.Claim, "`AsyncClaim` is the async version."),
        _class_section(handlers.MessageHandler, "`AsyncMessageHandler` is the async version."),
        _class_section(twicesafe.Inbox, "`AsyncInbox` is the async version, with the same names."),
        _class_section(
            twicesafe.Outbox, "`AsyncOutbox` is the async version, with the same names."
        ),
        _class_section(
            twicesafe.OutboxRelay, "`AsyncOutboxRelay` is the async version, with the same names."
        ),
        _class_section(
            consumers.Consumer,
            "Import it from `twicesafe.consumers`. `AsyncConsumer` is the async version, with the same names.",
        ),
        _class_section(consumers.DeadLetters, "Import it from `twicesafe.consumers`."),
    ]
    functions = [
        (code(f"{f.__name__}{_signature(f)}"), first_line(f))
        for f in (context.current_claim, context.current_key, context.key_scope)
    ]
    names = ", ".join(code(n) for n in sorted(twicesafe.__all__) if n not in errors.__all__)
    return f"""# API

Import all of these from `twicesafe`: {names}, and the [errors](errors.md).

{chr(10).join(sections)}
## Functions

{table("function", "meaning", rows=functions)}"""


def _class_section(cls: type, more: str = "") -> str:
    """The class's own names first, then those of its bases."""
    rows: dict[str, tuple[str, str]] = {}
    for base in cls.__mro__:
        if not base.__module__.startswith("twicesafe"):
            continue
        for name, thing in vars(base).items():
            if name in rows or (name.startswith("_") and name != "__call__"):
                continue
            inner = getattr(thing, "__func__", thing)
            if inspect.isfunction(inner):
                called = "" if name == "__call__" else f".{name}"
                rows[name] = (code(called + _signature(inner)), first_line(inner))
            elif isinstance(thing, property):
                rows[name] = (code(f".{name}"), first_line(thing))
    return f"## {cls.__name__}\n\n{own_doc(cls)} {more}\n\n" + table(
        "name", "meaning", rows=list(rows.values())
    )


def _signature(function: Any) -> str:
    """Parameters and defaults; types are in the code, and shown by every editor."""
    shown, star = [], False
    for p in inspect.signature(function).parameters.values():
        if p.name in ("self", "cls"):
            continue
        if p.kind is p.VAR_POSITIONAL:
            shown.append(f"*{p.name}")
            star = True
        elif p.kind is p.VAR_KEYWORD:
            shown.append(f"**{p.name}")
        else:
            if p.kind is p.KEYWORD_ONLY and not star:
                shown.append("*")
                star = True
            default = "" if p.default is p.empty else f"={_default(p.default)}"
            shown.append(p.name + default)
    return f"({', '.join(shown)})"


def _default(value: object) -> str:
    if value is typing.Any:
        return "Any"
    return "…" if value is ... else repr(value)


def main() -> int:
    for name, text in pages().items():
        path = HERE / name
        path.parent.mkdir(exist_ok=True)
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            sys.stdout.write(f"written: docs/{name}\n")
    for name, text in shipped().items():
        (ROOT / name).write_text(text, "utf-8")
    for path in (ROOT / "README.md", HERE / "index.md", HERE / "evidence.md"):
        path.write_text(with_evidence(path.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
