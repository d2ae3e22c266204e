"""The one place where payloads are encrypted on their way to a store, and decrypted on their way back.

Without `encryption` in the policy, this costs one comparison. A payload that cannot be decrypted is
an error for the caller and an event for the operator. It never starts a handler, and plaintext is
never written instead.
"""

from __future__ import annotations

from msgspec.structs import replace

from .. import events as ev
from .._values.cipher import (
    Cipher,
    arguments_context,
    is_encrypted,
    message_context,
    record_context,
    step_context,
)
from .._values.keys import Key
from .._values.records import State
from ..errors import (
    ConfigurationError,
    CorruptRecordError,
    ResultUnavailableError,
    TwicesafeError,
)
from .call import Call
from .outbox.requests import Added, Pending
from .protocol import Claimed

__all__ = [
    "decrypt_body",
    "encrypted",
    "encrypted_arguments",
    "encrypted_body",
    "encrypted_step",
    "readable",
    "readable_arguments",
    "readable_step",
    "without_answer",
]


def encrypted(cipher: Cipher | None, key: Key, state: State, payload: bytes) -> bytes:
    """What the store gets of this answer of this key."""
    if cipher is None:
        return payload
    return cipher.encrypt(payload, record_context(key.id, state))


def readable(call: Call, answer: Claimed) -> bytes | None:
    """What the codec gets of a recorded answer; raises if it cannot be decrypted."""
    payload, cipher = answer.result, call.policy.cipher
    if payload is None or (cipher is None and not is_encrypted(payload)):
        return payload
    try:
        if cipher is None:
            raise CorruptRecordError(
                "the recorded answer is encrypted, and this policy has no encryption=; the work is not run "
                "again; give the policy the key ring"
            )
        assert answer.state is not None
        return cipher.decrypt(payload, record_context(call.key.id, answer.state))
    except Exception as error:
        problem = error if isinstance(error, TwicesafeError) else _foreign(error)
        raise without_answer(call, answer, problem) from error.__cause__


def without_answer(call: Call, answer: Claimed, problem: TwicesafeError) -> TwicesafeError:
    """Report the error of a repeat whose recorded answer cannot be read. How the work ended is known."""
    call.notify(ev.ResultUnreadable(call.key, type(problem).__name__))
    if isinstance(problem, CorruptRecordError):
        problem.done = answer.state is not State.FAILED
    return problem.about(call.key)


def encrypted_step(cipher: Cipher | None, id_: bytes, name: str, payload: bytes) -> bytes:
    """What the store gets of a step's result, of a signal, or of the reason why a run is undone."""
    if cipher is None or not payload:  # empty: only that it happened
        return payload
    return cipher.encrypt(payload, step_context(id_, name))


def readable_step(cipher: Cipher | None, id_: bytes, name: str, payload: bytes) -> bytes:
    """The inverse of `encrypted_step`; raises if it cannot be decrypted."""
    return _decrypted(cipher, payload, step_context(id_, name)) if payload else payload


def encrypted_arguments(cipher: Cipher | None, id_: bytes, function: str, payload: bytes) -> bytes:
    """What the store gets of the arguments of a run."""
    if cipher is None or not payload:
        return payload
    return cipher.encrypt(payload, arguments_context(id_, function))


def readable_arguments(cipher: Cipher | None, id_: bytes, function: str, payload: bytes) -> bytes:
    """The inverse of `encrypted_arguments`; raises if they cannot be decrypted."""
    return _decrypted(cipher, payload, arguments_context(id_, function))


def _decrypted(cipher: Cipher | None, payload: bytes, context: bytes) -> bytes:
    if cipher is None and not is_encrypted(payload):
        return payload
    try:
        if cipher is None:
            raise ResultUnavailableError(
                "the stored payload is encrypted, and this policy has no encryption=; nothing runs; give the "
                "policy the key ring"
            )
        return cipher.decrypt(payload, context)
    except TwicesafeError:
        raise
    except Exception as error:
        raise _foreign(error) from error


def encrypted_body(cipher: Cipher, added: Added) -> Added:
    """The message as it is written to the outbox. Its id, topic, key and headers stay readable."""
    message = added.message
    body = cipher.encrypt(message.body, message_context(message.id, message.topic))
    return replace(added, message=replace(message, body=body))


def decrypt_body(cipher: Cipher | None, row: Pending) -> None:
    """Decrypt the body of a row that a relay fetched, or say in `row.unreadable` why not."""
    message = row.message
    if cipher is None and not is_encrypted(message.body):
        return
    try:
        if cipher is None:
            raise ConfigurationError(
                "the body is encrypted, and this relay has no encryption=; it is not published; give the "
                "relay the key ring of the outbox"
            )
        body = cipher.decrypt(message.body, message_context(message.id, message.topic))
        row.message = replace(message, body=body)
    except Exception as error:
        row.unreadable = error if isinstance(error, TwicesafeError) else _foreign(error)


def _foreign(error: Exception) -> CorruptRecordError:
    problem = CorruptRecordError(
        f"the stored payload could not be decrypted ({type(error).__name__}); nothing runs"
    )
    problem.__cause__ = error
    return problem
