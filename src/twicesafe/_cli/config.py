"""Which store, and under which policy: the command line, then the environment, then a file.

    --store URL  >  TWICESAFE_STORE_URL  >  twicesafe.toml  >  SQLite in the user's data folder

The file is ``twicesafe.toml`` in the working directory, or the one that ``--config`` names:

    [store]
    url = "sqlite:///keys.db"

    [policy]                 # the settings of twicesafe.Policy; durations in seconds
    retention = 604800
    [policy.backoff]
    first = 0.5

    [proxy]                  # of `twicesafe proxy`: twicesafe._proxy.settings
    [http]                   # of its HttpPolicy

It is checked as a whole whenever it is there: a name that nobody knows is refused, not ignored.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .. import Backoff, ConfigurationError, Policy, Receiver
from .._proxy.settings import check_sections
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
    """Who chose the store."""
    policy: Policy


def settle(store: str | None, config: Path | None) -> Settings:
    """The settings of one command. Raises `ConfigurationError` naming the field and the fix."""
    file_url, policy = _read(config)
    for source, url in (
        ("--store", store),
        (VARIABLE, os.environ.get(VARIABLE)),
        (str(config or FILE), file_url),
    ):
        if url is not None:
            if not url:
                raise ConfigurationError(
                    f"{source} names an empty store URL; is the variable that should hold it not set?"
                )
            return Settings(url, source, policy)
    return Settings(default_url(), "default", policy)


def existing(store: str | None, config: Path | None) -> Settings:
    """The settings of a command that looks at what is there: it makes no file, and no answer of it."""
    settings = settle(store, config)
    if is_missing(settings.url):
        raise Ended(
            f"there is no store at {mask(settings.url)} (from {settings.source}); check the path, or "
            "make one with `twicesafe migrate`",
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
        _known(document, _SECTIONS, "section")
        for name, section in document.items():
            if not isinstance(section, dict):
                raise ConfigurationError(f"{name} is a section: write [{name}] and its settings")
        check_sections(document)
        return _url(document.get("store", {})), _policy(document.get("policy", {}))
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: {error.message}") from error


def _url(section: dict[str, Any]) -> str | None:
    _known(section, ("url",), "setting in [store]")
    url = section.get("url")
    if url is not None and not isinstance(url, str):
        raise ConfigurationError(f"[store] url={url!r} makes no sense: write a URL in quotes")
    return url


def _policy(section: dict[str, Any]) -> Policy:
    for name in _IN_CODE_ONLY:
        if name in section:
            raise ConfigurationError(
                f"[policy] {name} is made of Python objects: set it where the Receiver is opened"
            )
    _known(section, _POLICY, "setting in [policy]")
    settings = dict(section)
    if "backoff" in settings:
        settings["backoff"] = _backoff(settings["backoff"])
    try:
        return Policy(**settings)
    except ConfigurationError as error:
        raise ConfigurationError(f"[policy] {error.message}") from error


def _backoff(section: Any) -> Backoff:
    if not isinstance(section, dict):
        raise ConfigurationError("backoff is a section: write [policy.backoff] and its settings")
    _known(section, _BACKOFF, "setting in [policy.backoff]")
    for name, value in section.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ConfigurationError(f"[policy.backoff] {name}={value!r}: use a number")
    return Backoff(**section)


def _known(given: dict[str, Any], known: tuple[str, ...], what: str) -> None:
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(known)}"
            raise ConfigurationError(f"there is no {what} {name!r}; {hint}")
