"""Writes the reference pages from the code: ``python docs/generate.py``.

What is in the code is said there, once: settings with their defaults and meaning, errors with
their status, states with their transitions, stores with what they can do. These pages only show
it. `tests/house/test_reference.py` fails when a committed page is not what this script makes.
"""  # noqa: INP001 - a script beside the pages it writes

from __future__ import annotations

import ast
import enum
import importlib
import importlib.util
import inspect
import json
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
from twicesafe import client, errors, events
from twicesafe._core.lifecycle import TRANSITIONS, RecordEvent
from twicesafe._proxy.metrics import NAMED
from twicesafe._proxy.settings import HTTP, PREFIXES, PROXY, ProxySettings
from twicesafe._values import context, policy, records
from twicesafe._values.records import Cause, State
from twicesafe.client import _budget as budget
from twicesafe.client import _final_answers as judging
from twicesafe.client._policy import TRY_AGAIN
from twicesafe.receiver import _claim as claims
from twicesafe.receiver import _message_handler as handlers
from twicesafe.stores._base import Capabilities
from twicesafe.stores._urls import SCHEMES

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]

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
        "reference/proxy.md": NOTE + proxy_page(),
        "reference/errors.md": NOTE + errors_page(),
        "reference/states.md": NOTE + states_page(),
        "reference/stores.md": NOTE + stores_page(),
        "reference/values.md": NOTE + values_page(),
        "reference/cli.md": NOTE + cli_page(),
        "explanation/map.md": NOTE + map_page(),
        "contributing/walks.md": NOTE + walks_page(),
        "reference/lifecycle.svg": lifecycle_svg(),
        **{f"pictures/{name}.svg": picture for name, picture in pictures().items()},
    }


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
    return made


# ------------------------------------------------------------------ reading the code


def notes_of(cls: type) -> dict[str, str]:
    """The text under each attribute of a class, as written in its source."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            target = before.targets[0] if isinstance(before, ast.Assign) else before
            name = getattr(target, "id", None) or getattr(
                getattr(target, "target", None), "id", None
            )
            if name:
                found[name] = line(str(after.value.value))
    return found


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

{own_doc(policy.Policy)} Durations are seconds, a `timedelta`, or text: `"90s"`, `"1h30m"`, `"7d"`, `"250ms"`. An invalid value raises `ConfigurationError`, which names the
setting and the fix.

Policies are not merged: the decorator's policy applies if it has one, else the receiver's, else the default. So a
`Policy(takeover="hold")` on a decorator has the default `retention`, whatever the receiver's is. To change one setting and keep the
rest: `receiver.policy.replace(takeover="hold")`. For one call, use `receiver.options(policy=…).process(…)`. The HTTP middlewares
use [HttpPolicy](http.md#settings). Without one, `lease`, `max_lease`, `retention` and `max_waiters` of the receiver's `Policy` apply to
requests; other settings are logged as a warning, and a codec that would not be used raises `ConfigurationError`.

{table("setting", "default", "type", "meaning", rows=rows(policy.Policy))}
`policy.replace(lease=5)` is the same policy with one setting changed. `receiver.options(policy=…)` is a receiver with
another policy on the same store.

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

How to use them: [Call an API that honours Idempotency-Key](../how-to/call-an-api.md),
[Keys across services](../how-to/keys-across-services.md).

| library | name | extra |
|---|---|---|
| httpx | `twicesafe.client.httpx.RetryTransport`, `AsyncRetryTransport` | `twicesafe[httpx]` |
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

{own_doc(client.Sent)} `sent_of(response)` and `sent_of(error)` give it.

{table("name", "meaning", rows=sent)}"""


def proxy_page() -> str:
    notes = notes_of(ProxySettings)
    proxy = [
        (
            code(field.name),
            "" if field.default is MISSING else code(repr(field.default)),
            code(PREFIXES["proxy"] + field.name.upper()),
            notes[field.name],
        )
        for field in fields(ProxySettings)
        if field.name in PROXY
    ]
    http = ", ".join(code(name) for name in HTTP if name != "profile")
    return f"""# Proxy

How to use it: [Protect a service in any language](../how-to/proxy.md). The command: [twicesafe proxy](cli.md).

## Settings

Set them in `[proxy]` of `twicesafe.toml`, or in environment variables. Durations are seconds, or text: `"30s"`, `"1h30m"`, `"7d"`. In a variable, separate several
values with commas. The options `--upstream`, `--listen`, `--admin`, `--workers` and `--store` override both. An unknown name is
refused.

{table("setting", "default", "variable", "meaning", rows=proxy)}
The store is `--store`, `TWICESAFE_STORE_URL`, or `url` in `[store]`.

## Settings of the HTTP layer

Set them in `[http]`, or in variables that begin with `{PREFIXES["http"]}`: `profile` (`draft`, `stripe`, `paypal`, `webhook:github` and
similar), and these settings of [HttpPolicy](http.md#settings): {http}. Here `unknown_status` is 502 by default. `key_from` is a list of
`header:NAME`, `query:NAME`, `json:PATH` and `body`.

## Signals and exit

| signal | what happens |
|---|---|
| SIGTERM, SIGINT | it accepts no new requests, gives running ones `grace` seconds, and exits with status 0 |
| SIGHUP | it reads the settings again, and new workers take over; invalid settings change nothing |

With invalid settings it exits with status 2 before it listens.

## Metrics

`/metrics` of the admin listener shows the sum over all workers:

{table("metric", "label", "meaning", rows=[(code(f"twicesafe_proxy_{n}" + ("_total" if k == "counter" else "")), label, text) for n, (k, label, text) in NAMED.items()])}"""


def errors_page() -> str:
    tree = (errors.__doc__ or "").split("\n\n")[1]
    rows = []
    for name in errors.__all__:
        cls = getattr(errors, name)
        parent = cls.__mro__[1].__name__
        extra = sorted(set(_init_names(cls)) - {"message", "key"})
        rows.append(
            (
                code(name),
                code(parent),
                str(cls.http_status),
                "yes" if cls.retryable else "no",
                ", ".join(map(code, extra)),
                own_doc(cls),
            )
        )
    return f"""# Errors

Every error has `.key`, `.retryable` and `.http_status`. Its text says what happened, who must act and what to do next. `retryable`
means that the same call may succeed later, unchanged. Import all of them from `twicesafe`. Errors can be pickled, so they work with
process pools. They never show a whole key, only the first eight hex digits of its identity.

Exceptions of your handler are not in this list. They reach the caller unchanged.

```text
{fitted(textwrap.dedent(tree))}
```

{table("error", "is a", "HTTP", "retryable", "also has", "meaning", rows=rows)}"""


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

One table in the code, `_core.lifecycle.TRANSITIONS`, defines what can happen to a record, and this page is generated from it. Nothing
else can happen. Every transition is one atomic conditional write of the store.

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

The reason is in `record.cause`, and in `current_claim().cause` in a handler. The first start has none. A record that was swept or lost
leaves no trace: the next start counts as the first.

{table("cause", "meaning", rows=_enum_rows(Cause))}"""


def evidence() -> str:
    """What the last published run of the lab found, in one sentence."""
    proof = json.loads((ROOT / "lab" / "results" / "proof.json").read_text("utf-8"))
    schedules = sum(study["schedules"] for study in proof["simulations"].values())
    tried = [trial for trial in proof["field"] if not trial["skipped"]]
    broken = sum(len(trial["broken"]) for trial in tried) + sum(
        len(study["violations"]) for study in proof["simulations"].values()
    )
    found = sum(mutant["schedule"] is not None for mutant in proof["mutants"])
    return (
        f"{schedules:,} simulated schedules and {len(tried)} trials on real servers (killed, cut off, "
        f"frozen, with wrong clocks) broke {broken or 'no'} promise{'s' if broken > 1 else ''}; the "
        f"simulation caught {found} of {len(proof['mutants'])} bugs that were planted in the protocol."
    )


EVIDENCE = re.compile(r"(?<=<!-- evidence: made by docs/generate.py -->\n).*(?=\n)")


def with_evidence(text: str) -> str:
    """A page of ours with today's sentence after its mark."""
    return EVIDENCE.sub(evidence(), text)


def map_page() -> str:
    return f"""# Map of the package

![The layers of the package, from values at the top to testing at the bottom](../pictures/rooms.svg)

A layer imports only the layers above it; `tests/house/test_layers.py` reads the imports and checks this. The core decides and does
no I/O. Stores and runtime act, and never import each other. [Why generators](why-generators.md) explains how blocking and async code share
one core.

{drawing.table_of_rooms(ROOT / "src" / "twicesafe")}"""


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
            f"{len(steps)} calls of functions of the package, in {files} files.\n\n"
            f"![{title}: the folders that it visits, call by call](../pictures/walk-{name}.svg)\n\n"
            f'??? note "The functions, in order"\n    ```text\n{listing}\n    ```\n'
        )
    return """# Walks through the code

Where does a call go? Each picture is the recording of one real call: time goes to the right, one dot per function of the
package, and its row is the folder that the function is in. A pale dot is a generator or a coroutine that goes on where it had
stopped.

`python -m tests.house.walks` records them again on real servers, `python docs/generate.py` draws them. `tests/house/test_walks.py`
fails if a function of a walk is gone, or if a call on SQLite takes another way.

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
}
_WIDE, _HIGH = 126, 40


def lifecycle_svg() -> str:
    """What workers do to a record. Positions are ours; nodes, arrows and words are the table's."""
    edges = _merged(lambda event: event not in _OTHERS)
    body = [_edge(a, b, label, edges) for (a, b), label in edges.items()]
    used = {state for edge in edges for state in edge}
    body += [_node(state) for state in _AT if state in used]
    return document(980, 360, "The life of a record, as workers move it", body)


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
            *("yes" if getattr(cls.capabilities, field.name) else "–" for cls in stores),
            notes.get(field.name, ""),
        )
        for field in fields(Capabilities)
    ]
    sections = []
    for cls, schemes in stores.items():
        options = _options(homes[cls])
        known = (
            table(
                "option", "default", rows=[(code(n), code(_shown(d))) for n, d in options.items()]
            )
            if options
            else "No options.\n"
        )
        sections.append(
            f"## {titles[cls]}\n\nURL: {', '.join(code(s + ':') for s in schemes)}\n\n"
            f"```text\n{fitted(homes[cls].__doc__ or '')}\n```\n\n{known}"
        )
    return f"""# Stores

A store is opened by its URL: `Receiver.open("sqlite:///keys.db?synchronous=normal")`. The scheme chooses the store, query
parameters configure it, and unknown parameters are refused by name. `Receiver.open()` without a URL is SQLite in the user's
data folder. The spellings of SQLAlchemy are understood too (`postgresql+psycopg://`, `postgresql+psycopg2://`,
`mysql+pymysql://`, `mysql+asyncmy://`, `mariadb+pymysql://`, `sqlite+aiosqlite:///` …), so that one URL can serve both. The driver is
still chosen here: psycopg, PyMySQL and sqlite3, for blocking and async use. Only `postgresql+asyncpg://` chooses one, for async use.
Other packages add schemes through the entry-point group `twicesafe.stores`: [write your own
store](../how-to/write-a-store.md).

## What each can do

Each store declares its `Capabilities` in the code, and the conformance suite tests what it declares.

{table("capability", *titles.values(), "meaning", rows=can)}
For what each of them cannot guarantee, see [what we cannot promise](../explanation/what-we-cannot-promise.md), and the pages of the
servers: [PostgreSQL](../how-to/postgresql.md), [MariaDB or MySQL](../how-to/mariadb.md), [Redis or Valkey](../how-to/redis.md).

{chr(10).join(sections)}"""


def cli_page() -> str:
    from typer.main import get_command

    from twicesafe._cli import config, exits
    from twicesafe._cli.app import app

    def section(name: str, command: Any) -> Iterator[str]:
        inner = getattr(command, "commands", None)
        if inner is not None:
            for short in command.list_commands(None):
                yield from section(f"{name} {short}", inner[short])
            return
        rows = [
            (code(", ".join(p.opts) if p.opts[0].startswith("-") else _argument(p)), _meaning_of(p))
            for p in command.params
            if p.name != "help"
        ]
        said = re.sub(r"(?<!\\)\[/?\w*\]", "`", inspect.cleandoc(command.help)).replace("\\[", "[")
        yield f"## {name}\n\n{said}\n\n{table('option', 'meaning', rows=rows)}"

    status = inspect.cleandoc(twicesafe._cli.__doc__ or "").partition("everywhere:\n\n")[2]
    return f"""# Command line

`pip install "twicesafe[cli]"` installs `twicesafe`; `python -m twicesafe` is the same. With `--json`, every command prints one
document to standard output (`sweep --every`: one per round). The field names are stable.

Exit status:

```text
{inspect.cleandoc("    " + status)}
```

{line((exits.__doc__ or "").partition("status.")[2])}

## Settings

```text
{fitted(config.__doc__ or "")}
```

{chr(10).join(section("twicesafe", get_command(app)))}
## JSON

{table("command", "fields", rows=_JSON)}
Of a record: {", ".join(map(code, _RECORD))}. Times are ISO 8601, in UTC; `id` is all 64 digits.
"""


def _argument(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name).strip("[]")


_RECORD = (
    "id", "key", "scope", "state", "attempt", "fence", "cause", "error", "created_at", "changed_at",
    "lease_until", "not_before", "expires_at", "result_bytes",
)  # fmt: skip
_JSON = [
    ("`keys list`", "`records`: a list of records; `after`: the mark of the next page, or empty"),
    ("`keys show`", "a record, and `audit`: a list of `at`, `action`, `by`, `why`, `state_before`"),
    ("`keys release`, `resolve`, `forget`", "the record afterwards"),
    ("`stats`", "`store`, `total`, `by_state`, `stuck`, `expired`, `oldest_in_progress`"),
    ("`sweep`", "`removed`, `examined`, `more`"),
    ("`doctor`", "`store`, `source`, `healthy`, `findings`: a list of `level`, `what`, `remedy`"),
    ("`migrate`", "`store`, `done`: what was done, in words; with `--sql`: `sql`"),
    ("`verify`", ("`handler`, `ok`, `verdict`, `notes`, `trials`: a list of `kind`, `name`, `starts`, "
     "`fault`, `note`, and of a bad interleaving its `story`")),
    ("`demo`", ("`seed`, `payments`, `planned_deliveries`, `workers`, `kill_every`, `held`, "
     "`broken`, `runs`: per mode its counts")),
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

These are the values that a receiver returns. All are immutable, except the claim, which changes while it is held.

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
    return f"## ActiveClaim\n\n{own_doc(cls)} `current_claim()` gives it to a handler.\n\n" + table(
        "name", "meaning", rows=rows
    )


def api_page() -> str:
    sections = [
        _class_section(
            twicesafe.Receiver, "AsyncReceiver is the async version, with the same names."
        ),
        _class_section(twicesafe.Key),
        _class_section(claims.Claim, "AsyncClaim is the async version."),
        _class_section(handlers.MessageHandler, "AsyncMessageHandler is the async version."),
        _class_section(twicesafe.Inbox, "AsyncInbox is the async version, with the same names."),
        _class_section(twicesafe.Outbox, "AsyncOutbox is the async version, with the same names."),
        _class_section(
            twicesafe.OutboxRelay, "AsyncOutboxRelay is the async version, with the same names."
        ),
    ]
    functions = [
        (code(f"{f.__name__}{_signature(f)}"), first_line(f))
        for f in (context.current_claim, context.current_key, context.key_scope)
    ]
    names = ", ".join(code(n) for n in sorted(twicesafe.__all__) if n not in errors.__all__)
    return f"""# Names

All public names import from `twicesafe`: {names}, and the [errors](errors.md).

{chr(10).join(sections)}
## Functions

{table("function", "meaning", rows=functions)}"""


def _class_section(cls: type, more: str = "") -> str:
    rows = []
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("twicesafe"):
            continue
        for name, thing in vars(base).items():
            if name.startswith("_") and name != "__call__":
                continue
            inner = getattr(thing, "__func__", thing)
            if inspect.isfunction(inner):
                called = "" if name == "__call__" else f".{name}"
                rows.append((code(called + _signature(inner)), first_line(inner)))
            elif isinstance(thing, property):
                rows.append((code(f".{name}"), first_line(thing)))
    unique = dict(rows)
    return f"## {cls.__name__}\n\n{own_doc(cls)} {more}\n\n" + table(
        "name", "meaning", rows=list(unique.items())
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
    for path in (ROOT / "README.md", HERE / "index.md", HERE / "evidence.md"):
        path.write_text(with_evidence(path.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
