"""What a library is asked for, and where its adapter is."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, Final, Literal, Protocol

import msgspec

__all__ = [
    "OURS",
    "PEERS",
    "WAIT",
    "Entry",
    "Order",
    "Peer",
    "Protection",
    "adapter",
    "name_of_version",
]

OURS: Final = "twicesafe"
WAIT: Final = 8.0
"""Seconds that a duplicate may wait, where a library lets it."""

Order = dict[str, Any]
"""The one argument of a protected function: key, tenant, payload, and how the function shall end."""

Guarded = Callable[[Order], Any]


class Protection(msgspec.Struct, frozen=True):
    """What a library is configured for. One that lacks a setting does without."""

    lease: float
    tenant: str
    meets: Literal["wait", "take over"] = "wait"
    """What is most wanted of a call that meets another one, for those that cannot do both."""
    checks: bool = False
    """Is another payload under the same key an error?"""


class Peer(Protocol):
    """One process's access to a library; ``name`` is the same again after a restart."""

    def __init__(self, url: str, name: str) -> None: ...

    def guard(self, function: Guarded, protection: Protection) -> Guarded:
        """The function, protected."""
        ...

    def close(self) -> None: ...


class Entry(msgspec.Struct, frozen=True):
    package: str
    stores: tuple[str, ...]
    settings: str
    """How its adapter sets it up, for the reader who must judge whether that is fair."""
    lacks: dict[str, str] = {}
    """Scenarios that it has no setting for, and how that is said."""

    @property
    def missing(self) -> bool:
        return importlib.util.find_spec(_MODULES[self.package]) is None


PEERS: Final = {
    OURS: Entry(
        "twicesafe",
        ("postgres", "valkey"),
        "`Policy(lease=…, wait=…)`, `scope` for the tenant, `fingerprint=` of the payload",
    ),
    "idemkit": Entry(
        "idemkit",
        ("postgres", "valkey"),
        "`idempotent_sync` with `lease_ttl_seconds`, `wait_timeout_seconds`, `key_fields`, `scope`, "
        "`validation_fingerprint`; `result_codec='dataclass'` for the dataclass, its JSON codec for "
        "the rest (it has a pickle codec to opt into, not tried)",
    ),
    "exactly-once": Entry(
        "exactly-once",
        ("postgres", "valkey"),
        "`once` with `lease_ttl`, `namespace`, `fingerprint`; policy `wait` where calls meet, "
        "`auto_retry` where one must be taken over (a policy does one or the other; its default, "
        "`quarantine`, does neither); its JSON codec",
    ),
    "justonce": Entry(
        "justonce",
        ("postgres",),
        "`Idempotent(ttl_seconds=…, on_in_flight=WAIT)`, tenant in `operation_key`, `payload=`",
    ),
    "dbos": Entry(
        "dbos",
        ("postgres",),
        "a workflow without steps under `SetWorkflowID`, an `executor_id` per process that stays the "
        "same over a restart; it has neither a lease nor a payload check",
        {"other tenant, same key": "no such setting"},
    ),
    "powertools": Entry(
        "aws-lambda-powertools",
        ("valkey",),
        "`idempotent_function` on one `CachePersistenceLayer` per configuration, the lease as the "
        "Lambda context's remaining time, `key_prefix` for the tenant, `payload_validation_jmespath`, "
        "`DataclassSerializer` for the dataclass; it does not wait for running work, and its DynamoDB "
        "layer was not tried",
    ),
}

_MODULES: Final = {
    "twicesafe": "twicesafe",
    "idemkit": "idemkit",
    "exactly-once": "exactly_once",
    "justonce": "justonce",
    "dbos": "dbos",
    "aws-lambda-powertools": "aws_lambda_powertools",
}


def adapter(name: str) -> type[Peer]:
    """The class in the adapter's file; only there is the library imported."""
    file = "ours" if name == OURS else name.replace("-", "_")
    found: type[Peer] = importlib.import_module(f"lab.peers.{file}").Adapter
    return found


def name_of_version(name: str) -> str:
    return version(PEERS[name].package)
