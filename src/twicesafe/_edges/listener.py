"""Where a server listens: ``host:port`` as settings have it, and the socket that it becomes."""

from __future__ import annotations

import socket
from typing import Self

import msgspec

from ..errors import ConfigurationError

__all__ = ["ListenAddress", "shown"]


class ListenAddress(msgspec.Struct, frozen=True):
    """Where to listen: ``host:port``. An IPv6 host is in brackets; port 0 is any free port."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str, name: str) -> Self:
        host, _, port = text.rpartition(":")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            host = ""
        if not host or not port.isdigit() or int(port) > 65535:
            raise ConfigurationError(
                f"{name}={text!r} is not valid: use host:port, like 127.0.0.1:8080"
            )
        return cls(host, int(port))

    def bind(self) -> socket.socket:
        """A listening socket, for this process and its workers."""
        try:
            found = socket.getaddrinfo(
                self.host, self.port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
            )
            family, kind, protocol, _, address = found[0]
            made = socket.socket(family, kind, protocol)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                made.bind(address)
                made.listen(2048)
                made.setblocking(False)
            except BaseException:
                made.close()
                raise
        except OSError as error:
            raise ConfigurationError(
                f"cannot listen on {self.host}:{self.port}: {error.strerror or error}"
            ) from error
        return made


def shown(listening: socket.socket) -> str:
    """The address of a listening socket, as a URL."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
