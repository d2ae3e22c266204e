"""An interrupt exactly where we say: at every moment at which CPython can let one out."""

from __future__ import annotations

import contextlib
import dis
import itertools
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

# Behind these CPython looks for a pending interrupt and raises it, as if they themselves had.
CHECKING = {"RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"}


class Sudden(BaseException):
    """An interrupt, where we say."""


class Places:
    """Of one function: behind which instructions can an interrupt come out?"""

    def __init__(self, code: Any) -> None:
        read = dis.Bytecode(code)
        instructions = list(read)
        handlers = {
            offset: entry.target
            for entry in read.exception_entries
            for offset in range(entry.start, entry.end + 2, 2)
        }
        # A tracer raises one instruction late. Where that one has another handler (`with` and
        # `finally` end there) it would tell a story that cannot happen.
        self.behind = {
            after.offset
            for before, after in itertools.pairwise(instructions)
            if before.opname in CHECKING
            and handlers.get(before.offset) == handlers.get(after.offset)
        }


def suddenly(module: ModuleType, moment: int, work: Callable[[], Any]) -> BaseException | None:
    """Raise at the n-th moment at which an interrupt can come out of this module's own code.

    The error is kept in hand, as a caller does who cleans up before passing it on.
    """
    files = {module.__file__, contextlib.__file__}
    passed = itertools.count(1)
    places: dict[Any, Places] = {}

    def trace(frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if code not in places:
            places[code] = Places(code)
        if event == "opcode" and frame.f_lasti in places[code].behind and next(passed) == moment:
            raise Sudden
        return trace

    sys.settrace(trace)
    try:
        work()
    except Sudden as error:
        return error
    finally:
        sys.settrace(None)
    return None


def begin(work: Callable[[], Any]) -> Callable[[], Any]:
    """In a separate thread. Calling what this gives waits for it: not for ever, and tells."""
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(work()), daemon=True)
    thread.start()

    def end() -> Any:
        thread.join(60)
        assert not thread.is_alive(), "it never ends"
        return got[0]

    return end
