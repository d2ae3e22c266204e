"""Settings: the command line, then the environment, then a file, then the default.

    twicesafe proxy --upstream …     >  TWICESAFE_PROXY_UPSTREAM  >  [proxy] in twicesafe.toml
    (file and environment only)         TWICESAFE_HTTP_REQUIRED   >  [http]
    --store URL                      >  TWICESAFE_STORE_URL       >  [store] url

    [proxy]
    upstream = "http://127.0.0.1:9000"
    workers = 4

    [http]                           # the settings of HttpPolicy that are data
    profile = "stripe"               # draft (default), stripe, paypal, webhook:github, …
    required = ["POST /charges"]
    key_from = ["query:request_id", "json:order.id"]

In a variable, separate several values by commas. All settings are checked before the proxy listens,
and again before a reload takes effect: an unknown name is an error, never ignored.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from .._core.http.forwarding import Forwarding
from .._core.http.policy import HTTP_DURATIONS, HttpPolicy
from .._core.http.sources import BodyHash, HeaderField, JsonMember, KeySource, QueryParameter
from .._values.settings import expect, refuse_unknown, seconds
from ..errors import ConfigurationError
from ..stores._urls import default_url
from .addresses import Listener, Origin

__all__ = ["ProxySettings", "check_sections", "http_policy", "load"]

FILE: Final = "twicesafe.toml"
STORE_VARIABLE: Final = "TWICESAFE_STORE_URL"
PREFIXES: Final = {"proxy": "TWICESAFE_PROXY_", "http": "TWICESAFE_HTTP_"}

HOOKS: Final = frozenset({"check_key", "redact", "on_replay", "codec"})
"""Settings of `HttpPolicy` that are Python objects: for the middleware only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """All settings of a proxy. Durations: seconds, or text like "30s" and "1h30m"."""

    upstream: str
    """URL of the service to protect: http://host:port or https://…, optionally with a path."""
    listen: str = "127.0.0.1:8080"
    """Address to listen on: host:port."""
    store: str = field(default_factory=default_url)
    """URL of the store; every worker and every proxy of one service needs the same one."""
    admin: str = ""
    """Separate address for /live, /ready and /metrics: host:port; empty: off."""
    workers: int = 1
    """Number of worker processes."""
    connect_timeout: float = 5
    """Time-out for connecting to the upstream; after it the answer is 503: nothing was sent."""
    upstream_timeout: float = 60
    """How long the upstream may be silent after the last byte was sent to it; after that the outcome
    is unknown."""
    upstream_idle: float = 1
    """How long an idle connection is kept for reuse. Keep it below the upstream's own limit: a
    connection that closes during a request leaves its outcome unknown. 0: no reuse."""
    upstream_connections: int = 256
    """The most connections of one worker to the upstream."""
    upstream_ca: str = ""
    """CA certificate file for an https upstream; empty: the system's certificates."""
    client_timeout: float = 30
    """How long a client may take to send a head, be silent in mid-body, or read nothing of a response."""
    keep_alive: float = 75
    """How long a client's connection may be idle between two requests."""
    max_head: int = 65536
    """The longest head of a request, in bytes."""
    trusted: tuple[str, ...] = ()
    """Networks of trusted proxies. Only they may set X-Forwarded-*, Forwarded, a client's address and
    certificate, and the fields that scope names; from other peers these fields are dropped."""
    forwarded: bool = True
    """Send X-Forwarded-For, -Proto and -Host to the upstream."""
    grace: float = 30
    """How long running requests may take to finish after SIGTERM or a reload."""
    sweep: float = 300
    """How often expired keys are removed; 0: never."""
    http: dict[str, Any] = field(default_factory=dict)
    """The [http] section."""

    def __post_init__(self) -> None:
        listed = isinstance(self.trusted, list | tuple)
        expect(
            listed and all(isinstance(one, str) for one in self.trusted),
            "trusted", self.trusted, 'use a list like ["10.0.0.0/8"]',
        )  # fmt: skip
        object.__setattr__(self, "trusted", tuple(self.trusted))
        for name, least in _DURATIONS.items():
            number = seconds(getattr(self, name), name)
            expect(number >= least, name, number, f"use {least or 0:g} or more seconds")
            object.__setattr__(self, name, number)
        for name, most in (
            ("workers", 256),
            ("upstream_connections", 65536),
            ("max_head", 1 << 20),
        ):
            value = getattr(self, name)
            whole = isinstance(value, int) and not isinstance(value, bool)
            expect(
                whole and 1 <= value <= most, name, value, f"use a whole number from 1 to {most}"
            )
        for name in ("upstream", "listen", "store", "admin", "upstream_ca"):
            value = getattr(self, name)
            expect(isinstance(value, str), name, value, "use text")
        expect(isinstance(self.forwarded, bool), "forwarded", self.forwarded, "use true or false")
        origin = Origin.of(self.upstream)
        public = Listener.of(self.listen, "listen")
        if (origin.host, origin.port) == (public.host, public.port):
            raise ConfigurationError(
                "upstream and listen are the same address: the proxy would call itself"
            )
        if self.admin and Listener.of(self.admin, "admin") == public and public.port:
            raise ConfigurationError(
                "admin and listen are the same address: choose another one, admin must not be public"
            )
        if self.store.startswith("memory:") and self.workers > 1:
            raise ConfigurationError(
                "store=memory:// is not shared between processes: set workers=1, or use SQLite"
            )
        if self.upstream_ca and not Path(self.upstream_ca).is_file():
            raise ConfigurationError(f"upstream_ca={self.upstream_ca!r}: there is no such file")
        Forwarding(self.policy(), trusted=self.trusted, forwarded=self.forwarded)

    def policy(self) -> HttpPolicy:
        return http_policy(self.http)


_DURATIONS: Final = {
    "connect_timeout": 0.001,
    "upstream_timeout": 0.001,
    "upstream_idle": 0,
    "client_timeout": 0.001,
    "keep_alive": 0.001,
    "grace": 0,
    "sweep": 0,
}


def load(
    config: Path | None = None,
    given: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ProxySettings:
    """The settings of one proxy. `ConfigurationError` names the wrong setting and the fix."""
    document = _read(config)
    check_sections(document)
    proxy = {**document.get("proxy", {}), **_from_environ(environ, "proxy")}
    store = environ.get(STORE_VARIABLE) or document.get("store", {}).get("url")
    if store:
        proxy["store"] = store
    proxy.update({name: value for name, value in (given or {}).items() if value is not None})
    if not proxy.get("upstream"):
        raise ConfigurationError(
            "no upstream is set: add --upstream http://127.0.0.1:9000 (or set "
            "TWICESAFE_PROXY_UPSTREAM, or [proxy] upstream)"
        )
    http = {**document.get("http", {}), **_from_environ(environ, "http")}
    return ProxySettings(**proxy, http=http)


def check_sections(document: Mapping[str, Any]) -> None:
    """Check the names of the settings in [proxy] and [http]."""
    for section in ("proxy", "http", "store"):
        if not isinstance(document.get(section, {}), dict):
            raise ConfigurationError(
                f"{section} must be a section: write [{section}] and its settings below it"
            )
    for section, known in (("proxy", PROXY), ("http", HTTP)):
        for name in document.get(section, {}):
            if name in HOOKS and section == "http":
                raise ConfigurationError(f"[http] {name} is a Python object: use the middleware")
            refuse_unknown([name], known, f"setting in [{section}]")


def http_policy(section: Mapping[str, Any]) -> HttpPolicy:
    """The policy from the [http] section. After an unknown outcome a proxy answers 502."""
    given = dict(section)
    profile = given.pop("profile", "draft")
    for name, make in _CONVERT.items():
        if name in given:
            given[name] = make(given[name])
    given.setdefault("unknown_status", 502)
    base, _, sender = str(profile).partition(":")
    if base == "webhook" and sender:
        return HttpPolicy.webhook(sender, **given)
    if profile not in ("draft", "stripe", "paypal"):
        raise ConfigurationError(
            f"profile={profile!r} is not valid: use draft, stripe, paypal, or webhook:github"
        )
    made: HttpPolicy = getattr(HttpPolicy, base)(**given)
    return made


def _source(text: object) -> KeySource:
    kind, _, name = str(text).partition(":")
    makers: dict[str, Callable[[str], KeySource]] = {
        "header": HeaderField,
        "query": QueryParameter,
        "json": JsonMember,
    }
    if text == "body":
        return BodyHash()
    if kind not in makers or not name:
        raise ConfigurationError(
            f"key_from={text!r} is not valid: use header:NAME, query:NAME, json:PATH or body"
        )
    return makers[kind](name)


_CONVERT: Final[dict[str, Callable[[Any], Any]]] = {
    "key_from": lambda value: tuple(_source(text) for text in _listed("key_from", value)),
    "scope": lambda value: tuple(_listed("scope", value)),
    "methods": lambda value: frozenset(_listed("methods", value)),
    "release": lambda value: frozenset(_listed("release", value)),
    "required": lambda value: (
        value if isinstance(value, bool) else tuple(_listed("required", value))
    ),
    "scope_secret": lambda value: value.encode() if isinstance(value, str) else value,
    "fingerprint": lambda value: {"true": True, "false": False}.get(str(value).lower(), value),
    "header": lambda value: value or None,
    "replay_header": lambda value: value or None,
}


def _listed(name: str, value: object) -> Iterable[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{name}={value!r} is not valid: use a list, [{value!r}]")
    if any(isinstance(one, list | dict) for one in value):
        raise ConfigurationError(f"{name}={value!r} is not valid: use a list of plain values")
    return value


PROXY: Final = tuple(f.name for f in fields(ProxySettings) if f.name not in ("http", "store"))
HTTP: Final = ("profile", *(f.name for f in fields(HttpPolicy) if f.name not in HOOKS))


# --- file and environment --------------------------------------------------------------------


def _read(config: Path | None) -> dict[str, Any]:
    path = config or Path(FILE)
    if config is None and not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path} is not TOML: {error}") from error


def _from_environ(environ: Mapping[str, str], section: str) -> dict[str, Any]:
    prefix = PREFIXES[section]
    known = PROXY if section == "proxy" else HTTP
    found: dict[str, Any] = {}
    for variable, text in environ.items():
        if variable.startswith(prefix):
            name = variable.removeprefix(prefix).lower()
            refuse_unknown([name], known, f"setting for the variable {variable}:")
            found[name] = _value(variable, name, text, _DEFAULTS[section].get(name, ""))
    return found


_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    "proxy": {f.name: f.default for f in fields(ProxySettings) if f.default is not MISSING},
    "http": {f.name: f.default for f in fields(HttpPolicy) if f.default is not MISSING},
}


def _value(variable: str, name: str, text: str, default: Any) -> Any:
    """A variable's text, converted to the type of the setting's default."""
    if name in _DURATIONS or name in HTTP_DURATIONS:
        return seconds(text.strip(), variable)
    try:
        if isinstance(default, bool):
            if text.lower() in ("true", "false"):
                return text.lower() == "true"
            if variable.endswith("_REQUIRED"):
                return _split(text)
            raise ValueError("use true or false")
        if isinstance(default, (tuple, frozenset)):
            numbers = any(isinstance(item, int) for item in default)
            return [int(item) if numbers else item for item in _split(text)]
        if isinstance(default, int):
            return int(text)
    except ValueError as error:
        raise ConfigurationError(f"{variable}={text[:40]!r} is not valid: {error}") from None
    return text


def _split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
