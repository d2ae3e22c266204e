"""What encrypts stored payloads, as `_core` sees it, and what each payload is bound to.

A `Cipher` gets the payload and its *context*: bytes that say which record or message it belongs to.
The same context is needed to decrypt it, so a payload that is copied to another key, from a failure to
a result, or to another message does not decrypt. `twicesafe.encryption.KeyRing` is the one we ship.
"""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

from .records import State

__all__ = [
    "MARK",
    "Cipher",
    "arguments_context",
    "is_encrypted",
    "message_context",
    "record_context",
    "step_context",
]

MARK: Final = b"\xc1ts\x01"
"""How a payload that `KeyRing` encrypted begins. No UTF-8 text and no MessagePack begins with 0xC1, so
no result of our codecs and no readable message looks like one."""


_STATES: Final = {state: state.value.encode() for state in State}


@runtime_checkable
class Cipher(Protocol):
    """Encrypts payloads and binds them to their context."""

    def encrypt(self, payload: bytes, context: bytes) -> bytes: ...

    def decrypt(self, payload: bytes, context: bytes) -> bytes:
        """The payload, or a `TwicesafeError` that says why it cannot be read."""
        ...


def is_encrypted(payload: bytes) -> bool:
    return payload[:4] == MARK


def record_context(id: bytes, state: State) -> bytes:  # noqa: A002
    """Of the answer of one key: its identity, and whether it is a result or a failure."""
    return b"record\0" + id + _STATES[state]


def message_context(id: str, topic: str) -> bytes:  # noqa: A002
    """Of the body of one message in an outbox."""
    name = id.encode()
    return b"outbox\0" + len(name).to_bytes(2, "big") + name + topic.encode()


def step_context(id: bytes, name: str) -> bytes:  # noqa: A002
    """Of the result of one step of one durable run, or of a signal to it."""
    return b"step\0" + id + name.encode()


def arguments_context(id: bytes, function: str) -> bytes:  # noqa: A002
    """Of the stored arguments of one durable run."""
    return b"arguments\0" + id + function.encode()
