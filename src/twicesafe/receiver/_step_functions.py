"""The functions that a step is given: a call that cannot work is refused before the effect.

Otherwise a wrong call would count as a failed attempt, and a wrong undo or probe would be found only when it
is needed, after a failure or a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._core.handler_call import name_of, positional_counts
from .._core.handler_kind import expect_callable, problem_of, refuse_async, refuse_generator
from .._core.handler_profile import HandlerProfile, profile_of
from .._values.keys import Key
from .._values.settings import expect
from ..errors import UsageError

__all__ = ["expect_fit", "expect_undo", "profile_of_step"]


def profile_of_step(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], call: str
) -> HandlerProfile:
    """The profile of a step's function, which can be called like this. ``call``: how the call of the step
    begins, for the error. A generator would be recorded as done, although none of its work has run.
    """
    expect_callable(function, f"steps.{call}")
    profile = profile_of(function)
    if profile.problem == "generator":
        raise refuse_generator(function)
    expect_fit(profile, function, args, kwargs)
    return profile


def expect_fit(
    profile: HandlerProfile,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> None:
    if kwargs or not profile.least <= len(args) <= profile.most:
        profile.check(function, args, kwargs, "steps")


def expect_undo(undo: Callable[[Any], Any], awaits: bool, key: Key) -> None:
    """``awaits``: the steps are async, so their undo may be."""
    expect(callable(undo), "undo", undo, "use a function of the step's result")
    least, most = positional_counts(undo)
    if not least <= 1 <= most:
        raise UsageError(
            f"{name_of(undo)} cannot be called as an undo: it gets one argument, the step's result; "
            "use a lambda or a partial for another shape",
            key=key,
        )
    problem = problem_of(undo)
    if problem == "generator":
        raise refuse_generator(undo)
    if problem == "async" and not awaits:
        raise refuse_async(undo)
