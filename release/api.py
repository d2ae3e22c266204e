"""The public API of a version: every public name, and the parameters of everything that can be called.

    python -m release.api twicesafe          prints it as JSON, for the package on the path

Public is what a module lists in ``__all__``, if no part of its name begins with an underscore. A class has its
public methods, properties and fields. Run in the sources of two versions, it gives two lists for `verdict`.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

__all__ = ["Parameter", "Surface", "surface"]

Parameter = tuple[str, str, bool]
"""Name, kind, and whether it has a default."""
Surface = dict[str, list[Parameter] | None]
"""By dotted name; None: it is not called."""


def surface(package: str) -> Surface:
    """The public API of an importable package. A module whose driver is missing is left out."""
    found: Surface = {}
    for module in _modules(package):
        for name in getattr(module, "__all__", ()):
            _describe(f"{module.__name__}.{name}", getattr(module, name), found)
    return found


def _modules(package: str) -> Iterator[ModuleType]:
    top = importlib.import_module(package)
    yield top
    for found in pkgutil.walk_packages(top.__path__, f"{package}.", onerror=lambda _: None):
        if any(part.startswith("_") for part in found.name.split(".")):
            continue
        try:
            yield importlib.import_module(found.name)
        except Exception as error:
            print(f"left out: {found.name} ({type(error).__name__})", file=sys.stderr)


def _describe(name: str, thing: Any, found: Surface) -> None:
    found[name] = _parameters(thing)
    if not inspect.isclass(thing):
        return
    for member, value in inspect.getmembers_static(thing):
        if member.startswith("_") or not _is_ours(thing, member):
            continue
        inner = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        found[f"{name}.{member}"] = _parameters(inner) if callable(inner) else None


def _is_ours(cls: type, member: str) -> bool:
    """Not inherited from object, an exception or another library."""
    package = cls.__module__.partition(".")[0]
    owner = next((base for base in cls.__mro__ if member in vars(base)), cls)
    return owner.__module__.partition(".")[0] == package


def _parameters(thing: Any) -> list[Parameter] | None:
    if not callable(thing):
        return None
    try:
        signature = inspect.signature(thing)
    except Exception:
        return None  # written in C, or its annotations name what only type checkers import
    return [
        (each.name, each.kind.name, each.default is not inspect.Parameter.empty)
        for each in signature.parameters.values()
        if each.name not in ("self", "cls") and not each.name.startswith("_")
    ]


if __name__ == "__main__":
    json.dump(surface(sys.argv[1]), sys.stdout)
