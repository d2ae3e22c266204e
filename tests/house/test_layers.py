"""Decide in the core, act at the edge: the layers of the package, held by reading its imports.

A layer imports itself and the layers before it. Stores and runtime never import each other. Edges
never import each other, nor a concrete store: they open stores by URL. A driver is loaded by the one
place that needs it, and never by ``import twicesafe``. To add a module, give it a place in a table.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.house.imports import Package
from tests.house.repository import PACKAGE

# First to last. A name is a module or a sub-package directly in the package.
LAYERS: dict[str, set[str]] = {
    "values": {"_version", "_forking", "errors", "events", "_values"},
    "core": {"_core"},
    "stores": {"stores"},
    "engines": {"_engines"},
    "transactions": {"_transactions"},
    "runtime": {"_runtime"},
    "facades": {
        "receiver", "inbox", "outbox", "consumers", "http", "propagation", "strategies", "planning", "observers",
        "health", "encryption", "signing", "similar", "archive", "regions",
    },
    "front": {""},  # twicesafe/__init__.py: the public names
    "shared edges": {"_edges", "configuration"},
    "edges": {
        "asgi", "wsgi", "client", "integrations", "dashboard", "_proxy", "_cli", "_demo", "_bench", "__main__",
    },
    "testing": {"testing"},
}  # fmt: skip

# Later layers that must not import an earlier one all the same.
STRANGERS = {
    ("runtime", "stores"),
    ("runtime", "engines"),
    ("edges", "engines"),
    ("shared edges", "engines"),
}

# Layers whose members must not import each other.
HERMITS = {"edges"}

# Importer, imported: what the rules above would forbid, and why it is right.
ALLOWED = {
    ("_cli", "_demo"): "`twicesafe demo` is a command",
    ("_cli", "_bench"): "`twicesafe bench` is a command",
    ("_cli", "_proxy"): "`twicesafe proxy` is a command",
    ("_cli", "dashboard"): "`twicesafe dashboard` is a command",
    ("_proxy", "asgi"): "the proxy is the middleware in front of an upstream",
    **{
        (
            "_bench.place",
            f"_engines.{room}",
        ): "a benchmark removes what it wrote by the engine's own means"
        for room in (
            "dynamodb.items",
            "etcd.messages",
            "etcd.routing",
            "mongodb.documents",
            "redis.routed_commands",
            "sql.commands",
        )
    },
    (
        "integrations.alembic",
        "_engines.sql.migrations",
    ): "a revision is made from the store's own schema files",
    (
        "integrations.django_inbox._tables",
        "_engines.sql.migrations",
    ): "a migration is made from the store's own schema files",
    (
        "integrations.django_inbox.admin",
        "_engines.sql.commands",
    ): "the admin names states by the numbers of the store",
    ("_cli.verify", "testing"): "`twicesafe verify` runs the shipped crash matrix",
    ("_demo", "testing"): "the demo kills workers with the crash kit",
    ("__main__", "_cli"): "`python -m twicesafe`",
    (
        "integrations.django.management.commands.twicesafe",
        "_cli",
    ): "`manage.py twicesafe …` is the command line on the project's store",
}

# Third-party packages that any module may load: the runtime dependencies.
EVERYWHERE = {"msgspec"}

# Standard library, but loaded like a driver.
ALSO_DRIVERS = {"sqlite3"}

# Drivers whose home is a whole sub-package. Any other driver is loaded eagerly by one file at most.
HOMES = {
    "typer": {"_cli"},
    "click": {"_cli"},
    "rich": {"_cli", "_demo"},
    "uvicorn": {"_proxy", "dashboard"},
    "starlette": {"dashboard"},
    "h11": {"_proxy"},
    "pytest": {"testing"},
    "hypothesis": {"testing"},
    "django": {"integrations"},
    "asgiref": {"integrations.django"},
    "sqlite3": {"_engines.sqlite"},
}

# The core decides; these act.
NOT_IN_CORE = {
    "asyncio", "concurrent", "http", "logging", "multiprocessing", "os", "queue", "select",
    "selectors", "signal", "socket", "sqlite3", "ssl", "subprocess", "threading", "time", "urllib",
}  # fmt: skip


def place(package: Package, module: str) -> str:
    """A module's path inside the package: '_engines.sqlite', or '' for the package itself."""
    return module.removeprefix(package.name).removeprefix(".")


def layer(inner: str) -> str | None:
    first = inner.partition(".")[0]
    return next((name for name, members in LAYERS.items() if first in members), None)


def is_allowed(importer: str, imported: str) -> bool:
    return any(_within(importer, a) and _within(imported, b) for a, b in ALLOWED)


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer + ".")


def unplaced(package: Package) -> list[str]:
    return sorted(m for m in package.modules if layer(place(package, m)) is None)


def wrong_imports(package: Package) -> list[str]:
    order = list(LAYERS)
    wrong = []
    for found in package.inside():
        importer, imported = place(package, found.importer), place(package, found.target)
        above, below = layer(importer), layer(imported)
        if above is None or below is None or is_allowed(importer, imported):
            continue
        if order.index(below) > order.index(above):
            wrong.append(f"{found}: {above} stands before {below}")
        elif (above, below) in STRANGERS:
            wrong.append(f"{found}: {above} and {below} never meet")
        elif above in HERMITS and above == below and _first(importer) != _first(imported):
            wrong.append(f"{found}: {above} do not know each other")
    return wrong


def _first(inner: str) -> str:
    return inner.partition(".")[0]


def is_driver(target: str) -> bool:
    top = _first(target)
    return top in ALSO_DRIVERS or (
        top not in sys.stdlib_module_names and top not in EVERYWHERE and top != "__future__"
    )


def misplaced_drivers(package: Package) -> list[str]:
    eager: dict[str, set[str]] = {}
    for found in package.outside():
        if found.eager and is_driver(found.target):
            eager.setdefault(_first(found.target), set()).add(place(package, found.importer))
    wrong = []
    for driver, importers in sorted(eager.items()):
        if driver in HOMES:
            strays = {i for i in importers if not any(_within(i, home) for home in HOMES[driver])}
            wrong += [f"{stray} loads {driver}, which lives elsewhere" for stray in sorted(strays)]
        elif len(importers) > 1:
            wrong.append(f"{driver} is loaded by several files: {', '.join(sorted(importers))}")
    reached = package.loaded_by(package.name)
    wrong += [
        f"{found}, and `import {package.name}` loads that"
        for found in package.outside()
        if found.eager and is_driver(found.target) and found.importer in reached
    ]
    return wrong


def acting_core(package: Package) -> list[str]:
    return [
        f"{found}: the core decides, it does not act"
        for found in package.outside()
        if layer(place(package, found.importer)) == "core" and _first(found.target) in NOT_IN_CORE
    ]


@pytest.fixture(scope="module")
def twicesafe() -> Package:
    return Package.read(PACKAGE)


def test_every_module_has_a_layer(twicesafe: Package):
    assert unplaced(twicesafe) == []


def test_layers_import_only_what_stands_before_them(twicesafe: Package):
    assert wrong_imports(twicesafe) == []


def test_drivers_stay_in_their_place(twicesafe: Package):
    assert misplaced_drivers(twicesafe) == []


def test_the_core_is_pure(twicesafe: Package):
    assert acting_core(twicesafe) == []


def test_no_module_name_is_in_two_layers():
    names = [name for members in LAYERS.values() for name in members]
    assert len(names) == len(set(names))


# ------------------------------------------------------------------ the rules, on small packages


def package(tmp_path: Path, **sources: str) -> Package:
    """A package from keyword arguments; `_engines__sqlite` is _engines/sqlite.py."""
    folder = tmp_path / "pkg"
    sources.setdefault("__init__", "")
    for name, source in sources.items():
        inner = name if name.startswith("__") else name.replace("__", "/")
        path = folder / f"{inner}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        for parent in path.parents:
            if parent == tmp_path:
                break
            (parent / "__init__.py").touch()
        path.write_text(source)
    return Package.read(folder)


@pytest.mark.parametrize(
    "sources",
    [
        {"_values__keys": "from .._core import flows"},
        {"_values__keys": "from .. import _core", "_core__flows": ""},
        {"_values__keys": "import pkg._core.flows", "_core__flows": ""},
        {"_values__keys": "def f():\n    from ..receiver import Receiver", "receiver": ""},
        {"_core__flows": "from ..stores import base", "stores__base": ""},
        {"_engines__sqlite": "from .._runtime.blocking import drive", "_runtime__blocking": ""},
        {"_runtime__blocking": "from ..stores.base import Store", "stores__base": ""},
        {"receiver": "from .asgi import Middleware", "asgi": ""},
        {"receiver": "from . import Receiver"},
        {"receiver": "from .testing import clock", "testing__clock": ""},
        {"asgi": "from .wsgi import x", "wsgi": ""},
        {"client__httpx": "from ..integrations.fastapi import x", "integrations__fastapi": ""},
        {"asgi": "from ._engines.sqlite import SQLiteStore", "_engines__sqlite": ""},
        {"asgi": "from ._engines import sqlite", "_engines__sqlite": ""},
        {"asgi": "import importlib\nimportlib.import_module('._engines.sqlite', 'pkg')",
         "_engines__sqlite": ""},
        {"asgi": "from importlib import import_module\nimport_module('pkg._engines.sqlite')"},
        {"asgi": "from .testing import clock", "testing__clock": ""},
        {"_cli__keys": "from ..testing import clock", "testing__clock": ""},
        {"_demo": "from ._cli import main", "_cli": ""},
        {"asgi": "if TYPE_CHECKING:\n    pass\nelse:\n    from .wsgi import x", "wsgi": ""},
    ],
)  # fmt: skip
def test_a_wrong_import_is_found(tmp_path: Path, sources: dict[str, str]):
    assert wrong_imports(package(tmp_path, **sources))


@pytest.mark.parametrize(
    "sources",
    [
        {"__init__": "from .receiver import Receiver\nfrom ._values.keys import Key", "receiver": ""},
        {"_values__keys": "from ..errors import E", "errors": "from typing import TYPE_CHECKING\n"
         "if TYPE_CHECKING:\n    from .receiver import Receiver"},
        {"_values__keys": "import typing\nif typing.TYPE_CHECKING:\n    from .._cli import main", "_cli": ""},
        {"_engines__sqlite": "from ..stores.base import Store\nfrom .._core.flows import f",
         "stores__base": "", "_core__flows": ""},
        {"receiver": "from .stores.urls import open_store\nfrom ._runtime import blocking",
         "stores__urls": "", "_runtime__blocking": ""},
        {"asgi": "from . import Receiver\nfrom .stores.urls import open_store", "stores__urls": ""},
        {"_cli__app": "from .._demo import run\nfrom . import keys", "_cli__keys": "", "_demo": ""},
        {"_cli__verify": "from ..testing import conformance", "testing__conformance": ""},
        {"testing__kit": "from .._engines.sqlite import S\nfrom ..asgi import M", "asgi": "",
         "_engines__sqlite": ""},
        {"__main__": "from ._cli import main", "_cli": ""},
    ],
)  # fmt: skip
def test_a_right_import_is_left_alone(tmp_path: Path, sources: dict[str, str]):
    made = package(tmp_path, **sources)
    assert unplaced(made) == []
    assert wrong_imports(made) == []


def test_an_unknown_module_is_found(tmp_path: Path):
    assert unplaced(package(tmp_path, utils="", _engines__sqlite="")) == ["pkg.utils"]


@pytest.mark.parametrize(
    "sources",
    [
        {"_engines__postgresql": "import psycopg", "inbox": "import psycopg"},
        {"asgi": "import typer"},
        {"__init__": "import redis"},
        {"__init__": "from .receiver import R", "receiver": "from .stores import urls",
         "stores__urls": "from .._engines import sqlite", "_engines__sqlite": "import sqlite3"},
        {"__init__": "from .stores.urls import o", "stores__urls": "",
         "stores____init__": "import sqlite3"},
        {"__init__": "class A:\n    import redis"},
        {"__init__": "try:\n    import redis\nexcept ImportError:\n    redis = None"},
    ],
)  # fmt: skip
def test_a_stray_driver_is_found(tmp_path: Path, sources: dict[str, str]):
    if "stores____init__" in sources:
        made = package(tmp_path, **{k: v for k, v in sources.items() if k != "stores____init__"})
        (tmp_path / "pkg/stores/__init__.py").write_text(sources["stores____init__"])
        made = Package.read(tmp_path / "pkg")
    else:
        made = package(tmp_path, **sources)
    assert misplaced_drivers(made)


def test_drivers_in_their_place_are_left_alone(tmp_path: Path):
    made = package(
        tmp_path,
        __init__="import msgspec, json\nfrom .stores import urls",
        stores__urls="def open(url):\n    from .._engines import sqlite",
        _engines__sqlite="import sqlite3",
        _engines__redis="def connect():\n    import redis",
        _runtime__wake="def connect():\n    import redis",
        _cli__app="import typer",
        _cli__keys="import typer",
    )
    assert misplaced_drivers(made) == []


def test_a_core_that_acts_is_found(tmp_path: Path):
    assert acting_core(package(tmp_path, _core__flows="def f():\n    from time import sleep"))
    assert not acting_core(package(tmp_path / "b", _core__flows="import enum, dataclasses"))
