"""A key with the signature of the party that minted it, and what a policy requires of it."""

from __future__ import annotations

from typing import Final, Protocol, Self, runtime_checkable

from ..errors import UntrustedKeyError
from .keys import Key, KeyLike

__all__ = ["SIGNATURE_HEADER", "SignatureCheck", "SignedKey", "require_signature"]

SIGNATURE_HEADER: Final = "Idempotency-Key-Signature"


@runtime_checkable
class SignatureCheck(Protocol):
    """Says whether a key was minted by a trusted party. `twicesafe.signing.KeyVerifier` is one."""

    def verify(self, key: str, signature: str) -> None:
        """Raise `UntrustedKeyError` if it was not."""
        ...


class SignedKey(str):
    """The value of a key, with its signature. A receiver that requires no signature uses the value alone."""

    __slots__ = ("signature",)
    signature: str

    def __new__(cls, value: str, signature: str) -> Self:
        made = super().__new__(cls, value)
        made.signature = signature
        return made

    def __repr__(self) -> str:
        return f"<SignedKey {Key(str(self)).short}>"

    def __reduce__(self) -> tuple[type[SignedKey], tuple[str, str]]:
        return SignedKey, (str.__str__(self), self.signature)


def require_signature(check: SignatureCheck, key: KeyLike | None, signature: str = "") -> None:
    """Raise `UntrustedKeyError` unless this key has a valid signature, in it or beside it.

    An absolute key was made in this process, from one that was checked or by your own code.
    """
    if key is None or (isinstance(key, Key) and key.absolute):
        return
    given = key.signature if isinstance(key, SignedKey) else signature
    if not given:
        raise UntrustedKeyError(
            "this receiver requires signed keys, and the key has no signature; nothing was run: pass "
            "SignedKey(value, signature), and its scope to receiver.options(scope=…): a Key has no signature"
        )
    check.verify(key.value if isinstance(key, Key) else str.__str__(str(key)), given)
