"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import evened, fewer, simpler, timeline
from .plan import Plan, Post, Seat

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    yield from fewer(plan, "posts", "incidents", "faults", "calls", "renewals")
    for index in reversed(range(1, len(plan.seats))):
        yield replace(plan, seats=(*plan.seats[:index], *plan.seats[index + 1 :]))
    yield from simpler(plan, "posts", _plainer)
    yield from simpler(plan, "seats", lambda seat: (Seat(), replace(seat, rate=1.0)))
    for field in ("faults", "calls"):
        yield from simpler(plan, field, lambda one: (replace(one, nth=max(0, one.nth - 1)),))
    yield from evened(plan)
    if plan.partitions > 1:
        yield replace(plan, partitions=1)
    if plan.ordered:
        yield replace(plan, ordered=False)
    if plan.most_held < 100:
        yield replace(plan, most_held=100)


def _plainer(post: Post) -> Iterator[Post]:
    yield Post(post.at, post.key)
    yield replace(post, again=0.0)
    yield replace(post, ends=post.ends[-1:])


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    where = f"a log of {plan.partitions}" if plan.partitions else f"a queue, {plan.ack_wait:g} s"
    how = f"{', can delay' * plan.can_delay}{', ordered' * plan.ordered}"
    how += ", in transactions" * plan.transactions
    limits = f"max_attempts {plan.max_attempts}, most_held {plan.most_held}"
    lines = [f"seed {plan.seed}: {len(plan.seats)} consumers of {where}{how}, {limits}"]
    things: list[tuple[float, str]] = []
    for number, seat in enumerate(plan.seats):
        things.append(
            (seat.start, f"c{number} starts: {seat.concurrency} at once, batch {seat.batch}")
        )
    for number, post in enumerate(plan.posts):
        key = "" if post.key < 0 else f", key {post.key}"
        again = f", again after {post.again:g} s" if post.again else ""
        ends = ", ".join(post.ends)
        things.append((post.at, f"m{number} is sent{key}{again}; {post.seconds:g} s: {ends}"))
    lines += timeline(plan, things)
    lines += [
        f"  {one.op} {one.nth}: {one.kind} {one.seconds:g} s" for one in (*plan.faults, *plan.calls)
    ]
    lines += [f"  renewal {one.nth}: {one.kind} {one.seconds:g} s" for one in plan.renewals]
    return lines
