"""Forking: what a process must do around a fork, and what its child must recreate.

A fork copies the memory of a process but only one of its threads. A lock that another thread held
at that moment stays locked in the child, with no thread to release it, and the first call that
needs it waits forever. So every object that keeps a lock or a thread longer than one call registers
here how to recreate it. This is the only module that registers with the interpreter.
"""

from __future__ import annotations

import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from types import MethodType
from typing import NoReturn, TypeAlias

__all__ = ["RenewedLock", "WithoutChildren", "around_fork", "end_child", "in_child", "pid"]

_Hook: TypeAlias = Callable[[], None]
_Hooks: TypeAlias = dict[object, Callable[[], _Hook | None]]

_before: _Hooks = {}
_in_parent: _Hooks = {}
_in_child: _Hooks = {}


def in_child(renew: _Hook) -> None:
    """Call this in every forked child: a function, or a bound method while its object is alive.

    It must not wait for anything: the parent's other threads do not exist in the child.
    """
    _add(_in_child, renew)


def around_fork(before: _Hook, in_parent: _Hook, in_child: _Hook) -> None:
    """Call these before every fork, and after it in the parent and in the child."""
    _add(_before, before)
    _add(_in_parent, in_parent)
    _add(_in_child, in_child)


def end_child() -> NoReturn:
    """Exit from a forked child that must not return into its parent's code. Call it in a ``finally``.

    The exit status is the one that a main program would have if it ended in the same way.
    """
    error = sys.exc_info()[1]
    status = 0 if error is None else 1
    try:
        if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
            status = (error.code or 0) & 0xFF
        elif isinstance(error, SystemExit):
            sys.stderr.write(f"{error.code}\n")
        elif error is not None:
            traceback.print_exception(error)
    finally:  # also if nothing can be written to stderr
        os._exit(status)


class WithoutChildren:
    """A child that is forked inside this block, and comes to its end, exits there."""

    __slots__ = ("_process",)

    def __enter__(self) -> None:
        self._process = pid

    def __exit__(self, *_: object) -> None:
        if pid != self._process:
            end_child()


def _add(hooks: _Hooks, hook: _Hook) -> None:
    key = object()
    if not isinstance(hook, MethodType):
        hooks[key] = lambda: hook
        return
    # Not weakref.WeakMethod: when the interpreter ends, its callback may find itself gone and say so.
    function = hook.__func__
    owner = weakref.ref(hook.__self__, lambda _: hooks.pop(key, None))

    def bound() -> _Hook | None:
        there = owner()
        return None if there is None else MethodType(function, there)

    hooks[key] = bound


def _call_all(hooks: _Hooks) -> None:
    """Call every hook, in order. One that raises does not stop the others."""
    with ExitStack() as stack:
        for reference in reversed(list(hooks.values())):
            hook = reference()
            if hook is not None:
                stack.callback(hook)


class RenewedLock:
    """A lock that is replaced in every forked child: ``with lock.now: …``."""

    def __init__(self) -> None:
        self._renew()
        in_child(self._renew)

    def _renew(self) -> None:
        self.now = threading.Lock()


pid = os.getpid()
"""This process, without a system call. Read it as an attribute of the module: a fork changes it."""


def _renew_pid() -> None:
    global pid
    pid = os.getpid()


in_child(_renew_pid)  # before all others

if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _call_all(_before),
        after_in_parent=lambda: _call_all(_in_parent),
        after_in_child=lambda: _call_all(_in_child),
    )
