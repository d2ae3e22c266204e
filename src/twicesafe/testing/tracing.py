"""Points that nobody had to mark: before every line of a handler, and at every await in it.

Both call `crash_point`, so outside a life they do nothing. Lines are watched by ``sys.settrace`` in
the thread that runs the handler, in the file that it is written in: a debugger or a coverage tool
that uses the same hook sees nothing meanwhile, and gets it back afterwards. Once dead, a life is not
traced any more: a ``finally`` of the handler runs to its end, as it would on an exception.
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import sys
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, CoroutineType, FrameType
from typing import Any, Final

from .crash import crash_point, current_life

__all__ = ["Awaits", "code_of", "traced"]

WIDE: Final = 56
"""Characters of a line that are shown."""


def code_of(handler: Any) -> CodeType | None:
    """The code that runs when this is called; None: it is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    for candidate in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


@contextmanager
def traced(file: str | None) -> Iterator[None]:
    """Inside, and in this thread, every line of this file is a point. None: no line is."""
    if file is None:
        yield
        return

    blocks = _with_blocks(file)

    def on_call(frame: FrameType, _: str, __: Any) -> Any:
        if frame.f_code.co_filename != file:
            return None
        before = 0

        def on_line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "line":
                line, last, before = frame.f_lineno, before, frame.f_lineno
                if not line < last <= blocks.get(line, 0):
                    crash_point("before " + shown(frame.f_code.co_name, file, line))
            return on_line

        return on_line

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield
    finally:
        sys.settrace(before)


@functools.cache
def _with_blocks(file: str) -> dict[int, int]:
    """Where each ``with`` begins and ends. Python visits its first line again on the way out, before
    it lets go; a death there would leave a lock held for ever, which no real death does."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return {}
    blocks = (node for node in ast.walk(tree) if isinstance(node, ast.With | ast.AsyncWith))
    return {node.lineno: node.end_lineno or node.lineno for node in blocks}


def shown(function: str, file: str, line: int) -> str:
    source = linecache.getline(file, line).strip()
    told = source if len(source) <= WIDE else f"{source[: WIDE - 1]}…"
    return f"{Path(file).name}:{line} in {function}: {told}"


class Awaits:
    """A coroutine that passes a point each time it is about to wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._coroutine.__await__()
        act: Callable[[], Any] = functools.partial(steps.send, None)
        while True:
            try:
                awaited = act()
            except StopIteration as end:
                return end.value
            try:
                life = current_life()
                if life is not None and life.alive:  # the dead may still let go of what they hold
                    life.reach(f"at the await of {_place(self._coroutine)}")
                reply = yield awaited
            except BaseException as error:  # the death too: it is the coroutine that dies
                act = functools.partial(steps.throw, error)
            else:
                act = functools.partial(steps.send, reply)


def _place(coroutine: Any) -> str:
    """Where the handler waits: the innermost frame that is still in its own file."""
    frame = coroutine.cr_frame
    home = frame.f_code.co_filename
    inner = coroutine.cr_await
    while isinstance(inner, CoroutineType) and inner.cr_frame is not None:
        if inner.cr_frame.f_code.co_filename == home:
            frame = inner.cr_frame
        inner = inner.cr_await
    return shown(frame.f_code.co_name, home, frame.f_lineno)
