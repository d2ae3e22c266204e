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

    [mcp.tools.charge]               # tools of an MCP server: see `mcp_settings`
    identity = ["order_id"]

In a variable, separate several values by commas. All settings are checked before the proxy listens,
and again before a reload takes effect: an unknown name is an error, never ignored. The fields of
`ProxySettings` are the model; `twicesafe.configuration` reads file and environment by it.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from .._core.http.forwarding import Forwarding
from .._core.http.key_sources import BodyHash, HeaderField, JsonMember, KeySource, QueryParameter
from .._core.http.policy import HttpPolicy
from .._edges.listener import ListenAddress
from .._values.settings import shown
from ..configuration import resolve
from ..configuration._fields import Field, check_fields
from ..configuration._kinds import TEXT, TEXTS, WRONG, Seconds, Url, ValueKind, choice
from ..configuration._model import Section
from ..encryption import KeyRing
from ..errors import ConfigurationError
from ..signing import KeyVerifier
from ..stores._urls import default_url, open_async_store
from .addresses import UpstreamAddress
from .mcp_settings import McpSettings

__all__ = ["HTTP_SECTION", "PROXY_SECTION", "ProxySettings", "check_store", "http_policy", "load"]

HOOKS: Final = frozenset({"check_key", "redact", "on_replay", "codec"})
"""Settings of `HttpPolicy` that are Python objects: for the middleware only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """All settings of a proxy. Durations: seconds, or text like "30s" and "1h30m"."""

    upstream: Url
    """URL of the service to protect: http://host:port or https://…, optionally with a path."""
    listen: str = "127.0.0.1:8080"
    """Address to listen on: host:port."""
    store: Url = field(default_factory=default_url)
    """URL of the store; every worker and every proxy of one service needs the same one."""
    encryption: str = ""
    """Key ring for stored responses: env:NAME or file:/path; empty: they are not encrypted."""
    admin: str = ""
    """Separate address for /live, /ready and /metrics: host:port; empty: off."""
    workers: Annotated[int, Meta(ge=1, le=256)] = 1
    """Number of worker processes."""
    connect_timeout: Annotated[Seconds, Meta(ge=0.001)] = 5
    """Time-out for connecting to the upstream; after it the answer is 503: nothing was sent."""
    upstream_timeout: Annotated[Seconds, Meta(ge=0.001)] = 60
    """How long the upstream may be silent after the last byte was sent to it; after that the outcome
    is unknown."""
    upstream_idle: Annotated[Seconds, Meta(ge=0)] = 1
    """How long an idle connection is kept for reuse. Keep it below the upstream's own limit: a
    connection that closes during a request leaves its outcome unknown. 0: no reuse."""
    upstream_connections: Annotated[int, Meta(ge=1, le=65536)] = 256
    """The most connections of one worker to the upstream."""
    upstream_ca: str = ""
    """CA certificate file for an https upstream; empty: the system's certificates."""
    client_timeout: Annotated[Seconds, Meta(ge=0.001)] = 30
    """How long a client may take to send a head, pause within a body, or read nothing of a response."""
    keep_alive: Annotated[Seconds, Meta(ge=0.001)] = 75
    """How long a client's connection may be idle between two requests."""
    max_head: Annotated[int, Meta(ge=1, le=1 << 20)] = 65536
    """The longest head of a request, in bytes."""
    trusted: tuple[str, ...] = ()
    """Networks of trusted proxies. Only they may set X-Forwarded-*, Forwarded, a client's address and
    certificate, and the fields that scope names; from other peers these fields are dropped."""
    forwarded: bool = True
    """Send X-Forwarded-For, -Proto and -Host to the upstream."""
    grace: Annotated[Seconds, Meta(ge=0)] = 30
    """How long running requests may take to finish after SIGTERM or a reload."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of the log: debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """The form of the log: text, or json for one object per line."""
    access_log: bool = False
    """Log every request at level info: method, path, status, seconds, outcome and the short key."""
    sweep: Annotated[Seconds, Meta(ge=0)] = 300
    """How often expired keys are removed; 0: never."""
    http: dict[str, Any] = field(default_factory=dict)
    """The [http] section."""
    mcp: dict[str, Any] = field(default_factory=dict)
    """The [mcp] section."""

    def __post_init__(self) -> None:
        check_fields(self)
        origin = UpstreamAddress.of(self.upstream)
        public = ListenAddress.of(self.listen, "listen")
        if (origin.host, origin.port) == (public.host, public.port):
            raise ConfigurationError(
                "upstream and listen are the same address: the proxy would call itself"
            )
        if self.admin and ListenAddress.of(self.admin, "admin") == public and public.port:
            raise ConfigurationError(
                "admin and listen are the same address: give admin a separate one, which must not be public"
            )
        if self.store.startswith("memory:") and self.workers > 1:
            raise ConfigurationError(
                "store=memory:// is not shared between processes: set workers=1, or use SQLite"
            )
        if self.upstream_ca and not Path(self.upstream_ca).is_file():
            raise ConfigurationError(f"upstream_ca={self.upstream_ca!r}: there is no such file")
        self.trust()
        if self.encryption:
            KeyRing.load(self.encryption)
        Forwarding(self.policy(), trusted=self.trusted, forwarded=self.forwarded)
        self.mcp_tools()

    def policy(self) -> HttpPolicy:
        return http_policy(self.http)

    def trust(self) -> ssl.SSLContext | None:
        """What checks the certificate of an https upstream; None: the system's certificates."""
        if not self.upstream_ca:
            return None
        try:
            return ssl.create_default_context(cafile=self.upstream_ca)
        except OSError as error:  # an SSLError is one, too
            raise ConfigurationError(
                f"upstream_ca={self.upstream_ca!r} cannot be read: {error.strerror}; use a file of "
                "certificates in PEM form"
            ) from error

    def mcp_tools(self) -> McpSettings:
        return McpSettings(**self.mcp)


def load(
    config: Path | None = None,
    given: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> ProxySettings:
    """The settings of one proxy. `ConfigurationError` names the wrong setting and the fix."""
    options = dict(given or {})
    store = {"url": options.pop("store", None)}
    found = resolve(
        "store",
        "policy",
        "proxy",
        "http",
        "mcp",
        config=config,
        environ=environ,
        given={"store": store, "proxy": options},
    )
    proxy, http = found.values("proxy"), found.values("http")
    if not proxy.get("upstream"):
        raise ConfigurationError(
            "no upstream is set: add --upstream http://127.0.0.1:9000 (or set "
            "TWICESAFE_PROXY_UPSTREAM, or [proxy] upstream)"
        )
    store_url = found.section("store").url
    ring = found.values("policy").get("encryption", "")
    with found.placing_errors("proxy", "http", "mcp", "store"):
        return ProxySettings(
            **proxy, store=store_url, encryption=ring, http=http, mcp=found.values("mcp")
        )


async def check_store(url: str) -> None:
    """Raise for a wrong URL or a missing driver. Does not connect."""
    await open_async_store(url).close()


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
    "signatures": lambda value: KeyVerifier.load(value) if value else None,
    "replay_header": lambda value: value or None,
}


def _listed(name: str, value: object) -> Iterable[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigurationError(
            f"{name}={shown(value)} is not valid: use a list, [{shown(value)}]"
        )
    if any(isinstance(one, list | dict) for one in value):
        raise ConfigurationError(f"{name}={shown(value)} is not valid: use a list of plain values")
    return value


PROXY_SECTION: Final = Section(
    "proxy",
    ProxySettings,
    "Settings of `twicesafe proxy`.",
    without={
        "store": "is set in [store]: write url there",
        "encryption": "is set in [policy]: write encryption there",
        "http": "",
        "mcp": "",
    },
)
VERIFIER: Final = ValueKind(
    "env:NAME?audience=… or file:/path?audience=…",
    lambda value, _: value if value is None or isinstance(value, str) else WRONG,
    str,
    {"type": "string"},
)
_HOOK: Final = "is a Python object: use the middleware"
HTTP_SECTION: Final = Section(
    "http",
    HttpPolicy,
    "The HTTP layer of the proxy: the settings of `HttpPolicy` that are data.",
    without=dict.fromkeys(sorted(HOOKS), _HOOK),
    kinds={
        "key_from": TEXTS,
        "scope": TEXTS,
        "signatures": VERIFIER,
        "fingerprint": choice("canonical", "octets", True, False),
    },
    more=(
        (
            Field("profile", TEXT, "draft"),
            "What clients expect: draft, stripe, paypal, or webhook:github and other senders.",
        ),
    ),
    make=http_policy,
)
