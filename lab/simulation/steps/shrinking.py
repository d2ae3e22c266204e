"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import cuts, evened, fewer, simpler, timeline
from .plan import Op, Plan, Script, Start

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    yield from fewer(plan, "starts", "signals", "incidents", "renewals")
    yield from simpler(plan, "scripts", _simpler_script)
    yield from simpler(plan, "starts", lambda start: fewer(start, "faults", "cancelled"))
    yield from evened(plan)
    if any(rate != 1.0 for rate in plan.rates):
        yield replace(plan, rates=(1.0,) * len(plan.rates))
    if len(plan.scripts) > 1 and not any(start.key for start in plan.starts):
        yield replace(plan, scripts=plan.scripts[:1])


def _simpler_script(script: Script) -> Iterator[Script]:
    for ops in cuts(script.ops):
        yield replace(script, ops=ops)
    for index, op in enumerate(script.ops):
        for parts in cuts(op.branches):
            less = replace(op, branches=parts)
            yield replace(script, ops=(*script.ops[:index], less, *script.ops[index + 1 :]))
    yield from simpler(script, "ops", _simpler_op)
    yield replace(script, cleanup=False)


def _simpler_op(op: Op) -> Iterator[Op]:
    plain = Op(op.kind, op.name, branches=op.branches)
    for field in ("seconds", "undo", "dies", "tries", "timeout", "probe", "probe_fails", "caught",
                  "fickle", "undo_fails", "undo_dies", "joins", "aborts", "cancels"):  # fmt: skip
        yield replace(op, **{field: getattr(plain, field)})


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    lines = [f"seed {plan.seed}: {len(plan.rates)} processes"]
    for key, script in enumerate(plan.scripts):
        lines.append(f"  key {key}, policy {script.policy}{', finally' * script.cleanup}:")
        lines += [f"    {line}" for op in script.ops for line in _op(op)]
    things = [(one.at, _start(one)) for one in plan.starts]
    things += [
        (one.at, f"signal {one.name} = {one.value} for key {one.key}") for one in plan.signals
    ]
    lines += timeline(plan, things)
    lines += [f"  renewal {f.nth}: {f.kind} {f.seconds:g} s" for f in plan.renewals]
    return lines


def _op(op: Op) -> list[str]:
    plain = Op(op.kind, op.name)
    changed = {
        field: getattr(op, field)
        for field in op.__struct_fields__
        if field not in ("kind", "name", "branches") and getattr(op, field) != getattr(plain, field)
    }
    told = "".join(f", {field}={value}" for field, value in changed.items())
    inner = [f"  {line}" for part in op.branches for each in part for line in [*_op(each), ""]]
    return [f"{op.kind} {op.name}{told}", *(line for line in inner if line.strip())]


def _start(start: Start) -> str:
    what = "completes" if start.kind == "complete" else f"{start.kind}s key {start.key}"
    faults = "".join(f"; message {f.nth}: {f.kind} {f.seconds:g} s" for f in start.faults)
    cancelled = "".join(f"; cancelled after {seconds:g} s" for seconds in start.cancelled)
    return f"p{start.process} {what}{faults}{cancelled}"
