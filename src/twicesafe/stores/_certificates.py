"""Files of certificates and keys that a store's URL names, checked when the store is opened.

A driver reads them when it connects. If one is missing, many drivers report it as a failed
connection, which looks like an outage that will pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from ..errors import ConfigurationError

__all__ = ["check_certificates"]


def check_certificates(given: Iterable[tuple[str, str]], roots: Collection[str]) -> None:
    """``given``: options and paths; empty paths are skipped. ``roots``: options whose files have CA certificates."""
    for option, path in given:
        if not path:
            continue
        try:
            with Path(path).open("rb"):
                pass
            is_valid = option not in roots or _has_certificates(path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigurationError(
                f"{option}={path} cannot be read ({reason}): check the path and its permissions"
            ) from error
        if not is_valid:
            raise ConfigurationError(
                f"{option}={path} has no certificate: name a PEM file with the certificates of the CA"
            )


def _has_certificates(path: str) -> bool:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except ssl.SSLError:
        return False
    return True
