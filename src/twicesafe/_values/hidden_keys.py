"""Hidden keys: the store gets keyed hashes instead of the text of keys and scopes.

    Receiver.open("postgresql://…/shop?hidden_keys=env:SHOP_HIDDEN_KEYS")

    Key("tx-123", ("acct_1",))  →  Key("hidden:5f1c…", ("hidden:9a07…",))

Each part is HMAC-SHA-256 under a secret of 32 bytes, cut to 128 bits. A key is hidden when it becomes a full
key, before anything else sees it. So its identity, too, is made of keyed hashes. A reader of a dump or a log
cannot test a guess of a key without the secret. The same part has the same hash everywhere, so operators can
search by value in any scope and by the first parts of a scope. What they type is hashed first.

The secret is part of every identity, so it must not change while the store has records. `CHECK_KEY` is a
record that remembers it (`_core.secret_check`): another secret is refused before a claim.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
from typing import Final, NoReturn, Self

from ..errors import ConfigurationError, UsageError
from .key_source import KeySource
from .keys import Key
from .own_records import OURS

__all__ = ["CHECK_KEY", "HIDDEN", "HiddenKeys", "is_hidden"]

HIDDEN: Final = "hidden:"
"""How a hidden part begins."""
CHECK_KEY: Final = Key("check", (OURS, "hidden-keys"), absolute=True)
_SECRET_BYTES: Final = 32
_KEPT: Final = 16
"""Bytes of a hash that are kept: as many as stores keep of an identity."""


def is_hidden(text: str) -> bool:
    return text.startswith(HIDDEN)


class HiddenKeys:
    """Hides the text of keys and scopes under one secret. Thread-safe."""

    __slots__ = ("_secret", "check")

    def __init__(self, secret: bytes) -> None:
        given: object = secret
        if not isinstance(given, bytes) or len(given) != _SECRET_BYTES:
            raise ConfigurationError(
                f"the secret of hidden keys must be {_SECRET_BYTES} random bytes: make one with "
                "HiddenKeys.new_secret()"
            )
        self._secret = secret
        self.check: bytes = hmac.digest(secret, b"twicesafe.hidden.check.1", "sha256")
        """Says which secret it is, without telling it."""

    @classmethod
    def load(cls, source: str) -> Self:
        """Load the secret from a variable (``env:NAME``) or a file (``file:/path``), in Base64. It is read once."""
        found = KeySource.of(source, (), "hidden_keys")
        what = "the secret of hidden keys"
        try:
            secret = base64.b64decode(found.text(what).strip(), validate=True)
        except binascii.Error:
            raise ConfigurationError(f"{what} in {found.place} is not Base64") from None
        return cls(secret)

    @staticmethod
    def new_secret() -> str:
        """Make a random secret, as text for `load`. Keep it for as long as the store exists."""
        return base64.b64encode(os.urandom(_SECRET_BYTES)).decode()

    def key(self, key: Key) -> Key:
        """The hidden form of a full key."""
        return Key(self.value(key.value), map(self.part, key.scope), absolute=True)

    def returned(self, key: Key) -> Key:
        """The same for a full key that we may have returned: one that is hidden already stays as it is.

        Only for absolute keys of the program itself: a sender's text is always hashed.
        """
        ours = is_hidden(key.value) or key.scope[:1] == (OURS,)
        return key if ours else self.key(key)

    def value(self, text: str) -> str:
        return self._hash(b"value\0", text)

    def part(self, text: str) -> str:
        """One part of a scope."""
        return self._hash(b"scope\0", text)

    def asked(
        self, value: str | None, scope: tuple[str, ...]
    ) -> tuple[str | None, tuple[str, ...]]:
        """What an operator searches for. Hidden text, copied from a listing, stays as it is."""
        if scope[:1] == (OURS,):
            return value, scope
        parts = tuple(part if is_hidden(part) else self.part(part) for part in scope)
        return value if value is None or is_hidden(value) else self.value(value), parts

    def _hash(self, what: bytes, text: str) -> str:
        digest = hmac.new(self._secret, what + text.encode(), hashlib.sha256).digest()
        return HIDDEN + digest[:_KEPT].hex()

    def __repr__(self) -> str:
        return "<HiddenKeys>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "HiddenKeys cannot be pickled, because the pickle would contain their secret: load them in each process"
        )
