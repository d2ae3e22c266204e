"""Storage: how many records there are, what they take in each store, and what Redis needs in memory.

    records = new keys per second × (window + time until the sweep)       Little's law, L = λW
    bytes   = records × bytes per key

A late duplicate makes a record too. These are left out: with a useful window there are few.
Bytes per key are those of the published benchmark (`_published`), corrected by the bytes of your results
and keys. They are stored as they are. They include indexes, and what autovacuum leaves in PostgreSQL;
those of DynamoDB and MongoDB are of the item or document alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .._values.quantities import Size, size
from .._values.settings import seconds, suggestion
from ..errors import ConfigurationError
from ._published import BYTES_PER_KEY, KEY_BYTES, RESULT_BYTES, SWEEP_SECONDS
from ._workload import DAY, Workload

__all__ = ["STORES", "Storage", "bytes_per_key", "records", "storage", "store_of"]

STORES: Final = tuple(BYTES_PER_KEY)
"""The stores whose size is measured."""

_SCHEMES: Final = {
    "memory": "memory",
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mariadb",
    "mariadb": "mariadb",
    "redis": "valkey",
    "rediss": "valkey",
    "valkey": "valkey",
    "valkeys": "valkey",
    "dynamodb": "dynamodb",
    "mongodb": "mongodb",
    "etcd": "etcd",
    "etcds": "etcd",
}
_IN_MEMORY: Final = frozenset({"valkey"})
_EXPIRES_BY_ITSELF: Final = frozenset({"valkey", "dynamodb", "mongodb", "etcd"})

FORK: Final = 2
"""While a server like Redis saves its data, it may use up to twice its memory, as its manual says. The
child process shares each page until the parent writes to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """What one store holds when the first window is over; after that it stays at this size."""

    store: str
    bytes_per_key: float
    records: float
    bytes: float
    growth_per_day: float
    """Bytes per day, until the first records expire."""
    full_after: float
    """Seconds until it no longer grows."""
    memory_while_saving: float | None
    """Redis and Valkey: the memory that a save or a rewrite needs, at most."""
    sweep_share: float | None
    """The share of the time that sweeping takes; None: the store expires records, or it is not measured."""


def store_of(name: str) -> str:
    """The store that is meant by a URL, a scheme or a name: "valkey" for ``redis://host``."""
    scheme = name.partition(":")[0].partition("+")[0].lower()
    if scheme not in _SCHEMES:
        shown = repr(scheme[:30]) if "@" not in scheme else "this"
        raise ConfigurationError(
            f"store={shown} is not measured by the benchmark; {suggestion(scheme, _SCHEMES)}"
        )
    return _SCHEMES[scheme]


def bytes_per_key(store: str, result: Size = RESULT_BYTES, key: Size = KEY_BYTES) -> float:
    """What one record takes in this store, with its index."""
    fixed = BYTES_PER_KEY[store_of(store)] - RESULT_BYTES - KEY_BYTES
    return fixed + size(result, "result") + size(key, "key")


def records(workload: Workload, store: str, window: float) -> float:
    """Records at any time, once the first window is over."""
    return workload.new_keys * _kept(workload, store_of(store), window)


def _kept(workload: Workload, store: str, window: float) -> float:
    """How long a record is there: until it is swept, or expires by itself."""
    return window + (0.0 if store in _EXPIRES_BY_ITSELF else seconds(workload.sweep_every))


def storage(workload: Workload, store: str, window: float) -> Storage:
    name = store_of(store)
    each = bytes_per_key(name, workload.result, workload.key)
    new, held = workload.new_keys, records(workload, name, window)
    sweep = SWEEP_SECONDS.get(name)
    return Storage(
        store=name,
        bytes_per_key=each,
        records=held,
        bytes=held * each,
        growth_per_day=new * DAY * each,
        full_after=_kept(workload, name, window),
        memory_while_saving=held * each * FORK if name in _IN_MEMORY else None,
        sweep_share=None if sweep is None else new * sweep,
    )
