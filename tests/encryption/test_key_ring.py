"""The key ring: its format, its keys, and every way to tamper with what it wrote (D9, D10)."""

from __future__ import annotations

import base64
import os
import pickle
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from twicesafe import ConfigurationError, CorruptRecordError, Policy, UsageError
from twicesafe._values.cipher import message_context, record_context
from twicesafe.encryption import KeyRing
from twicesafe.errors import ResultUnavailableError
from twicesafe.stores import State

OLD, NEW = os.urandom(32), os.urandom(32)
RING = KeyRing({"2026-11": NEW, "2026-10": OLD})
HERE = record_context(b"k" * 32, State.COMPLETED)


@pytest.mark.parametrize("payload", [b"", b"j0", b"\xc1ts\x01", os.urandom(5000)])
def test_what_is_encrypted_comes_back(payload: bytes):
    sealed = RING.encrypt(payload, HERE)
    assert payload == b"" or payload not in sealed[4:]
    assert RING.decrypt(sealed, HERE) == payload
    assert len(sealed) == len(payload) + 4 + 1 + 7 + 16 + 12 + 16


def test_the_format_can_be_read_without_us():
    """Anyone with the key can decrypt it with the primitives of the standard."""
    sealed = RING.encrypt(b"paid", HERE)
    head, salt, nonce, rest = sealed[:12], sealed[12:28], sealed[28:40], sealed[40:]
    assert head == b"\xc1ts\x01\x072026-11"
    key = HKDFExpand(hashes.SHA256(), 32, b"twicesafe.data-key.1\0" + salt).derive(NEW)
    here = b"record\0" + b"k" * 32 + b"completed"
    assert AESGCM(key).decrypt(nonce, rest, head + salt + here) == b"paid"


@pytest.mark.attack("D10")
def test_equal_payloads_never_look_equal():
    assert len({RING.encrypt(b"paid", HERE) for _ in range(1000)}) == 1000


@pytest.mark.attack("D10")
def test_data_keys_are_replaced_and_never_shared(monkeypatch: pytest.MonkeyPatch):
    """Nonces are random, so what counts is how many payloads a data key encrypts."""
    monkeypatch.setattr("twicesafe.encryption._PER_DATA_KEY", 10)
    rings = [KeyRing({"2026-11": NEW}) for _ in range(2)]
    sealed = [ring.encrypt(b"paid", HERE) for ring in rings for _ in range(25)]
    assert len({payload[12:28] for payload in sealed}) == 6
    assert all(RING.decrypt(payload, HERE) == b"paid" for payload in sealed)


@pytest.mark.attack("D9")
def test_a_changed_byte_anywhere_is_found():
    sealed = RING.encrypt(b"paid", HERE)
    for at in range(len(sealed)):
        for bit in (1, 128):
            forged = sealed[:at] + bytes((sealed[at] ^ bit,)) + sealed[at + 1 :]
            with pytest.raises((CorruptRecordError, ResultUnavailableError)):
                RING.decrypt(forged, HERE)


@pytest.mark.attack("D9")
def test_a_truncated_or_extended_payload_is_found():
    sealed = RING.encrypt(b"paid", HERE)
    for forged in (*(sealed[:end] for end in range(len(sealed))), sealed + b"\0", sealed * 2):
        with pytest.raises((CorruptRecordError, ResultUnavailableError)):
            RING.decrypt(forged, HERE)


@pytest.mark.attack("D9")
@pytest.mark.parametrize(
    "elsewhere",
    [
        record_context(b"K" * 32, State.COMPLETED),
        record_context(b"k" * 32, State.FAILED),
        message_context("k" * 32, "completed"),
        b"",
    ],
)
def test_a_payload_opens_only_where_it_belongs(elsewhere: bytes):
    with pytest.raises(CorruptRecordError, match="copied from another record"):
        RING.decrypt(RING.encrypt(b"paid", HERE), elsewhere)


@pytest.mark.attack("D9")
def test_names_of_messages_cannot_run_together():
    assert message_context("ab", "c") != message_context("a", "bc")


@pytest.mark.attack("D9")
def test_the_key_id_cannot_be_exchanged():
    """A downgrade to another key of the ring: the id is part of what is authenticated."""
    sealed = RING.encrypt(b"paid", HERE)
    with pytest.raises(CorruptRecordError):
        RING.decrypt(sealed.replace(b"2026-11", b"2026-10"), HERE)


@pytest.mark.attack("D10")
def test_rotation_reads_the_old_and_writes_the_new():
    before = KeyRing({"2026-10": OLD})
    sealed = before.encrypt(b"paid", HERE)
    assert RING.decrypt(sealed, HERE) == b"paid"
    renewed = RING.reencrypt(sealed, HERE)
    assert renewed is not None
    assert KeyRing({"2026-11": NEW}).decrypt(renewed, HERE) == b"paid"
    assert RING.reencrypt(renewed, HERE) is None


@pytest.mark.attack("D10")
def test_a_key_that_is_gone_is_named():
    sealed = KeyRing({"2026-09": os.urandom(32)}).encrypt(b"paid", HERE)
    with pytest.raises(ResultUnavailableError, match="'2026-09', which is not in the key ring"):
        RING.decrypt(sealed, HERE)


@pytest.mark.attack("D10")
def test_the_same_id_with_another_key_is_no_key():
    with pytest.raises(CorruptRecordError, match="another key in this ring"):
        KeyRing({"2026-11": OLD}).decrypt(RING.encrypt(b"paid", HERE), HERE)


@pytest.mark.attack("D9")
def test_readable_payloads_are_refused_unless_asked_for():
    with pytest.raises(CorruptRecordError, match="not encrypted"):
        RING.decrypt(b'j"planted"', HERE)
    lenient = KeyRing({"2026-11": NEW}, plaintext="read")
    assert lenient.decrypt(b'j"old"', HERE) == b'j"old"'
    assert lenient.decrypt(lenient.encrypt(b"x", HERE), HERE) == b"x"
    renewed = lenient.reencrypt(b'j"old"', HERE)
    assert renewed is not None
    assert RING.decrypt(renewed, HERE) == b'j"old"'


# --- where keys come from ----------------------------------------------------------------------


def test_keys_from_a_file_and_from_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    lines = [KeyRing.new_key("b"), KeyRing.new_key("a")]
    file = tmp_path / "keys"
    file.write_text(f"# the first one encrypts\n{lines[0]}  # since November\n\n{lines[1]}\n")
    monkeypatch.setenv("SHOP_KEYS", ",".join(lines))
    for source in (f"file:{file}", "env:SHOP_KEYS"):
        ring = KeyRing.load(source)
        assert ring.ids == ("b", "a")
        assert KeyRing.load(f"file:{file}").decrypt(ring.encrypt(b"x", HERE), HERE) == b"x"
    assert KeyRing.load(f"file:{file}?plaintext=read").decrypt(b"old", HERE) == b"old"


def test_keys_from_a_key_service():
    asked: list[str] = []

    def unwrap(id_: str) -> bytes:
        asked.append(id_)
        return {"b": NEW, "a": OLD}[id_]

    ring = KeyRing.from_callable(unwrap, ("b", "a"))
    ring.decrypt(ring.encrypt(b"x", HERE), HERE)
    assert asked == ["b", "a"], "never during a delivery"


SECRET = base64.b64encode(b"s" * 32).decode()


@pytest.mark.parametrize(
    "text",
    [
        "", "# nothing", SECRET, f"a b:{SECRET}", f":{SECRET}", f"a:{SECRET[:-4]}", f"a:{SECRET}!",
        f"a:{SECRET}\na:{SECRET}", f"a:{SECRET}\nb:{SECRET}", f"{'x' * 33}:{SECRET}", "é:x",
    ],
)  # fmt: skip
def test_what_is_no_key_ring_is_refused_without_showing_it(text: str, tmp_path: Path):
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        KeyRing.load(f"file:{file}")
    assert SECRET[:20] not in str(caught.value)


@pytest.mark.parametrize(
    "source",
    ["", "keys.txt", "env:", "file:", "kms:key", "env:X?plaintext=maybe", "env:X?other=1"],
)
def test_unknown_places_are_refused(source: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("X", KeyRing.new_key("a"))
    with pytest.raises(ConfigurationError):
        KeyRing.load(source)


def test_a_missing_file_or_variable_says_so(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        KeyRing.load(f"file:{tmp_path}/none")
    with pytest.raises(ConfigurationError, match="NOT_SET_HERE for the key ring is not set"):
        KeyRing.load("env:NOT_SET_HERE")


@pytest.mark.parametrize("key", [b"short", b"x" * 31, b"x" * 33, "x" * 32, None])
def test_a_key_has_32_bytes(key: object):
    with pytest.raises(ConfigurationError, match="32 random bytes"):
        KeyRing({"a": key})  # type: ignore[dict-item]


@pytest.mark.attack("D17")
def test_keys_are_shown_nowhere():
    ring = KeyRing({"a": b"s" * 32})
    assert repr(ring) == "<KeyRing a>"
    assert repr(Policy(encryption=ring)) == "Policy(encryption=KeyRing)"
    with pytest.raises(UsageError, match="load it in each process"):
        pickle.dumps(ring)


def test_a_policy_takes_what_can_encrypt_and_decrypt():
    with pytest.raises(ConfigurationError, match="encrypt and decrypt"):
        Policy(encryption="file:keys.txt")  # type: ignore[arg-type]


def test_the_missing_library_is_named(monkeypatch: pytest.MonkeyPatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'twicesafe\[encryption\]'"):
        KeyRing({"a": NEW})
