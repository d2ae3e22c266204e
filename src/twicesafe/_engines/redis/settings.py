"""The URL of a Redis store: servers, options, and the arguments of a connection."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

from ...errors import ConfigurationError
from ...stores._certificates import check_certificates
from ...stores._urls import expect_seconds, identifier, mask, options_of

__all__ = ["Address", "Settings"]

OPTIONS: Final = {
    "prefix": "ts",
    "timeout": 5.0,
    "pool": 50,
    "wait_replicas": 0,
    "wait_timeout": 1.0,
    "wake": True,
    "db": 0,
    "sentinel_user": "",
    "sentinel_password": "",
    "ca_certs": "",
    "certfile": "",
    "keyfile": "",
    "verify": True,
}

KINDS: Final = {"": "single", "sentinel": "sentinel", "cluster": "cluster"}


class Address(NamedTuple):
    host: str
    port: int
    sentinel: bool = False

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    """To show: without the password."""
    kind: str
    """single, sentinel or cluster."""
    tls: bool
    addresses: tuple[Address, ...]
    """Where to ask first: the server, the sentinels, or some nodes of the cluster."""
    user: str
    password: str = field(repr=False)
    primary: str
    """Sentinel: the name of the primary that the sentinels monitor."""
    prefix: str
    timeout: float
    pool: int
    wait_replicas: int
    wait_timeout: float
    wake: bool
    db: int
    sentinel_user: str
    sentinel_password: str = field(repr=False)
    ca_certs: str
    certfile: str
    keyfile: str
    verify: bool

    @classmethod
    def of(cls, url: str) -> Settings:
        parts = urlsplit(url)
        base, _, suffix = parts.scheme.partition("+")
        kind = KINDS[suffix]
        options: dict[str, Any] = options_of(url, OPTIONS)
        tls = base in ("rediss", "valkeys")
        _check(options, parts.scheme, tls, kind)
        userinfo, _, hosts = parts.netloc.rpartition("@")
        user, _, password = userinfo.partition(":")
        path = unquote(parts.path.strip("/"))
        primary = ""
        if kind == "sentinel":
            primary = path
            if not primary:
                raise ConfigurationError(
                    "a Sentinel URL names the primary: redis+sentinel://host:26379/main"
                )
            if "/" in primary:
                raise ConfigurationError(
                    f"no primary has the name {primary[:40]!r}: write the number of a database as db=, "
                    "redis+sentinel://host:26379/main?db=2"
                )
        elif path:
            if kind == "cluster" or not path.isdigit():
                raise ConfigurationError(
                    "a Redis URL is redis://host:6379/0 (the number of a database); "
                    "a Cluster has no numbers"
                )
            if "db" in dict(parse_qsl(parts.query)) and options["db"] != int(path):
                raise ConfigurationError(
                    f"{mask(url)} names two databases: write the number in the path or as db=, not both"
                )
            options["db"] = int(path)
        if kind == "cluster" and options["db"]:
            raise ConfigurationError("a Cluster has no databases: leave db= out")
        return cls(
            url=mask(url),
            kind=kind,
            tls=tls,
            addresses=_addresses(hosts, kind),
            user=unquote(user),
            password=unquote(password),
            primary=primary,
            **options,
        )

    def timeout_for(self, address: Address) -> float:
        """Seconds that a reply may take, including the wait for replicas.

        Sentinels are asked one after the other, so each gets its share of the time-out.
        """
        if address.sentinel:
            return self.timeout / len(self.addresses)
        return self.timeout + (self.wait_timeout if self.wait_replicas else 0)

    def connection(self, address: Address) -> dict[str, Any]:
        """The arguments of redis-py's Connection."""
        user, password, db = self.user, self.password, self.db
        if address.sentinel:
            user, password, db = self.sentinel_user, self.sentinel_password, 0
        arguments: dict[str, Any] = {
            "host": address.host,
            "port": address.port,
            "username": user or None,
            "password": password or None,
            "db": db,
            "protocol": 2,
            "socket_timeout": self.timeout_for(address),
            "socket_connect_timeout": min(self.timeout, self.timeout_for(address)),
            "client_name": "twicesafe",
        }
        if self.tls:
            arguments["ssl_cert_reqs"] = "required" if self.verify else "none"
            arguments["ssl_check_hostname"] = self.verify
            for ours, theirs in (
                ("ca_certs", "ssl_ca_certs"),
                ("certfile", "ssl_certfile"),
                ("keyfile", "ssl_keyfile"),
            ):
                if getattr(self, ours):
                    arguments[theirs] = getattr(self, ours)
        return arguments


def _check(options: dict[str, Any], scheme: str, tls: bool, kind: str) -> None:
    identifier(options["prefix"], "prefix")
    expect_seconds(options, "timeout")
    expect_seconds(options, "wait_timeout")
    files = ("ca_certs", "certfile", "keyfile")
    if not tls and any(options[name] for name in files):
        base, plus, suffix = scheme.partition("+")
        raise ConfigurationError(
            f"certificates are for TLS: write {base}s{plus}{suffix}:// instead of {scheme}://"
        )
    if kind != "sentinel" and (options["sentinel_user"] or options["sentinel_password"]):
        raise ConfigurationError(
            "sentinel_user= and sentinel_password= are for redis+sentinel://; the login of a server is "
            "user:password@ before its host"
        )
    check_certificates([(name, options[name]) for name in files], ("ca_certs",))
    if options["keyfile"] and not options["certfile"]:
        raise ConfigurationError("keyfile= is the key of a certificate: give certfile= too")


def _addresses(hosts: str, kind: str) -> tuple[Address, ...]:
    default = 26379 if kind == "sentinel" else 6379
    found = []
    for part in hosts.split(","):
        host, _, port = part.rpartition(":") if _has_port(part) else (part, "", "")
        if not host.strip("[]") or (port and not (port.isdigit() and 0 < int(port) < 65536)):
            raise ConfigurationError(
                "no host and port in this URL: a Redis URL is redis://host:6379/0, and special "
                "characters in a password are percent-encoded"
            )
        found.append(Address(host.strip("[]"), int(port or default), kind == "sentinel"))
    if kind == "single" and len(found) > 1:
        raise ConfigurationError(
            "several hosts need redis+cluster://… or redis+sentinel://…, which says what they are"
        )
    return tuple(found)


def _has_port(part: str) -> bool:
    return ":" in part.rpartition("]")[2]
