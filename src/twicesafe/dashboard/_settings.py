"""The settings of ``twicesafe dashboard``: where it listens, who may enter, what is shown."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from .._edges.listener import ListenAddress
from ..configuration._fields import check_fields
from ..configuration._kinds import SECRET, URLS, Url
from ..configuration._model import Section
from ..consumers.sources import SCHEMES
from ..errors import ConfigurationError
from ..stores._urls import target_of
from ._access import Access
from ._login import Login, check_token
from ._metrics import check_metrics_url
from ._security import LOOPBACK, checked_hosts

__all__ = ["DASHBOARD_SECTION", "DashboardSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardSettings:
    """All settings of a dashboard that is served alone."""

    listen: str = "127.0.0.1:8090"
    """Address to listen on: host:port. Without a token it must be on this machine's loopback."""
    hosts: tuple[str, ...] = ()
    """Further host names under which browsers reach it; requests for others are refused."""
    token: Annotated[str, SECRET] = ""
    """Token for full access; at least 16 characters."""
    token_file: str = ""
    """File with that token, instead of the setting itself."""
    read_token: Annotated[str, SECRET] = ""
    """Token for read-only access."""
    read_token_file: str = ""
    """File with that token, instead of the setting itself."""
    read_only: bool = False
    """No visitor can change anything."""
    show_keys: bool = False
    """Show keys, scopes, the errors' text of parked lanes, and the reasons and bodies of dead
    letters; otherwise the first 8 digits of a key's id."""
    metrics: Annotated[tuple[str, ...], URLS] = ()
    """URLs of the /metrics of your services or of the proxy: rates and ages of duplicates are read there."""
    dead_letters: Url = ""
    """URL of a consumer of the dead topic, stream or queue; empty: there is no such page."""

    consumers: Annotated[tuple[str, ...], URLS] = ()
    """URLs of consumers: their brokers are asked how far behind they are, and who takes part."""

    def __post_init__(self) -> None:
        check_fields(self)
        checked_consumers(self.consumers)
        ListenAddress.of(self.listen, "listen")
        checked_hosts((*LOOPBACK, *self.hosts))
        for url in self.metrics:
            check_metrics_url(url)
        for name in ("token", "read_token"):
            if not (token := getattr(self, name)):
                continue
            if getattr(self, f"{name}_file"):
                raise ConfigurationError(f"{name} and {name}_file are both set: keep one")
            check_token(token)  # so that `twicesafe config check` says it, too

    def login(self) -> Login | None:
        """The login; None: no token is set."""
        level = "read-only" if self.read_only else "all"
        reading = _token(self.read_token, self.read_token_file, "read_token_file")
        acting = _token(self.token, self.token_file, "token_file")
        if reading and reading == acting:
            raise ConfigurationError("token and read_token are the same: use two")
        given: dict[str, Access] = {}
        if reading:
            given[reading] = Access(level="read-only", show_keys=self.show_keys)
        if acting:
            given[acting] = Access(level=level, show_keys=self.show_keys)  # type: ignore[arg-type]
        return Login(given) if given else None

    @property
    def listener(self) -> ListenAddress:
        return ListenAddress.of(self.listen, "listen")

    @property
    def names(self) -> tuple[str, ...]:
        """The host names that it answers for."""
        host = self.listener.host
        shown = f"[{host}]" if ":" in host else host
        everywhere = shown in ("0.0.0.0", "[::]")  # noqa: S104 - compared, not bound
        return (*LOOPBACK, *self.hosts, *(() if everywhere else (shown,)))


def checked_consumers(urls: Iterable[str]) -> tuple[str, ...]:
    """The URLs of consumers; each must be one that `Consumer.open` knows."""
    if isinstance(urls, str):
        raise ConfigurationError("consumers must be a list of URLs, not one text")
    found = tuple(urls)
    for url in found:
        target_of(url, SCHEMES, "source")
    return found


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches that address."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _token(given: str, path: str, name: str) -> str:
    if not path:
        return given
    try:
        text = Path(path).read_text("utf-8").strip()
        shared = os.name == "posix" and Path(path).stat().st_mode & 0o007
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{name}={path!r} cannot be read: {error}") from error
    if not text:
        raise ConfigurationError(f"{name}={path!r} is empty")
    if shared:
        raise ConfigurationError(
            f"{name}={path!r} can be read by every user of this machine: chmod o-rwx it"
        )
    return text


DASHBOARD_SECTION: Final = Section(
    "dashboard", DashboardSettings, "Settings of `twicesafe dashboard`."
)
