"""The client of nats-py, and its TLS.

nats-py uses TLS if the server asks for it, whatever the URL says. A server with TLS that is not
required, or someone in between, would get the credentials of a ``tls+nats://`` URL in plain text.
This client refuses before it sends them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["nats_client"]


def nats_client() -> Any:
    """A client that is not connected."""
    from nats.aio.client import Client
    from nats.errors import Error

    class NoTlsError(Error):
        """A publisher names only the class."""

    class TlsClient(Client):
        def _connect_command(self) -> bytes:
            """The first bytes that it sends, with the credentials."""
            server = self._current_server
            assert server is not None
            if server.uri.scheme == "tls" and not self._server_info.get("tls_required"):
                raise NoTlsError(
                    "the URL asks for TLS, and this server does not require it: nothing was sent"
                )
            return super()._connect_command()

    return TlsClient()
