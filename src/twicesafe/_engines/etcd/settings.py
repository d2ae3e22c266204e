"""The URL of an etcd store: members, prefix, options, and the arguments of a gRPC channel."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from ...errors import ConfigurationError
from ...stores._certificates import check_certificates
from ...stores._urls import expect_seconds, mask, options_of

__all__ = ["Settings"]

OPTIONS: Final = {"timeout": 5.0, "ca_certs": "", "certfile": "", "keyfile": ""}
CERTIFICATES: Final = ("ca_certs", "certfile", "keyfile")

PREFIX: Final = "twicesafe"
_PREFIX: Final = re.compile(r"[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*", re.ASCII)
_EXAMPLE: Final = "an etcd URL is etcd://host1:2379,host2:2379,host3:2379/prefix"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    url: str
    """To show: without the password."""
    tls: bool
    members: tuple[str, ...]
    """``host:port`` of each member to ask. Others of the cluster are not looked up."""
    user: str
    password: str = field(repr=False)
    prefix: str
    """Of every key, without the slash that follows it."""
    timeout: float
    ca_certs: str
    certfile: str
    keyfile: str

    @classmethod
    def of(cls, url: str) -> Settings:
        parts = urlsplit(url)
        options: dict[str, Any] = options_of(url, OPTIONS)
        tls = parts.scheme == "etcds"
        expect_seconds(options, "timeout")
        if not tls and any(options[name] for name in CERTIFICATES):
            raise ConfigurationError("certificates are for TLS: write etcds:// instead of etcd://")
        if bool(options["certfile"]) != bool(options["keyfile"]):
            raise ConfigurationError("certfile= and keyfile= are used together: give both")
        _check_files([options[name] for name in CERTIFICATES])
        prefix = unquote(parts.path.strip("/")) or PREFIX
        if len(prefix) > 200 or not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                f"the prefix {prefix[:40]!r} is not valid: use letters, digits, _ . - and /"
            )
        userinfo, _, hosts = parts.netloc.rpartition("@")
        user, _, password = userinfo.partition(":")
        if bool(user) != bool(password):
            raise ConfigurationError(
                "a user needs a password, and a password a user: user:password@"
            )
        return cls(
            url=mask(url),
            tls=tls,
            members=_members(hosts),
            user=unquote(user),
            password=unquote(password),
            prefix=prefix,
            **options,
        )

    @property
    def share(self) -> float:
        """Seconds that one member may take: one that hangs must not use up the time of the others."""
        return self.timeout / min(3, len(self.members))

    def channel(self, kind: Any, member: str) -> Any:
        """A channel to this member. `kind`: the module `grpc` or `grpc.aio`."""
        options = [
            ("grpc.max_receive_message_length", -1),
            ("grpc.max_send_message_length", -1),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.min_reconnect_backoff_ms", 1000),
            ("grpc.max_reconnect_backoff_ms", 1000),
            # A member that hangs is noticed by waiters, too. etcd allows a ping every 5 s.
            ("grpc.keepalive_time_ms", 10_000),
            ("grpc.keepalive_timeout_ms", 5_000),
            # A new channel is a new connection: channels would share one that hangs.
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.enable_retries", 0),  # we repeat a request ourselves, at another member
        ]
        if not self.tls:
            return kind.insecure_channel(member, options)
        return kind.secure_channel(member, self._credentials(), options)

    def _credentials(self) -> Any:
        import grpc

        files = [getattr(self, name) for name in CERTIFICATES]
        _check_files(files)  # one may have been removed since
        roots, chain, key = (Path(path).read_bytes() if path else None for path in files)
        return grpc.ssl_channel_credentials(roots, key, chain)


def _check_files(paths: list[str]) -> None:
    check_certificates(zip(CERTIFICATES, paths, strict=True), ("ca_certs",))


def _members(hosts: str) -> tuple[str, ...]:
    found = []
    for part in hosts.split(","):
        has_port = ":" in part.rpartition("]")[2]
        host, _, port = part.rpartition(":") if has_port else (part, "", "2379")
        if not host.strip("[]") or not (port.isdigit() and 0 < int(port) < 65536):
            raise ConfigurationError(
                f"no host and port in this URL: {_EXAMPLE}, and special characters in a password are "
                "percent-encoded"
            )
        found.append(f"{host}:{port}")
    return tuple(found)
