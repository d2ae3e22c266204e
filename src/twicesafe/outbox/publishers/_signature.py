"""The signature of a webhook: proves who sent this body, under which key, and when.

    Twicesafe-Signature: t=<unix seconds>,v1=<hex>[,v1=<hex> …]

Each ``v1`` is HMAC-SHA-256 with one secret over ``<t>.<id>.<body>``. In the id, ``%`` is written
``%25`` and ``.`` is written ``%2E``. Otherwise the id ``a`` with the body ``b.c`` and the id
``a.b`` with the body ``c`` would have the same signature. The id is the value of
``Idempotency-Key``, so a delivery replayed under another key does not verify.

There are several ``v1`` while a secret is rotated; one match is enough. An ambiguous header (``t``
twice, for example from two header lines) is refused.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Iterable
from typing import Final, TypeAlias

from ...errors import ConfigurationError

__all__ = ["Secrets", "as_secrets", "sign", "verify_signature"]

Secrets: TypeAlias = str | bytes | Iterable[str | bytes]

_TIME: Final = re.compile(r"[1-9][0-9]{0,11}|0", re.ASCII)
_HEX: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)
_LONGEST: Final = 4096
"""Longest accepted header, in characters: room for dozens of signatures."""


def as_secrets(secrets: Secrets) -> tuple[bytes, ...]:
    """One or more secrets as bytes. No secret or an empty one is refused: anyone could sign."""
    given = [secrets] if isinstance(secrets, (str, bytes)) else list(secrets)
    made = tuple(one.encode() if isinstance(one, str) else one for one in given)
    if not made or not all(made):
        raise ConfigurationError(
            "the webhook secret is empty, so anyone could sign; set a secret of 32 or more random "
            "characters on both sides"
        )
    return made


def sign(secrets: tuple[bytes, ...], at: int, id: str, body: bytes) -> str:  # noqa: A002
    """The header of one delivery, signed with each of these secrets."""
    return ",".join([f"t={at}", *(f"v1={_made(secret, str(at), id, body)}" for secret in secrets)])


def verify_signature(
    secret: Secrets,
    header: str,
    id: str,  # noqa: A002
    body: bytes,
    *,
    tolerance: float = 300,
    now: float | None = None,
) -> bool:
    """True if a holder of the secret sent this body under this key recently.

    `id` is the delivery's ``Idempotency-Key``. Several secrets may be given; one match is enough. It
    never raises, whatever the header contains.
    """
    secrets = as_secrets(secret)
    if len(header) > _LONGEST:
        return False
    times: list[str] = []
    given: list[str] = []
    for part in header.split(","):
        name, _, value = part.strip(" \t").partition("=")
        if name == "t":
            times.append(value)
        elif name == "v1" and _HEX.fullmatch(value):
            given.append(value)
    if len(times) != 1 or _TIME.fullmatch(times[0]) is None:
        return False
    current = time.time() if now is None else now
    if not abs(current - int(times[0])) <= tolerance:
        return False
    made = [_made(one, times[0], id, body) for one in secrets]
    return any(hmac.compare_digest(ours, theirs) for ours in made for theirs in given)


def _made(secret: bytes, at: str, id: str, body: bytes) -> str:  # noqa: A002
    name = id.replace("%", "%25").replace(".", "%2E").encode("utf-8", "surrogatepass")
    return hmac.digest(secret, b"%b.%b.%b" % (at.encode(), name, body), "sha256").hex()
