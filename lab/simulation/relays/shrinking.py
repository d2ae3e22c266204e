"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import evened, fewer, simpler, timeline
from .plan import POISON, Plan, Post, Seat

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    yield from fewer(plan, "posts", "incidents", "faults", "calls")
    for index in reversed(range(1, len(plan.seats))):
        yield replace(plan, seats=(*plan.seats[:index], *plan.seats[index + 1 :]))
    yield from simpler(plan, "posts", _plainer)
    yield from simpler(
        plan,
        "seats",
        lambda seat: (Seat(), replace(seat, rate=1.0), replace(seat, threads=False)),
    )
    for field in ("faults", "calls"):
        yield from simpler(plan, field, lambda one: (replace(one, nth=max(0, one.nth - 1)),))
    yield from evened(plan)
    if plan.wakes:
        yield replace(plan, wakes=False)
    if plan.attentive:
        yield replace(plan, attentive=0.0)


def _plainer(post: Post) -> Iterator[Post]:
    yield Post(post.at, post.key)
    yield Post(post.at, post.key, refused=post.refused)
    yield Post(post.at, post.key, refused=post.refused, chokes=post.chokes)
    yield Post(post.at, post.key, post.lasts, post.rolled_back)


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    limits = f"batch {plan.batch}, max_attempts {plan.max_attempts}"
    lines = [f"seed {plan.seed}: {len(plan.seats)} relays, {limits}{', wakes' * plan.wakes}"]
    things: list[tuple[float, str]] = []
    for number, seat in enumerate(plan.seats):
        how = f"{seat.concurrency} groups of {seat.group}{', threads' * seat.threads}"
        how += ", its publisher keeps order" * seat.keeps_order
        things.append((seat.start, f"r{number} starts: {how}"))
    for number, post in enumerate(plan.posts):
        key = "no key" if post.key < 0 else f"key {post.key}"
        things.append((post.at, f"m{number} is added, {key}{_troubles(post)}"))
    lines += timeline(plan, things)
    if plan.attentive:
        word = "skips" if plan.skips else "retries"
        lines.append(f"  an operator {word} what is parked, {plan.attentive:g} s later")
    lines += [f"  {one.op} {one.nth}: {one.kind} {one.seconds:g} s" for one in plan.faults]
    lines += [f"  call {one.nth}: {one.kind} {one.seconds:g} s" for one in plan.calls]
    return lines


def _troubles(post: Post) -> str:
    found = []
    if post.lasts:
        found.append(f"committed {post.lasts:g} s later")
    if post.rolled_back:
        found.append("rolled back")
    if post.refused:
        found.append("poison" if post.refused >= POISON else f"refused {post.refused} times")
    if post.chokes:
        found.append("the broker hangs up on it")
    if post.unheard:
        found.append("its wake-up is lost")
    return "".join(f"; {one}" for one in found)
