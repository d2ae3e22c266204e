"""Results that cannot be kept: the error says why, and what that means for the work.

Encoding knows only the reason. Whether the work is recorded without its result or rolled back is decided
by the flow, which adds it with `because`.
"""

from __future__ import annotations

from ..errors import NotStorableError, ResultError, TooLargeError

__all__ = ["because", "not_encoded", "recorded_without", "too_large"]


def not_encoded(value: object, error: Exception) -> NotStorableError:
    problem = NotStorableError(
        f"the result could not be encoded ({type(error).__name__})", value=value
    )
    problem.__cause__ = error
    return problem


def too_large(value: object, size: int, most: int, what: str = "result") -> TooLargeError:
    text = f"the {what} has {size} bytes and max_result_bytes is {most}"
    return TooLargeError(text, value=value)


def because(problem: ResultError, before: str, after: str = "") -> ResultError:
    """The same error, with these words before and after its reason."""
    problem.message = f"{before}{problem.message}{after}"
    problem.args = (problem.message,)
    return problem


def recorded_without(problem: ResultError) -> ResultError:
    """The error for the first caller of a delivery that is recorded as done."""
    return because(
        problem,
        "the work is done and recorded, but without its result: ",
        "; duplicates get ResultUnavailableError",
    )
