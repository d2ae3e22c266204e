"""A plan made smaller, and a plan for a reader."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ..shrinking import cuts
from .plan import POISON, Plan, Post, Seat

__all__ = ["smaller", "written"]


def smaller(plan: Plan) -> Iterator[Plan]:
    """Plans with less in them, the boldest cuts first."""
    for field in ("posts", "incidents", "faults", "calls"):
        for kept in cuts(getattr(plan, field)):
            yield replace(plan, **{field: kept})
    for index in reversed(range(1, len(plan.seats))):
        yield replace(plan, seats=(*plan.seats[:index], *plan.seats[index + 1 :]))
    for index, post in enumerate(plan.posts):
        for simpler in (
            Post(post.at, post.key),
            Post(post.at, post.key, refused=post.refused),
            Post(post.at, post.key, post.lasts, post.rolled_back),
        ):
            if simpler != post:
                rest = (*plan.posts[:index], simpler, *plan.posts[index + 1 :])
                yield replace(plan, posts=rest)
    for index, seat in enumerate(plan.seats):
        for plain in (Seat(), replace(seat, rate=1.0), replace(seat, threads=False)):
            if plain != seat:
                yield replace(plan, seats=(*plan.seats[:index], plain, *plan.seats[index + 1 :]))
    for field in ("faults", "calls"):
        for index, one in enumerate(getattr(plan, field)):
            if one.nth:
                kept = getattr(plan, field)
                sooner = replace(one, nth=one.nth - 1)
                yield replace(plan, **{field: (*kept[:index], sooner, *kept[index + 1 :])})
    even = (0.001,) * len(plan.latencies)
    if plan.latencies != even:
        yield replace(plan, latencies=even)
    if plan.wakes:
        yield replace(plan, wakes=False)
    if plan.attentive:
        yield replace(plan, attentive=0.0)


def written(plan: Plan) -> list[str]:
    """A plan for a reader."""
    terms = f"batch {plan.batch}, max_attempts {plan.max_attempts}"
    lines = [f"seed {plan.seed}: {len(plan.seats)} relays, {terms}{', wakes' * plan.wakes}"]
    things: list[tuple[float, str]] = []
    for number, seat in enumerate(plan.seats):
        how = f"{seat.concurrency} groups of {seat.group}{', threads' * seat.threads}"
        things.append((seat.start, f"r{number} starts: {how}"))
    for number, post in enumerate(plan.posts):
        key = "no key" if post.key < 0 else f"key {post.key}"
        things.append((post.at, f"m{number} is added, {key}{_troubles(post)}"))
    things += [(one.at, f"{one.kind} {one.target} {one.seconds:g} s") for one in plan.incidents]
    lines += [f"  {at:.3f} s  {text}" for at, text in sorted(things)]
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
    if post.unheard:
        found.append("its bell is not heard")
    return "".join(f"; {one}" for one in found)
