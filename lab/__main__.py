"""``python -m lab``: the proof lab.

prove                     everything below, with a table of what was tried and found
  --full                  a million schedules instead of a hundred thousand, and long trials
  --resume                parts and trials that an earlier run has finished are not run again
  --publish               the numbers into lab/results/, the page into docs/
  --only PART …           some parts: leases, transactions, relays, consumers, steps (the simulations),
                          mutants, sources, model, readers, field; published beside the other parts
                          of earlier runs
simulate                  many schedules; or one of them, told line by line
  --study NAME            of this part: leases, unless told otherwise
  --seed N [--trace]      run this one; bit for bit the same, every time
  --shrink                leave out of it what its failure does not need
  --mutant NAME           with this bug in the core
mutants [NAME …]          every mutant of the core must be found by the simulation
sources [NAME …]          every mutant of the sources around it must be killed by its tests
model                     the Promela model, checked exhaustively by spin
field [TRIAL …]           real servers and processes, mistreated; all trials, or these
  --engine NAME           sqlite, postgres, valkey, mariadb, etcd, dynamodb, mongodb or a broker; else all
  --portion N             with --full, only these portions of trials that are run in several
  --seed N                the chances of an earlier run again
  --into FILE             write what was found into this file, as JSON
  --publish FILE …        publish what is in these files, beside the other trials; runs nothing
  --add                   with --publish: they are further portions of what is published, not a new run
  --list                  what trials there are
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from . import fuzz, model, report
from .field import TRIALS
from .field import running as fields
from .fuzz.targets import DIFFERENTIAL
from .mutants import LIMIT, MUTANTS, mutated, sources
from .parts import Parts
from .simulation import STUDIES
from .simulation.campaign import Hunt, Tally, campaign, cores, hunt_all, missing
from .simulation.shrinking import shrink
from .simulation.study import Study

SCHEDULES = 100_000
FULL = 1_000_000
PARTS = (*STUDIES, "mutants", "sources", "model", "readers", "field")
SOME_INPUTS = 20_000
"""So many messages for each pair of readers, unless a million are asked for."""
SOME_SOURCES = 16
"""So many source mutants are run unless all are asked for; each takes seconds."""
ENOUGH_TO_MEET_ALL = 20_000
"""From so many schedules on, everything must have been visited."""


def main(arguments: list[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    acts = {
        "prove": _prove,
        "simulate": _simulate,
        "mutants": _mutants,
        "sources": _sources,
        "model": _model,
        "field": _field,
    }
    return acts[asked.command](asked)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m lab",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    prove = commands.add_parser("prove")
    simulate = commands.add_parser("simulate")
    mutants = commands.add_parser("mutants")
    broken = commands.add_parser("sources")
    model_ = commands.add_parser("model")
    field = commands.add_parser("field")
    for one in (prove, simulate, mutants, broken, model_):
        one.add_argument("--jobs", type=int, default=cores())
    for one in (prove, simulate):
        one.add_argument("--schedules", type=int, default=None)
        one.add_argument("--first", type=int, default=0, help="the first seed")
    for one in (prove, field):
        one.add_argument("--full", action="store_true")
        one.add_argument("--seed", type=int, default=None, help="the chances of the field")
        one.add_argument("--resume", action="store_true")
    prove.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    prove.add_argument("--publish", action="store_true")
    simulate.add_argument("--study", choices=STUDIES, default="leases")
    simulate.add_argument("--seed", type=int)
    simulate.add_argument("--trace", action="store_true")
    simulate.add_argument("--shrink", action="store_true")
    simulate.add_argument("--mutant", choices=MUTANTS)
    for one in (mutants, broken):
        one.add_argument("names", nargs="*", metavar="NAME")
    field.add_argument("names", nargs="*", metavar="TRIAL")
    field.add_argument("--engine", choices=fields.ENGINES, nargs="+", default=fields.ENGINES)
    field.add_argument("--list", action="store_true")
    field.add_argument("--portion", type=int, nargs="+", default=[], metavar="N")
    field.add_argument("--into", type=Path, help="write what was found here, as JSON")
    field.add_argument("--publish", type=Path, nargs="+", default=[], metavar="FILE")
    field.add_argument("--add", action="store_true")
    return parser


# --- one command each ------------------------------------------------------------------------


def _prove(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    parts = Parts(resume=asked.resume)
    good = True
    proof = report.Proof()
    schedules = asked.schedules or (FULL if asked.full else SCHEDULES)
    for name in STUDIES:
        if name in asked.only:
            proof.simulations[name] = _simulated(STUDIES[name], schedules, asked, parts)
            good &= _told(proof.simulations[name])
    if "mutants" in asked.only:
        print(f"mutants: {len(MUTANTS)}, each within {LIMIT:,} schedules")
        proof.mutants = parts.get(
            *("mutants", f"{LIMIT}", list[Hunt], ("lab/simulation", "lab/mutants")),
            lambda: list(hunt_all(list(MUTANTS), LIMIT, asked.jobs)),
        )
        good &= _told_hunts(proof.mutants)
    if "sources" in asked.only:
        seed = fields.a_seed() if asked.seed is None else asked.seed
        every = len(sources.SOURCE_MUTANTS)
        names = sources.sample(every if asked.full else SOME_SOURCES, seed)
        print(f"source mutants: {len(names)} of {every}, seed {seed}")
        proof.sources = parts.get(
            *("sources", " ".join(names), list[sources.Kill], ("lab/mutants/sources", "tests")),
            lambda: list(sources.kill_all(names, asked.jobs)),
        )
        proof.source_mutants = every
        good &= _told_kills(proof.sources)
    if "model" in asked.only:
        print("model: Promela, by spin")
        proof.model = model.check_all(asked.jobs)
        good &= model.told(proof.model)
    if "readers" in asked.only:
        inputs = FULL if asked.full else SOME_INPUTS
        print(f"readers: {inputs:,} messages for each of {', '.join(DIFFERENTIAL)}")
        proof.readers = parts.get(
            *("readers", f"{inputs}", list[fuzz.Tally], ("lab/fuzz",)),
            lambda: fuzz.fuzz_all(DIFFERENTIAL, inputs, asked.jobs),
            good=lambda tallies: not any(tally.findings for tally in tallies),
        )
        good &= _told_readers(proof.readers)
    if "field" in asked.only:
        seed = fields.a_seed() if asked.seed is None else asked.seed
        print(f"field: {len(TRIALS)} trials on {len(fields.ENGINES)} engines, seed {seed}")
        proof.field = fields.in_processes(seed, asked.full, asked.jobs, asked.resume)
        print(f"  {fields.totals(proof.field)}")
        good &= not any(done.broken for done in proof.field)
    if asked.publish:
        report.publish(proof, asked.only)
    print(f"{time.monotonic() - began:.0f} s")
    print("the invariants held" if good else "SOMETHING BROKE: see above")
    return 0 if good else 1


def _simulated(study: Study, schedules: int, asked: argparse.Namespace, parts: Parts) -> Tally:
    schedules = max(1, schedules // study.share)
    print(f"simulation of {study.name}: {schedules:,} schedules on {asked.jobs} cores")
    return parts.get(
        *(f"simulation-{study.name}", f"{schedules} from {asked.first}", Tally),
        (f"lab/simulation/{study.name}", "lab/simulation/*.py"),
        lambda: campaign(study, asked.first, schedules, asked.jobs, _progress(schedules)),
    )


def _field(asked: argparse.Namespace) -> int:
    if asked.list:
        for name, entry in TRIALS.items():
            print(f"{entry.method:4} {name:26} {entry.question}")
        return 0
    if asked.publish:
        report.publish_trials(fields.written(asked.publish), add=asked.add)
        return 0
    unknown = [name for name in asked.names if name not in TRIALS]
    if unknown:
        known = ", ".join(TRIALS)
        print(f"no trial is called {unknown[0]!r}; there are: {known}", file=sys.stderr)
        return 2
    seed = fields.a_seed() if asked.seed is None else asked.seed
    parts = Parts(resume=asked.resume)
    trials = fields.run_here(
        *(asked.names, asked.engine, seed, asked.full, parts, asked.into, asked.portion)
    )
    return 1 if any(done.broken for done in trials) else 0


def _simulate(asked: argparse.Namespace) -> int:
    study = STUDIES[MUTANTS[asked.mutant].study if asked.mutant else asked.study]
    if asked.seed is None:
        if asked.mutant:
            sys.exit("--mutant needs a --seed; `python -m lab mutants NAME` looks for one")
        schedules = asked.schedules or SCHEDULES
        tally = campaign(study, asked.first, schedules, asked.jobs, _progress(schedules))
        return 0 if _told(tally) else 1
    with mutated(asked.mutant) if asked.mutant else contextlib.nullcontext():
        plan = study.draw(asked.seed)
        world, violation = study.run(plan, None)
        if violation is not None and asked.shrink:
            plan = shrink(study, plan, violation.name)
        if asked.trace:
            print("\n".join(study.written(plan)))
            study.run(plan, print)
        print(f"{world.events} events: {violation or 'no invariant broke'}")
    return 0 if violation is None else 1


def _mutants(asked: argparse.Namespace) -> int:
    names = asked.names or list(MUTANTS)
    unknown = [name for name in names if name not in MUTANTS]
    if unknown:
        print(
            f"no mutant is called {unknown[0]!r}; there are: {', '.join(MUTANTS)}", file=sys.stderr
        )
        return 2
    return 0 if _told_hunts(list(hunt_all(names, LIMIT, asked.jobs))) else 1


def _sources(asked: argparse.Namespace) -> int:
    every = list(sources.SOURCE_MUTANTS)
    names = [name for name in every if any(part in name for part in asked.names or [""])]
    wrong = sources.check_form()
    if not names:
        wrong.append(
            f"no source mutant is called {asked.names[0]!r}; there are: {', '.join(every)}"
        )
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 2
    return 0 if _told_kills(sources.kill_all(names, asked.jobs)) else 1


def _model(asked: argparse.Namespace) -> int:
    return 0 if model.told(model.check_all(asked.jobs)) else 1


# --- telling ---------------------------------------------------------------------------------


def _progress(schedules: int) -> Callable[[Tally], None]:
    told = [time.monotonic()]

    def progress(tally: Tally) -> None:
        if time.monotonic() - told[0] < 10 and tally.schedules < schedules:
            return
        told[0] = time.monotonic()
        rate = tally.schedules / tally.seconds
        print(f"  {tally.schedules:,} schedules, {tally.events:,} events, {rate:,.0f} per second")

    return progress


def _told(tally: Tally) -> bool:
    study = STUDIES[tally.study]
    for found in tally.violations:
        print(f"  ✗ seed {found.seed}: {found.invariant}: {found.how}")
    if tally.violations:
        seed, invariant = tally.violations[0].seed, tally.violations[0].invariant
        words = f"simulate --study {study.name} --seed {seed} --shrink --trace"
        print(f"  the first one, made small (python -m lab {words}):")
        plan = shrink(study, study.draw(seed), invariant)
        print("\n".join(study.written(plan)))
        study.run(plan, print)
    unmet = missing(study, tally.seen) if tally.schedules >= ENOUGH_TO_MEET_ALL else []
    for what in unmet:
        print(f"  ✗ never met: {what}")
    faults = sum(count for what, count in tally.seen.items() if what.startswith("fault: "))
    print(
        f"  {tally.schedules:,} schedules, {tally.events:,} events, {faults:,} network faults, "
        f"{len(tally.violations)} violations, {tally.seconds:.0f} s "
        f"({1000 * tally.cpu_seconds / max(1, tally.schedules):.2f} ms of processor each)"
    )
    return not tally.violations and not unmet


def _told_readers(tallies: list[fuzz.Tally]) -> bool:
    for tally in tallies:
        print(f"  {tally}")
        for finding in tally.findings:
            print(f"    ✗ {finding}")
    return not any(tally.findings for tally in tallies)


def _told_hunts(hunts: list[Hunt]) -> bool:
    for hunt in hunts:
        end = "SURVIVED" if hunt.survived else f"schedule {hunt.schedule}: {hunt.invariant}"
        ways = "".join(f"; {way}: {seed}" for way, seed in hunt.ways.items())
        print(f"  {hunt.mutant:32} {end}{ways}")
    survivors = [hunt for hunt in hunts if hunt.survived]
    print(f"  {len(hunts) - len(survivors)} of {len(hunts)} found")
    return not survivors


def _told_kills(kills: Iterable[sources.Kill]) -> bool:
    ends = [0, 0]
    for kill in kills:
        ends[bool(kill.killed_by)] += 1
        end = f"killed by {kill.killed_by}" if kill.killed_by else f"SURVIVED: {kill.why}"
        print(f"  {kill.mutant:40} {end}", flush=True)
    survived, killed = ends
    print(f"  {killed} of {survived + killed} killed")
    return not survived


if __name__ == "__main__":
    sys.exit(main())
