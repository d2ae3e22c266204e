"""Models of the sections that need no more than the library: store, policy, relay, consume, complete and sweep."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from msgspec import Meta

from .._edges.listener import ListenAddress
from .._values.policy import Policy
from .._values.settings import expect
from ..encryption import KeyRing
from ..stores._urls import default_url
from ._fields import check_fields
from ._kinds import WRONG, Seconds, Url, ValueKind
from ._model import Section

__all__ = [
    "COMPLETE",
    "CONSUME",
    "POLICY",
    "RELAY",
    "STORE",
    "SWEEP",
    "CompleteOptions",
    "ConsumeOptions",
    "RelayOptions",
    "StoreOptions",
    "SweepOptions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Where records are kept."""

    url: Url = field(default_factory=default_url)
    """URL of the store. Default: SQLite in the user's data folder."""

    def __post_init__(self) -> None:
        check_fields(self)
        expect(self.url, "url", self.url, "it is empty; write a URL like sqlite:///keys.db")


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOptions:
    """What `twicesafe relay` does."""

    to: Url = ""
    """URL of the broker: http(s), redis, nats, amqp, kafka or sqs."""
    batch: Annotated[int, Meta(ge=1)] = 500
    """Messages in flight, at most."""
    lease: Annotated[Seconds, Meta(ge=0.3)] = 10
    """Lease of a relay's share; if it is not renewed, another relay takes over."""
    max_attempts: Annotated[int, Meta(ge=1)] = 10
    """Failed attempts before the lane is parked."""
    metrics: str = ""
    """Serve metrics at this address, host:port; empty: nowhere."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_address(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """What `twicesafe consume` reports. What it does is said on its command line."""

    metrics: str = ""
    """Serve metrics at this address, host:port; empty: nowhere."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_address(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompleteOptions:
    """What `twicesafe complete` does."""

    receiver: str = ""
    """The receiver whose durable functions are run, as MODULE:NAME."""
    every: Annotated[Seconds, Meta(ge=0.01)] = 1
    """How often to look for runs that are due."""
    limit: Annotated[int, Meta(ge=1)] = 1000
    """Runs to find in each round, at most."""
    concurrency: Annotated[int, Meta(ge=1)] = 8
    """Runs to continue at once."""
    metrics: str = ""
    """Serve metrics at this address, host:port; empty: nowhere."""

    def __post_init__(self) -> None:
        check_fields(self)
        _check_address(self.metrics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepOptions:
    """What `twicesafe sweep` does."""

    every: Annotated[Seconds, Meta(ge=0.05)] | None = None
    """Repeat at this interval until Ctrl-C or SIGTERM; not set: sweep once."""
    limit: Annotated[int, Meta(ge=1)] | None = None
    """Remove at most this many records, in each round; not set: all that are expired."""

    def __post_init__(self) -> None:
        check_fields(self)


def _check_address(metrics: str) -> None:
    if metrics:
        ListenAddress.of(metrics, "metrics")


STORE: Final = Section("store", StoreOptions, "Where records are kept.")
_IN_CODE: Final = "cannot be set in a file: set it in Python, where the Receiver is opened"


_KEY_RING: Final = ValueKind(
    "env:NAME or file:/path",
    lambda value, _: value if value is None or isinstance(value, str) else WRONG,
    str,
    {"type": "string"},
)


def _policy(settings: dict[str, Any]) -> Policy:
    source = settings.pop("encryption", None)
    return Policy(**settings, encryption=KeyRing.load(source) if source else None)


POLICY: Final = Section(
    "policy",
    Policy,
    "The policy of every command that opens the store: the settings of `twicesafe.Policy`.",
    without={"remember": _IN_CODE, "codec": _IN_CODE, "signatures": _IN_CODE},
    kinds={"encryption": _KEY_RING},
    make=_policy,
)
RELAY: Final = Section("relay", RelayOptions, "Settings of `twicesafe relay`.")
CONSUME: Final = Section("consume", ConsumeOptions, "Settings of `twicesafe consume`.")
SWEEP: Final = Section("sweep", SweepOptions, "Settings of `twicesafe sweep`.")
COMPLETE: Final = Section("complete", CompleteOptions, "Settings of `twicesafe complete`.")
