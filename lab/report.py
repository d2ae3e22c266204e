"""The report: numbers as JSON, and a page for readers made of nothing but these numbers."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path

import msgspec

from twicesafe import __version__

from .field import Trial
from .field.page import field_page, field_versions
from .fuzz import Tally as Compared
from .model import Check, version
from .mutants import LIMIT
from .mutants.sources import Kill
from .simulation import STUDIES
from .simulation.campaign import Hunt, Tally

__all__ = ["NUMBERS", "PAGE", "Proof", "as_markdown", "read", "write"]

ROOT = Path(__file__).parent.parent
NUMBERS = ROOT / "lab" / "results" / "proof.json"
PAGE = ROOT / "docs" / "explanation" / "proof.md"
LAST = ROOT / ".dev" / "proof.json"


class Proof(msgspec.Struct):
    simulations: list[Tally] = []
    mutants: list[Hunt] = []
    sources: list[Kill] = []
    source_mutants: int = 0
    """How many there are; `sources` may be some of them."""
    model: list[Check] = []
    readers: list[Compared] = []
    field: list[Trial] = []
    versions: dict[str, str] = {}


def write(proof: Proof, *, publish: bool) -> None:
    """The last run is kept beside the environments; a published one in the repository."""
    versions = {"twicesafe": _ours(), "python": platform.python_version(), "spin": version()}
    proof.versions = versions | field_versions(proof.field)
    text = msgspec.json.format(msgspec.json.encode(proof, order="sorted"), indent=1) + b"\n"
    LAST.parent.mkdir(exist_ok=True)
    LAST.write_bytes(text)
    if publish:
        NUMBERS.parent.mkdir(exist_ok=True)
        NUMBERS.write_bytes(text)
        PAGE.write_text(as_markdown(read(NUMBERS)), "utf-8")


def _ours() -> str:
    """Our version, and the commit of it that was tried."""
    git = ["git", "-C", str(ROOT)]
    try:
        commit = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
        changed = subprocess.check_output([*git, "status", "--short", "src"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return __version__  # not from a clone
    return f"{__version__} at {commit}{', changed' if changed else ''}"


def read(file: Path) -> Proof:
    return msgspec.json.decode(file.read_bytes(), type=Proof)


def as_markdown(proof: Proof) -> str:
    return "\n".join(
        [
            *_head(proof),
            *_simulations(proof.simulations),
            *_mutants(proof.mutants),
            *_sources(proof.sources, proof.source_mutants),
            *_model(proof.model),
            *_readers(proof.readers),
            *field_page(proof.field),
            *_LIMITS,
            "",
        ]
    )


def _head(proof: Proof) -> list[str]:
    versions = ", ".join(f"{name} {version}" for name, version in proof.versions.items())
    return [
        "# The proof lab",
        "",
        "This page is written by `make prove ARGS=--publish`; its numbers are those of that run",
        f"({versions}). Everything below can be run again from a clone with `make prove`.",
        "What the same accidents do to other libraries is on [peers, tried](peers-tried.md).",
        "",
    ]


def _simulations(tallies: list[Tally]) -> list[str]:
    return [
        "## Simulation",
        "",
        "What decides is written as generators that yield requests and commands as data. So it can be",
        "run by a scheduler that owns time, network, processes and chance, with the shipped code",
        "inside. A seed replays bit for bit; a failing one is made small and told line by line:",
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
        *(line for tally in tallies for line in _simulation(tally)),
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
        f"### {study.name.capitalize()}",
        "",
        study.about,
        "",
        "| what may never happen | |",
        "|---|---|",
        *(f"| {name} | {text} |" for name, text in study.rules.items()),
        "",
        "| what the schedules met | |",
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
    return [*lines, ""]


def _mutants(hunts: list[Hunt]) -> list[str]:
    found = [hunt for hunt in hunts if hunt.schedule is not None]
    return [
        "## Mutants",
        "",
        "A lab that finds nothing may be blind. So the protocol is broken on purpose, one bug at a",
        f"time, and the simulation must notice within {LIMIT:,} schedules.",
        f"**{len(found)} of {len(hunts)} were found.** (For three of them an invariant that would see",
        "a companion bug first is set aside, so that they are found for what they are.)",
        "",
        "| bug | found by schedule | broken invariant |",
        "|---|---|---|",
        *(f"| {hunt.bug} | {_place(hunt)} | {hunt.invariant} |" for hunt in hunts),
        "",
    ]


def _place(hunt: Hunt) -> str:
    return "**not found**" if hunt.schedule is None else f"{hunt.study} {hunt.schedule}"


def _readers(tallies: list[Compared]) -> list[str]:
    if not tallies:
        return []
    return [
        "## Two readers of one text",
        "",
        "The proxy's guard decides where a message ends, and a parser reads it after the guard. Mutated",
        "messages, cut into pieces, are given to the guard, to h11, to llhttp and to gunicorn's parser. What",
        "the guard lets pass, all must read alike: number of messages, method, target, field lines, body.",
        "",
        "| | messages | let pass | refused | disagreements |",
        "|---|---|---|---|---|",
        *(
            f"| {tally.target} | {tally.inputs:,} | {tally.accepted:,} "
            f"| {tally.inputs - tally.accepted:,} | **{len(tally.findings)}** |"
            for tally in tallies
        ),
        "",
    ]


def _sources(kills: list[Kill], every: int) -> list[str]:
    if not kills:
        return []
    killed = [kill for kill in kills if kill.killed_by]
    return [
        "## Source mutants",
        "",
        "The simulation runs the core. The SQL, the scripts, the adapters, the publishers and the HTTP",
        "rules around it are broken in the same way, one bug at a time, and the test suite must fail.",
        f"**{len(killed)} of {len(kills)} were killed** (of {every} in all).",
        "",
        "| file | bug | killed by |",
        "|---|---|---|",
        *(f"| `{kill.file}` | {kill.bug} | {_killer(kill)} |" for kill in kills),
        "",
    ]


def _killer(kill: Kill) -> str:
    return f"`{kill.killed_by}`" if kill.killed_by else f"**not killed**: {kill.why}"


def _model(checks: list[Check]) -> list[str]:
    lines = [
        "## Model",
        "",
        "`lab/model/claims.pml` says the claim protocol of one key in Promela: claims, lost and late",
        "messages, zombies, an operator's release. spin visits *every* interleaving of it. Ghost",
        "variables see two live owners, a second result, a stale write and a fence given out twice.",
        "",
        "| | workers × claims | states | |",
        "|---|---|---|---|",
    ]
    for one in checks:
        said = "an assertion fails, as it must" if one.caught else "no assertion fails"
        if one.skipped:
            said = f"skipped: {one.skipped}"
        elif not one.as_expected:
            said = "**not as it must be**"
        lines.append(f"| {one.what} | {one.workers} × {one.claims} | {one.states:,} | {said} |")
    return [*lines, ""]


_LIMITS = [
    "## What this can show, and what it cannot",
    "",
    "- A simulation samples. No violation in many schedules is evidence, not a proof; the mutants",
    "  say how good the evidence is. The model is exhaustive, but it is another page than the code,",
    "  and of one key, few workers, and time that only ends leases.",
    "- Both see the *protocol*: the core on a store that decides atomically. Whether SQLite,",
    "  PostgreSQL, MariaDB or Valkey decide so is tried in the field and by the conformance suite.",
    "- The database of the simulated transactions has commits, row locks and cut connections, as READ",
    "  COMMITTED on PostgreSQL has them. What real engines add (other isolation levels and their",
    "  anomalies, savepoints as marks, several keys in one transaction) is for the field and the tests.",
    "- The store of the simulated relays is the SQLite outbox: one request after the other. Late commits",
    "  and wake-ups are imitated there; the locks between relays, operators and those who add messages on",
    "  PostgreSQL and MariaDB are for the field and the tests.",
    "- The field samples as well, and real machines add chances of their own: a seed repeats what was",
    "  planned, not where in the work a blow fell. One machine cannot show a lost disk, a torn write, a",
    "  network of several machines, MySQL proper or a managed service.",
    "- Manual claims, the local replay cache and the HTTP layer are neither simulated nor in the field;",
    "  they have tests of their own.",
    "- Effects *are* repeated in these schedules, always with a recorded cause: a worker that dies",
    "  between its effect and its record leaves no other choice, unless the policy is `hold`. See",
    "  [what we cannot promise](what-we-cannot-promise.md).",
    "- Worker clocks run up to 2 % fast or slow here. A clock that is off by more than the margin of",
    "  10 % can let a worker believe in a lease that is over; its writes are still refused.",
]
