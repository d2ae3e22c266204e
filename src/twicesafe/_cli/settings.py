"""The store and the policy come from the command line, the environment or a file, in that order.

    --store URL  >  TWICESAFE_STORE_URL  >  twicesafe.toml  >  SQLite in the user's data folder

The file is ``twicesafe.toml`` or ``twicesafe.yaml`` in the working directory, or the one that ``--config``
names:

    [store]
    url = "sqlite:///keys.db"

    [policy]                 # the settings of twicesafe.Policy; durations in seconds, or text
    retention = "7d"
    [policy.backoff]
    first = 0.5

    [proxy]                  # settings of `twicesafe proxy`, with [http], its HttpPolicy
    [relay]                  # settings of `twicesafe relay`; [consume] and [complete]: of those commands
    [sweep]                  # settings of `twicesafe sweep`

Each setting can also be an environment variable, such as TWICESAFE_POLICY_RETENTION. Every command checks the whole file: an
unknown name is an error, never ignored.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import Policy, Receiver
from ..configuration import Configuration, resolve
from ..stores._urls import is_missing, mask
from .exits import UNAVAILABLE, CommandEnded

__all__ = ["CliSettings", "expect_store", "opened", "settle", "settled"]


@dataclass(frozen=True, slots=True)
class CliSettings:
    url: str
    source: str
    """Where the URL came from: ``--store``, the variable, the file or ``default``."""
    policy: Policy


def settle(store: str | None, config: Path | None) -> CliSettings:
    """The settings of one command. `ConfigurationError` names the wrong field and the fix."""
    return settled((), store, config)[0]


def settled(
    sections: tuple[str, ...],
    store: str | None,
    config: Path | None,
    given: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[CliSettings, Configuration]:
    """The same for a command that has its own sections; ``given``: what the command line says."""
    found = resolve(
        "store",
        "policy",
        *sections,
        config=config,
        given={**(given or {}), "store": {"url": store}},
    )
    url, origin = found.section("store").url, found.origin("store", "url")
    return CliSettings(url, origin.place, found.section("policy")), found


def expect_store(settings: CliSettings) -> CliSettings:
    """These settings, if there is a store."""
    if is_missing(settings.url):
        remedy = (
            "name yours with --store or TWICESAFE_STORE_URL"
            if settings.source == "default"
            else "check the path"
        )
        named = settings.source.startswith("--")  # elsewhere `migrate` finds it as this command did
        store = f" --store {shlex.quote(mask(settings.url))}" if named else ""
        raise CommandEnded(
            f"there is no store at {mask(settings.url)} (from {settings.source}); {remedy}, or "
            f"create this one with `twicesafe migrate{store}`",
            UNAVAILABLE,
        )
    return settings


@contextmanager
def opened(settings: CliSettings) -> Iterator[Receiver]:
    """A receiver on the store of a command, which never creates a missing one."""
    expect_store(settings)
    with Receiver.open(settings.url, policy=settings.policy) as receiver:
        yield receiver
