"""Annotations and signatures of the user's code, on every Python alike.

Since Python 3.14 an annotation is evaluated when it is read, and one name that is imported only
for type checkers, or defined later, makes reading any of them raise `NameError`. Here such a name stands as
a forward reference, and the others have their values. Before 3.14 reading cannot fail.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["annotations_of", "signature_of"]


def annotations_of(holder: Any) -> dict[str, Any]:
    """What a function or a class declares itself. A new dict, which the caller may change."""
    if sys.version_info >= (3, 14):
        import annotationlib

        found = annotationlib.get_annotations(holder, format=annotationlib.Format.FORWARDREF)
        # `functools.wraps` copies how annotations are evaluated there, but not those that were assigned.
        inner = getattr(holder, "__wrapped__", None)
        return found if found or inner is None else annotations_of(inner)
    return inspect.get_annotations(holder)


def signature_of(function: Callable[..., Any], *, follow_wrapped: bool = True) -> inspect.Signature:
    """`inspect.signature`, with its errors for what has none: `TypeError` and `ValueError`."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(
            function,
            follow_wrapped=follow_wrapped,
            annotation_format=annotationlib.Format.FORWARDREF,
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)
