"""The neighbours as contestants, each through its public names and with the settings it ships.

Where one cannot do a case, it is absent with the reason, which the report prints. A neighbour
that is not installed is absent too: the floors and ours run anywhere.
"""

from __future__ import annotations

import importlib.util
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .workload import Absent, Contestant

EXACTLY_ONCE, IDEMKIT, DBOS = "exactly-once", "idemkit", "dbos"
MODULES = {EXACTLY_ONCE: "exactly_once", IDEMKIT: "idemkit", DBOS: "dbos"}


_left_out: dict[str, str] = {}


def leave_out(name: str, reason: str) -> None:
    _left_out[name] = reason


def _missing(name: str) -> Absent | None:
    if name in _left_out:
        return Absent(name, _left_out[name])
    found = importlib.util.find_spec(MODULES[name])
    return Absent(name, "not installed here") if found is None else None


def exactly_once(
    handler: Callable[[str], Any], path: Path | None = None, waits: bool = False
) -> Contestant | Absent:
    """In memory, or on SQLite (WAL, NORMAL: it has no other). No lease unless asked for."""
    if (missing := _missing(EXACTLY_ONCE)) is not None:
        return missing
    from exactly_once import Store, once, quarantine, wait

    store = Store.memory() if path is None else Store.sqlite(str(path))
    policy = wait() if waits else quarantine
    guarded = once(store, key=lambda key: key, policy=policy)(handler)
    return Contestant(EXACTLY_ONCE, guarded, getattr(store, "close", lambda: None))


def idemkit(
    handler: Callable[[str], Any], *, is_async: bool, cache: bool = False
) -> Contestant | Absent:
    """In memory; its blocking form runs the body on another thread, through an event loop."""
    if (missing := _missing(IDEMKIT)) is not None:
        return missing
    import idemkit as kit

    config = kit.MethodConfig(key_fields=["key"], use_local_cache=cache)
    decorate = kit.idempotent if is_async else kit.idempotent_sync
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it advises a scope; one tenant is what we measure
        guarded = decorate(backend=kit.InMemoryBackend(), config=config)(handler)
    return Contestant(IDEMKIT, guarded)


# --- dbos: one runtime per process, so each case starts and ends it ------------------------------

_workflows: dict[Callable[..., Any], Any] = {}


def dbos(handler: Callable[[str], Any], folder: Path) -> Contestant | Absent:
    """A workflow without steps on SQLite (rollback journal, FULL: what it ships)."""
    if (missing := _missing(DBOS)) is not None:
        return missing
    from dbos import DBOS as Runtime  # noqa: N811 - its own name is our column's
    from dbos import SetWorkflowID

    url = f"sqlite:///{folder.absolute()}/dbos.sqlite"
    Runtime(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL"})
    if handler not in _workflows:
        _workflows[handler] = Runtime.workflow(name=f"bench.{handler.__name__}")(handler)
    workflow = _workflows[handler]
    Runtime.launch()

    def call(key: str) -> Any:
        with SetWorkflowID(key):
            return workflow(key)

    async def acall(key: str) -> Any:
        with SetWorkflowID(key):
            return await workflow(key)

    is_async = inspect.iscoroutinefunction(handler)
    return Contestant(DBOS, acall if is_async else call, Runtime.destroy)
