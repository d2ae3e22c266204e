"""Automatic crash points: before the lines of a handler, and whenever it waits.

Both call `crash_point`, so outside a life they do nothing. Lines are traced with ``sys.settrace`` in
the thread that runs the handler, in the given files. A debugger or coverage tool that uses the same
hook sees nothing meanwhile, and gets it back afterwards. A life that died is no longer traced, so a
``finally`` of the handler runs to its end, as on any exception.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import sys
import sysconfig
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, CoroutineType, FrameType, ModuleType
from typing import Any, Final, Self, TypeAlias

from ..errors import ConfigurationError
from ._crash import Died, Life, crash_point, current_life
from ._handler_source import SourceFile, source_of

__all__ = ["Awaits", "LineTracer", "LinesOf", "code_of", "receives_itself"]

LinesOf: TypeAlias = bool | Iterable[ModuleType | str | Path]
"""True: the lines of the handler's file; or also those of these modules or files."""

WIDE: Final = 56
"""The most characters of a line that are shown."""

_PACKAGE: Final = str(Path(__file__).parent.parent)
_NOT_YOURS: Final = (_PACKAGE, *(sysconfig.get_path(name) for name in ("stdlib", "purelib")))


def code_of(handler: Any) -> CodeType | None:
    """The code object that runs when this is called; None: it is not written in Python."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    handler = inspect.unwrap(handler)
    for candidate in (handler, getattr(handler, "__func__", None), type(handler).__call__):
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType):
            return code
    return None


def receives_itself(handler: Any) -> bool:
    """Whether one of our decorators made it, so that it has its own receiver or inbox."""
    code = getattr(handler, "__code__", None)
    return isinstance(code, CodeType) and code.co_filename.startswith(_PACKAGE)


class LineTracer:
    """Makes a point of every line of these files, or only of the lines that await."""

    def __init__(self, files: Iterable[str], every_line: bool) -> None:
        self.files = frozenset(files)
        self.every_line = every_line
        self.elsewhere: set[str] = set()
        """Files of the user that were called from these, and are not traced."""
        self.passed = False
        """Whether any line of these files was run."""

    @classmethod
    def of(cls, handler: Any, lines: LinesOf) -> Self:
        code = code_of(handler)
        home = {code.co_filename} if code is not None else set()
        if isinstance(lines, bool):
            if lines and not home:
                raise ConfigurationError(
                    f"lines=True: {handler!r} is not written in Python; name the modules to trace: "
                    "lines=[shop]"
                )
            return cls(home, lines)
        return cls(home | {_file_of(one) for one in lines}, True)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Trace lines in this thread. If there are none to trace, the hook is not touched."""
        if not self.every_line and not any(source_of(file).awaits for file in self.files):
            yield
            return
        before = sys.gettrace()
        sys.settrace(self._on_call)
        try:
            yield
        finally:
            sys.settrace(before)

    def _on_call(self, frame: FrameType, _: str, __: Any) -> Any:
        file = frame.f_code.co_filename
        if file not in self.files:
            caller = frame.f_back
            if caller is not None and caller.f_code.co_filename in self.files and _is_yours(file):
                self.elsewhere.add(file)
            return None
        if frame.f_code.co_name == "__annotate__":  # no line of yours: Python 3.14 runs it once
            return None
        if frame.f_trace is not None:  # a coroutine that continues
            return frame.f_trace
        source = source_of(file)
        before = 0

        def on_line(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            life = current_life()
            if event == "line" and life is not None and life.alive:
                self.passed = True
                line, last, before = frame.f_lineno, before, frame.f_lineno
                block = source.withs.get(line)
                if block is not None and last in block:
                    if self.every_line:
                        _leave(life, frame, source, line)
                elif line in source.awaits or (
                    self.every_line
                    and line not in source.tries
                    and not source.unlocks(line, frame.f_locals, frame.f_globals)
                ):
                    crash_point("before " + shown(frame.f_code.co_name, file, line))
            return on_line

        return on_line


def _leave(life: Life, frame: FrameType, source: SourceFile, line: int) -> None:
    """A point between the body of a ``with`` and its exit.

    Python does not call ``__exit__`` for an exception that is raised here. So if the life dies here, we
    call it: otherwise a lock would stay locked, as no real crash leaves it. If the manager is not known,
    this is a point for a real process only.
    """
    manager = source.manager(line, frame.f_locals, frame.f_globals)
    if manager is None and not life.real:
        return
    try:
        crash_point("before leaving " + shown(frame.f_code.co_name, frame.f_code.co_filename, line))
    except Died as death:
        type(manager).__exit__(manager, Died, death, None)
        raise


def _file_of(one: ModuleType | str | Path) -> str:
    file = getattr(one, "__file__", None) if isinstance(one, ModuleType) else str(one)
    if file is None or not file.endswith(".py"):
        raise ConfigurationError(f"lines: {one!r} is not a module, or a file, written in Python")
    return str(Path(file).absolute()) if not isinstance(one, ModuleType) else file


def _is_yours(file: str) -> bool:
    return not file.startswith(("<", *_NOT_YOURS))


def shown(function: str, file: str, line: int) -> str:
    source = linecache.getline(file, line).strip()
    text = source if len(source) <= WIDE else f"{source[: WIDE - 1]}…"
    return f"{Path(file).name}:{line} in {function}: {text}"


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
                # Not after its death, so that it can still release what it holds.
                if life is not None and life.alive:
                    life.reach(f"at the await of {_place(self._coroutine)}")
                reply = yield awaited
            except BaseException as error:  # `Died` too: it must be raised in the coroutine
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
