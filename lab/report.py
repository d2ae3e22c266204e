"""The report: numbers as JSON, and pages for readers made of nothing but these numbers.

`proof.md` is what to read first: what was tried, and what it found. The other pages have the long tables.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from .field import Trial
from .field.page import field_page, field_versions, trials_in_short
from .fuzz import Tally as Compared
from .model import Check, version
from .mutants import LIMIT
from .mutants.sources import Kill
from .parts import our_version
from .simulation import STUDIES
from .simulation.campaign import Hunt, Tally

__all__ = ["FOLDER", "NUMBERS", "PAGES", "Proof", "pages", "publish", "publish_trials", "read"]

ROOT = Path(__file__).parent.parent
NUMBERS = ROOT / "lab" / "results" / "proof.json"
FOLDER = ROOT / "docs" / "explanation"
PAGES = ("proof.md", "proof-simulations.md", "proof-planted-bugs.md", "proof-trials.md")


class Proof(msgspec.Struct):
    simulations: dict[str, Tally] = {}
    """By study."""
    mutants: list[Hunt] = []
    sources: list[Kill] = []
    source_mutants: int = 0
    """How many there are; `sources` may be some of them."""
    model: list[Check] = []
    readers: list[Compared] = []
    field: list[Trial] = []
    tried: dict[str, str] = {}
    """By part: the version that it ran on."""
    versions: dict[str, str] = {}


def publish(new: Proof, parts: Sequence[str]) -> None:
    """The parts of this run into the published numbers, beside parts of earlier runs."""
    proof = read(NUMBERS) if NUMBERS.exists() else Proof()
    proof.simulations |= new.simulations
    for part in parts:
        if part not in STUDIES:
            setattr(proof, part, getattr(new, part))
    if "sources" in parts:
        proof.source_mutants = new.source_mutants
    proof.tried |= dict.fromkeys(parts, our_version())
    proof.versions |= {"python": platform.python_version(), "spin": version()}
    proof.versions |= field_versions(new.field)
    _write(proof)


def publish_trials(trials: Iterable[Trial], *, add: bool = False) -> None:
    """Trials of the field that were run apart. Each replaces the published one of its name and engine, or is added
    to it: further portions, perhaps of a later version."""
    proof = read(NUMBERS)
    new: dict[tuple[str, str], Trial] = {}
    for done in trials:
        blank = replace(done, tried=0, counts={}, broken=[], notes=[], seconds=0.0)
        whole = new.setdefault((done.name, done.engine), blank)
        whole.version = whole.version or our_version()
        whole.add(done)
        whole.seconds += done.seconds
    known = {(done.name, done.engine): done for done in proof.field}
    for place, whole in new.items():
        if add and place in known:
            before = known[place]
            whole.add(before)
            whole.seconds += before.seconds
            whole.version = "; ".join(
                sorted({*whole.version.split("; "), *before.version.split("; ")})
            )
        known[place] = whole
    proof.field = list(known.values())
    _write(proof)


def _write(proof: Proof) -> None:
    NUMBERS.parent.mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(proof, order="sorted"), indent=1) + b"\n"
    NUMBERS.write_bytes(text)
    for name, page in pages(read(NUMBERS)).items():
        (FOLDER / name).write_text(page, "utf-8")


def read(file: Path) -> Proof:
    return msgspec.json.decode(file.read_bytes(), type=Proof)


def pages(proof: Proof) -> dict[str, str]:
    """The text of each of `PAGES`."""
    tallies = [proof.simulations[name] for name in STUDIES]
    made = (
        [
            *_head(proof),
            *_simulations(tallies),
            *_mutants_in_short(proof.mutants),
            *_sources_in_short(proof.sources, proof.source_mutants),
            *_model(proof.model),
            *_readers(proof.readers),
            *trials_in_short(proof.field),
            *_LIMITS,
        ],
        [*_SIMULATIONS, *(line for tally in tallies for line in _simulation(tally))],
        [*_PLANTED, *_mutants(proof.mutants), *_sources(proof.sources)],
        [*_TRIALS, *field_page(proof.field)],
    )
    texts = ["\n".join(lines).rstrip("\n") + "\n" for lines in made]
    return dict(zip(PAGES, texts, strict=True))


def _head(proof: Proof) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    commits: dict[str, list[str]] = {}
    for part, commit in proof.tried.items():
        commits.setdefault(commit, []).append(part)
    return [
        "# The proof lab",
        "",
        "This page shows how we try to break our promises, and what happened. There are simulated schedules, planted",
        "bugs, a model checker, and real servers that we kill, cut off and freeze. `make prove ARGS=--publish` writes",
        "this page. A full run takes hours, so parts can be run separately (`--only`). The parts ran on these versions:",
        "",
        *(f"- {commit}: {', '.join(parts)}" for commit, parts in commits.items()),
        "",
        f"Other versions: {versions}. You can repeat everything below in a clone with `make prove`.",
        "[Other libraries under test](peers-tried.md) shows what the same failures do to other libraries.",
        "",
    ]


def _simulations(tallies: list[Tally]) -> list[str]:
    return [
        "## Simulation",
        "",
        "The core makes its decisions in generators that yield requests and commands as data. So a scheduler can",
        "run the shipped code and control time, network, processes and randomness. The same seed gives exactly the",
        "same schedule. This command shrinks a failing schedule and prints it line by line:",
        "",
        "<!-- no-run: for a clone of the repository, not for users of the package -->",
        "```console",
        "$ python -m lab simulate --seed 9 --mutant 'takeover keeps fence' --shrink --trace",
        "```",
        "",
        "| | schedules | events | violations | |",
        "|---|---|---|---|---|",
        *(_in_short(tally) for tally in tallies),
        "",
        "[Simulations in detail](proof-simulations.md): the invariants of each study, and what happened in its schedules.",
        "",
    ]


def _in_short(tally: Tally) -> str:
    last = tally.first_seed + tally.schedules - 1
    each = 1000 * tally.cpu_seconds / max(1, tally.schedules)
    return (
        f"| {tally.study} | {tally.schedules:,} (seeds {tally.first_seed} to {last}) "
        f"| {tally.events:,} | **{len(tally.violations)}** "
        f"| {tally.seconds:.0f} s, {each:.2f} ms of processor per schedule |"
    )


def _simulation(tally: Tally) -> list[str]:
    study = STUDIES[tally.study]
    lines = [
        f"## {study.name.capitalize()}",
        "",
        study.about,
        "",
        "| invariant | what must hold |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in study.rules.items()),
        "",
        "| what happened in the schedules | |",
        "|---|---|",
    ]
    for kind, title in study.met.items():
        found = {
            what.removeprefix(f"{kind}: ").replace(": ", " → "): count
            for what, count in sorted(tally.seen.items())
            if what.startswith(f"{kind}: ")
        }
        told = ", ".join(f"{what} {count:,}" for what, count in found.items())
        lines.append(f"| {title} | {told} |")
    if tally.violations:
        lines += ["", "| broken, and not repaired yet | seeds |", "|---|---|"]
        for rule in sorted({one.invariant for one in tally.violations}):
            seeds = [f"{one.seed}" for one in tally.violations if one.invariant == rule]
            lines.append(f"| {rule} | {', '.join(seeds)} |")
    return [*lines, ""]


def _mutants_in_short(hunts: list[Hunt]) -> list[str]:
    found = [hunt for hunt in hunts if not hunt.survived]
    return [
        "## Planted bugs in the protocol",
        "",
        "Could the lab find a bug at all? To find out, we plant bugs in the protocol, one at a time. The simulation must",
        f"find each of them within {LIMIT:,} schedules. **It found {len(found)} of {len(hunts)}.** (For four of them,",
        "we switch off an invariant that would catch a related bug first.)",
        "[The list of planted bugs](proof-planted-bugs.md) says how each was found.",
        "",
    ]


def _mutants(hunts: list[Hunt]) -> list[str]:
    return [
        "## In the protocol",
        "",
        "| bug | found by schedule | broken invariant |",
        "|---|---|---|",
        *(f"| {hunt.bug} | {_place(hunt)} | {hunt.invariant} |" for hunt in hunts),
        "",
    ]


def _place(hunt: Hunt) -> str:
    return "**not found**" if hunt.survived else f"{hunt.study} {hunt.schedule}"


def _readers(tallies: list[Compared]) -> list[str]:
    if not tallies:
        return []
    return [
        "## Parsers that disagree",
        "",
        "The proxy's guard decides where a message ends; then a parser reads the message. The lab gives",
        "mutated messages, cut into pieces, to the guard, to h11, to llhttp and to gunicorn's parser. If the",
        "guard accepts a message, they must all agree on where it ends, and on method, target, headers and body.",
        "",
        "| | messages | accepted | refused | disagreements |",
        "|---|---|---|---|---|",
        *(
            f"| {tally.target} | {tally.inputs:,} | {tally.accepted:,} "
            f"| {tally.inputs - tally.accepted:,} | **{len(tally.findings)}** |"
            for tally in tallies
        ),
        "",
    ]


def _sources_in_short(kills: list[Kill], every: int) -> list[str]:
    if not kills:
        return []
    killed = [kill for kill in kills if kill.killed_by]
    return [
        "## Planted bugs in the sources",
        "",
        "The simulation runs the core. We also plant bugs in the SQL, the scripts, the adapters, the publishers",
        "and the HTTP rules around it, one at a time, and the test suite must fail.",
        f"This run tried {len(kills)} of {every}, and **the tests caught {len(killed)}.**",
        "[The list](proof-planted-bugs.md#in-the-sources) names the test that caught each.",
        "",
    ]


def _sources(kills: list[Kill]) -> list[str]:
    if not kills:
        return []
    return [
        "## In the sources",
        "",
        "| file | bug | found by |",
        "|---|---|---|",
        *(f"| `{kill.file}` | {kill.bug} | {_killer(kill)} |" for kill in kills),
        "",
    ]


def _killer(kill: Kill) -> str:
    return f"`{kill.killed_by}`" if kill.killed_by else f"**not found**: {kill.why}"


def _model(checks: list[Check]) -> list[str]:
    lines = [
        "## Model checking",
        "",
        "`lab/model/claims.pml` describes the claim protocol of one key in Promela: claims, lost and late",
        "messages, paused workers, an operator's release. spin checks *every* interleaving of it. Ghost",
        "variables detect two live owners, a second result, a stale write and a fence that is used twice.",
        "",
        "| | workers × claims | states | |",
        "|---|---|---|---|",
    ]
    for one in checks:
        said = "an assertion fails, as it should" if one.caught else "no assertion fails"
        if one.skipped:
            said = f"skipped: {one.skipped}"
        elif not one.as_expected:
            said = "**not as expected**"
        lines.append(f"| {one.what} | {one.workers} × {one.claims} | {one.states:,} | {said} |")
    return [*lines, ""]


_SIMULATIONS = [
    "# Simulations in detail",
    "",
    "[The proof lab](proof.md#simulation) runs the shipped code under a scheduler. This page has the invariants of each",
    "study, which it checks in every schedule, and counts what happened in the schedules of the published run.",
    "",
]
_PLANTED = [
    "# Planted bugs",
    "",
    "Each row is a bug that [the proof lab](proof.md#planted-bugs-in-the-protocol) planted, one at a time, and what",
    "found it in the published run.",
    "",
]
_TRIALS = [
    "# Trials on real servers",
    "",
    "Every trial of [the proof lab](proof.md#trials-on-real-servers) on real servers: what it does, what it counted,",
    "and what broke.",
    "",
]
_LIMITS = [
    "## What this can show, and what it cannot",
    "",
    "- A simulation is a sample. No violation in many schedules is evidence, not a proof; the planted bugs",
    "  show how good the evidence is. The model is exhaustive, but it is not the code. It covers one key and",
    "  a few workers. In it, all that time does is make leases expire.",
    "- The simulation and the model check the *protocol*, on a store that decides atomically. The field trials and the",
    "  conformance suite check whether SQLite, PostgreSQL, MariaDB and Valkey do so.",
    "- The simulated database has commits, row locks and cut connections, like READ COMMITTED on",
    "  PostgreSQL. The field trials and the tests cover what real engines add: other isolation levels and",
    "  their anomalies, savepoints, several keys in one transaction.",
    "- The simulated relays use the SQLite outbox, which handles one request after the other. Late commits",
    "  and wake-ups are imitated. The field trials and the tests cover the locks between relays, operators",
    "  and writers on PostgreSQL and MariaDB.",
    "- The simulated durable functions run on the memory store, which handles one request after the other, and",
    "  as blocking functions whose branches are threads. The tests cover tasks, task groups and cancellation,",
    "  and the conformance suite checks what other stores keep of a run.",
    "- Field trials are samples too: a seed repeats the plan, not the exact moment of a fault.",
    "  One machine cannot show a lost disk, a torn write, a network of several machines, MySQL itself or a",
    "  managed service.",
    "- Manual claims, the local replay cache and the HTTP layer are neither simulated nor in the field",
    "  trials; they have separate tests.",
    "- Effects *do* repeat in these schedules, always with a recorded cause: when a worker dies between",
    "  its effect and its record, the next one must run again, unless the policy is `hold`. See",
    "  [what we cannot promise](what-we-cannot-promise.md).",
    "- Worker clocks run up to 2 % fast or slow here. A clock with an error above the margin of 10 % can",
    "  make a worker trust a lease that has expired; its writes are still refused.",
]
