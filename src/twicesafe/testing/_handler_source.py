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

        self.tries = {
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Try | ast.TryStar) and node.body[0].lineno > node.lineno
        }
        """The lines with only ``try:``. The line after it is the same point, with the ``finally`` in force."""
        self._releases = {
            node.lineno: _dotted(node.value.func.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
            and node.value.func.attr == "release"
        }

    def manager(self, line: int, local: Mapping[str, Any], glob: Mapping[str, Any]) -> Any:
        """The context manager that this ``with`` leaves; None if it has no name to look up."""
        found = _found(self._managers.get(line), local, glob)
        return found if hasattr(type(found), "__exit__") else None

    def unlocks(self, line: int, local: Mapping[str, Any], glob: Mapping[str, Any]) -> bool:
        """Whether this line only releases a lock that no crash would leave: one of this process."""
        found = _found(self._releases.get(line), local, glob)
        return type(found).__module__ in ("_thread", "threading", "asyncio.locks")


_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def _named(item: ast.withitem) -> list[str]:
    """The name of the manager: after ``as``, or ``lock`` or ``self.lock``; [] if it is a call."""
    if isinstance(item.optional_vars, ast.Name):
        return [item.optional_vars.id]
    return _dotted(item.context_expr)


def _dotted(expression: ast.expr) -> list[str]:
    """``lock`` or ``self.lock`` as names; [] if it is anything else."""
    names: list[str] = []
    while isinstance(expression, ast.Attribute):
        names.insert(0, expression.attr)
        expression = expression.value
    return [expression.id, *names] if isinstance(expression, ast.Name) else []


def _found(names: list[str] | None, local: Mapping[str, Any], glob: Mapping[str, Any]) -> Any:
    name, *rest = names or [""]
    found = local.get(name, glob.get(name))
    for attribute in rest:
        found = getattr(found, attribute, None)
    return found


@functools.cache
def source_of(file: str) -> SourceFile:
    try:
        return SourceFile("".join(linecache.getlines(file)))
    except SyntaxError:
        return SourceFile("")
