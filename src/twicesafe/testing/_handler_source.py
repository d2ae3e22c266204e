"""Finds the ``await`` and ``with`` lines in a handler's source, for the tracer."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Mapping
from typing import Any

__all__ = ["SourceFile", "source_of"]


class SourceFile:
    """One file."""

    def __init__(self, text: str) -> None:
        tree = ast.parse(text)
        self.awaits = {node.lineno for node in ast.walk(tree) if isinstance(node, _WAITS)}
        """The lines that may wait."""
        blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith)]
        self.withs = {
            node.lineno: range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)
            for node in blocks
        }
        """The body of each ``with``, by the line of the ``with``, which Python visits again when leaving it."""
        self._managers = {
            node.lineno: _named(node.items[-1]) for node in blocks if isinstance(node, ast.With)
        }

    def manager(self, line: int, local: Mapping[str, Any], glob: Mapping[str, Any]) -> Any:
        """The context manager that this ``with`` leaves; None if it has no name to look up."""
        name, *rest = self._managers.get(line) or [""]
        found = local.get(name, glob.get(name))
        for attribute in rest:
            found = getattr(found, attribute, None)
        return found if hasattr(type(found), "__exit__") else None


_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def _named(item: ast.withitem) -> list[str]:
    """The name of the manager: after ``as``, or ``lock`` or ``self.lock``; [] if it is a call."""
    if isinstance(item.optional_vars, ast.Name):
        return [item.optional_vars.id]
    names: list[str] = []
    expression = item.context_expr
    while isinstance(expression, ast.Attribute):
        names.insert(0, expression.attr)
        expression = expression.value
    return [expression.id, *names] if isinstance(expression, ast.Name) else []


@functools.cache
def source_of(file: str) -> SourceFile:
    try:
        return SourceFile("".join(linecache.getlines(file)))
    except SyntaxError:
        return SourceFile("")
