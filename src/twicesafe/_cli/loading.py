"""Loads what a command line names: MODULE:NAME, importable from the current directory."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from .. import AsyncReceiver, Receiver
from ..errors import UsageError
from ..regions import AsyncRegions, Regions

__all__ = ["import_here", "load_function", "load_module", "load_receiver", "load_regions"]


def import_here() -> None:
    """Let modules of the current directory be imported, as ``python -m`` does."""
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def load_function(target: str, what: str) -> Any:
    found = _load(target, what, "shop.orders:charge")
    if not callable(found):
        module, _, name = target.partition(":")
        raise UsageError(f"{what}: {module} has no function {name!r}")
    return found


def load_receiver(target: str) -> Any:
    """A `Receiver` or an `AsyncReceiver`."""
    return _load_one(target, "the receiver", "shop.orders:receiver", (Receiver, AsyncReceiver))


def load_regions(target: str) -> Any:
    """A `Regions` or an `AsyncRegions`."""
    return _load_one(target, "the regions", "shop.places:regions", (Regions, AsyncRegions))


def _load_one(target: str, what: str, example: str, kinds: tuple[type, ...]) -> Any:
    found = _load(target, what, example)
    if not isinstance(found, kinds):
        module, _, name = target.partition(":")
        either = " or ".join(kind.__name__ for kind in kinds)
        raise UsageError(f"{what}: {module} has no {either} named {name!r}")
    return found


def _load(target: str, what: str, example: str) -> Any:
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise UsageError(f"{what} must be MODULE:NAME, such as {example}, not {target!r}")
    found = load_module(module, what)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def load_module(name: str, what: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{what}: no module {error.name!r}; change to its directory, or install it"
        ) from error
    except Exception as error:
        raise UsageError(
            f"{what}: {name} raised while it was imported: {type(error).__name__}: {error}"
        ) from error
