"""Finds the store and the policy: from the command line, the environment or a file, in that order.

    --store URL  >  TWICESAFE_STORE_URL  >  twicesafe.toml  >  SQLite in the user's data folder

The file is ``twicesafe.toml`` in the working directory, or the one that ``--config`` names:

    [store]
    url = "sqlite:///keys.db"

    [policy]                 # the settings of twicesafe.Policy; durations in seconds, or text
    retention = "7d"
    [policy.backoff]
    first = 0.5

    [proxy]                  # settings of `twicesafe proxy`: see twicesafe._proxy.settings
    [http]                   # the proxy's HttpPolicy

Every command checks the whole file: an unknown name is an error, never ignored.
"""

from __future__ import annotations

import dataclasses
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import Backoff, ConfigurationError, Policy, Receiver
from .._proxy.settings import check_sections
from .._values.settings import refuse_unknown
from ..stores._urls import default_url, is_missing, mask
from .exits import UNAVAILABLE, Ended

__all__ = ["FILE", "VARIABLE", "Settings", "existing", "opened", "settle"]

FILE: Final = "twicesafe.toml"
VARIABLE: Final = "TWICESAFE_STORE_URL"

_SECTIONS: Final = ("store", "policy", "proxy", "http")
_IN_CODE_ONLY: Final = ("remember", "codec")
_POLICY: Final = tuple(
    field.name for field in dataclasses.fields(Policy) if field.name not in _IN_CODE_ONLY
)
_BACKOFF: Final = tuple(field.name for field in dataclasses.fields(Backoff))


@dataclass(frozen=True, slots=True)
class Settings:
    url: str
    source: str
    """Where the URL came from: ``--store``, the variable, the file or ``default``."""
    policy: Policy


def settle(store: str | None, config: Path | None) -> Settings:
    """The settings of one command. `ConfigurationError` names the wrong field and the fix."""
    file_url, policy = _read(config)
    for source, url in (
        ("--store", store),
        (VARIABLE, os.environ.get(VARIABLE)),
        (str(config or FILE), file_url),
    ):
        if url is not None:
            if not url:
                raise ConfigurationError(
                    f"{source} has an empty store URL: write a URL like sqlite:///keys.db"
                )
            return Settings(url, source, policy)
    return Settings(default_url(), "default", policy)


def existing(store: str | None, config: Path | None) -> Settings:
    """The settings of a command that only reads: it never creates a missing store."""
    settings = settle(store, config)
    if is_missing(settings.url):
        raise Ended(
            f"there is no store at {mask(settings.url)} (from {settings.source}); check the path, or "
            "create it with `twicesafe migrate`",
            UNAVAILABLE,
        )
    return settings


@contextmanager
def opened(settings: Settings) -> Iterator[Receiver]:
    with Receiver.open(settings.url, policy=settings.policy) as receiver:
        yield receiver


def _read(config: Path | None) -> tuple[str | None, Policy]:
    path = config or Path(FILE)
    if config is None and not path.is_file():
        return None, Policy()
    try:
        document = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error
    try:
        refuse_unknown(document, _SECTIONS, "section")
        for name, section in document.items():
            if not isinstance(section, dict):
                raise ConfigurationError(
                    f"{name} must be a section: write [{name}] and its settings below it"
                )
        check_sections(document)
        return _url(document.get("store", {})), _policy(document.get("policy", {}))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.message}") from error


def _url(section: dict[str, Any]) -> str | None:
    refuse_unknown(section, ("url",), "setting in [store]")
    url = section.get("url")
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(f"[store] url={url!r} is not a URL: write it in quotes")
    return url


def _policy(section: dict[str, Any]) -> Policy:
    for name in _IN_CODE_ONLY:
        if name in section:
            raise ConfigurationError(
                f"[policy] {name} cannot be set in a file: set it in Python, where the Receiver is opened"
            )
    refuse_unknown(section, _POLICY, "setting in [policy]")
    settings = dict(section)
    if "backoff" in settings:
        settings["backoff"] = _backoff(settings["backoff"])
    try:
        return Policy(**settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"[policy] {error.message}") from error


def _backoff(section: Any) -> Backoff:
    if not isinstance(section, dict):
        raise ConfigurationError(
            "backoff must be a section: write [policy.backoff] and its settings below it"
        )
    refuse_unknown(section, _BACKOFF, "setting in [policy.backoff]")
    try:
        return Backoff(**section)
    except ConfigurationError as error:
        raise ConfigurationError(f"[policy.backoff] {error.message}") from error
