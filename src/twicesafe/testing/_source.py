"""What the source of a handler tells its tracer: where it awaits, and where its ``with`` blocks are."""

from __future__ import annotations

import ast
import functools
import linecache
from collections.abc import Mapping
from typing import Any

__all__ = ["Source", "source_of"]


class Source:
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
        """By the line of each ``with``, which Python visits again on its way out: its body."""
        self._managers = {
            node.lineno: _named(node.items[-1]) for node in blocks if isinstance(node, ast.With)
        }

    def manager(self, line: int, local: Mapping[str, Any], glob: Mapping[str, Any]) -> Any:
        """Whose exit comes next at this ``with``; None if it has no name that we could ask for."""
        name, *rest = self._managers.get(line) or [""]
        found = local.get(name, glob.get(name))
        for attribute in rest:
            found = getattr(found, attribute, None)
        return found if hasattr(type(found), "__exit__") else None


_WAITS = (ast.Await, ast.AsyncFor, ast.AsyncWith)


def _named(item: ast.withitem) -> list[str]:
    """``lock`` and ``self.lock``, but nothing that would have to be called; or what it is called."""
    if isinstance(item.optional_vars, ast.Name):
        return [item.optional_vars.id]
    names: list[str] = []
    expression = item.context_expr
    while isinstance(expression, ast.Attribute):
        names.insert(0, expression.attr)
        expression = expression.value
    return [expression.id, *names] if isinstance(expression, ast.Name) else []


@functools.cache
def source_of(file: str) -> Source:
    try:
        return Source("".join(linecache.getlines(file)))
    except SyntaxError:
        return Source("")
