"""Which header fields the proxy passes on, in both directions.

    to the upstream   no hop-by-hop fields, nor those that Connection names; adds Via and the
                      client as this proxy saw it (X-Forwarded-For, -Proto, -Host)
    to the client     no hop-by-hop fields; one Date

Only trusted peers may name the client, or a tenant that `scope` names. From all other peers the proxy
drops every field that only a proxy may set: all of `X-Forwarded-*`, `Forwarded`, the usual names for a
client's address, its certificate, the URL before a rewrite. From all peers it drops names that some
servers read as one of these (`X_Forwarded_For`, `X.Forwarded.For`). A request is refused if its
Connection field names a field that the upstream must see.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

from ...errors import ConfigurationError
from .message import Fields, options_in
from .policy import HttpPolicy
from .problems import Problem, RequestRefused
from .stored_response import HOP_BY_HOP

__all__ = ["Forwarding"]

_BY_PROXIES: Final = frozenset(
    b"""forwarded x-real-ip x-client-ip x-cluster-client-ip true-client-ip x-remote-ip x-remote-addr
    x-remote-user remote-user remote-addr fastly-client-ip fly-client-ip x-appengine-user-ip
    x-azure-clientip x-azure-socketip x-proxyuser-ip x-rewrite-url front-end-https x-url-scheme
    x-arr-ssl x-arr-clientcert client-ip proxy-client-ip wl-proxy-client-ip x-originating-ip x-scheme
    x-client-verify""".split()
)
_BY_PROXIES_ALL: Final = (
    b"x-forwarded", b"x-original-", b"cf-connecting-", b"x-envoy-", b"client-cert", b"ssl-client",
    b"x-client-cert", b"x-ssl-", b"x-tls-", b"x-mtls-", b"x-amzn-mtls-", b"x-cert-",
)  # fmt: skip
"""Names and prefixes of fields that only a proxy may set."""
_OUR_OWN: Final = frozenset(
    b"via host content-length content-type content-encoding transfer-encoding authorization "
    b"cookie".split()
)
_AS_CGI: Final = bytes(
    octet if chr(octet).isalnum() and octet < 128 else ord("-") for octet in range(256)
)
"""CGI-style servers map every character that is neither letter nor digit to the same one."""
_NOT_FORWARDED: Final = HOP_BY_HOP | {b"expect", b"te", b"http2-settings"}
_VERIFIED: Final = frozenset({b"authorization", b"cookie", b"host"})
"""Any client can send these, but the upstream verifies them."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Forwarding:
    def __init__(
        self, policy: HttpPolicy, *, trusted: Sequence[str] = (), forwarded: bool = True
    ) -> None:
        self._trusted = [_network(text) for text in trusted]
        self._adds = forwarded
        names = () if callable(policy.scope) else policy.scope
        claimed = {name.lower().encode() for name in names if not name.startswith("cookie:")}
        self._tenants = claimed - _VERIFIED
        """Fields of `scope` that any client could send."""
        if self._tenants and not self._trusted:
            listed = ", ".join(sorted(name.decode() for name in self._tenants))
            raise ConfigurationError(
                f"scope names {listed}, which any client can send: name the peers that set it in "
                "`trusted`"
            )
        keys = {name.lower().encode() for name in policy.key_fields}
        self._ours = _OUR_OWN | keys | self._tenants

    def trusts(self, peer: str) -> bool:
        if not self._trusted:
            return False
        try:
            address = ipaddress.ip_address(peer)
        except ValueError:
            return False
        forms = {address, ipaddress.ip_address(_plain(peer))}
        return any(form in network for form in forms for network in self._trusted)

    def inbound(self, headers: Fields, peer: str) -> Fields:
        """The fields of the request that this peer may send. Raises `RequestRefused`."""
        believed = self.trusts(peer)
        doubtful = False
        for name, value in headers:
            if name == b"connection":
                if any(
                    option in self._ours or _is_by_proxies(option) for option in options_in(value)
                ):
                    detail = "Connection names a field of the message."
                    raise RequestRefused(Problem("request-malformed", detail=detail))
            elif self._is_dropped(name, believed):
                doubtful = True
        if not doubtful:
            return headers
        return [line for line in headers if not self._is_dropped(line[0], believed)]

    def _is_dropped(self, name: bytes, believed: bool) -> bool:
        if not believed and (_is_by_proxies(name) or name in self._tenants):
            return True
        known = name.translate(_AS_CGI)  # some servers read X_Forwarded_For as ours
        return known != name and (known in self._ours or _is_by_proxies(known))

    def outbound(
        self, headers: Fields, peer: str, scheme: str, version: str, host: bytes
    ) -> Fields:
        """The fields for the upstream, of a request that `inbound` accepted."""
        dropped = _NOT_FORWARDED
        via, chain, named, seen = b"", b"", b"", set()
        for name, value in headers:
            seen.add(name)
            if name == b"connection":
                dropped = dropped | options_in(value)
            elif name == b"via":
                via += value + b", "
            elif name == b"x-forwarded-for":
                chain += value + b", "
            elif name == b"host":
                named = value
        dropped = (dropped - {b"transfer-encoding"}) | {b"via"}
        if self._adds:
            dropped = dropped | {b"x-forwarded-for"}
        lines = [line for line in headers if line[0] not in dropped]
        if not named:
            lines.insert(0, (b"host", host))
        if self._adds:
            lines.append((b"x-forwarded-for", chain + _plain(peer).encode()))
            if b"x-forwarded-proto" not in seen:
                lines.append((b"x-forwarded-proto", scheme.encode()))
            if named and b"x-forwarded-host" not in seen:
                lines.append((b"x-forwarded-host", named))
        lines.append((b"via", via + version.encode() + b" twicesafe"))
        return lines

    def back(self, status: int, headers: Iterable[tuple[bytes, bytes]], date: bytes) -> Fields:
        """The fields for the client, of a response of the upstream."""
        lines = [(name.lower(), value) for name, value in headers]
        dropped = set(HOP_BY_HOP)
        names = {name for name, _ in lines}
        for name, value in lines:
            if name == b"connection":
                dropped |= options_in(value)
        if b"transfer-encoding" in names or status == 204:
            dropped.add(b"content-length")
        else:
            dropped.discard(b"content-length")
        kept = [line for line in lines if line[0] not in dropped]
        if b"date" not in names:
            kept.append((b"date", date))
        return kept


def _is_by_proxies(name: bytes) -> bool:
    return name in _BY_PROXIES or name.startswith(_BY_PROXIES_ALL)


def _plain(peer: str) -> str:
    """``::ffff:10.0.0.1``, as a dual-stack listener sees an IPv4 peer, becomes ``10.0.0.1``."""
    try:
        mapped = ipaddress.IPv6Address(peer).ipv4_mapped
    except ValueError:
        return peer
    return peer if mapped is None else str(mapped)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"trusted={text!r} is not valid: use addresses or networks like 10.0.0.0/8"
        ) from None
