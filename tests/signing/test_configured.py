"""Signed keys by configuration: a verifier from a file, a proxy that requires signatures, and errors without secrets."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import mldsa

from tests.http.stage import Stage
from twicesafe import ConfigurationError
from twicesafe._proxy import load
from twicesafe.errors import UntrustedKeyError
from twicesafe.signing import SIGNATURE_HEADER, KeySigner, KeyVerifier

SECRET = bytes(range(32))
PRIVATE = mldsa.MLDSA44PrivateKey.generate()
UP = {"upstream": "http://127.0.0.1:9000", "store": "memory://"}


def text(key: bytes) -> str:
    return base64.b64encode(key).decode()


KEYS = f"""
# who signs for us
shop:hs3:{text(SECRET)}
partner:mldsa44:{text(PRIVATE.public_key().public_bytes_raw())}
"""
SHOP = KeySigner("shop", SECRET, audience="payments")
PARTNER = KeySigner("partner", PRIVATE, audience="payments")
ELSEWHERE = KeySigner("shop", SECRET, audience="refunds")


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "signers").write_text(KEYS)
    return f"file:{tmp_path / 'signers'}?audience=payments"


def test_a_verifier_is_read_from_a_file_or_a_variable(file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SIGNERS", f"shop:hs3:{text(SECRET)}")
    for source, signers in [(file, (SHOP, PARTNER)), ("env:SIGNERS?audience=payments&leeway=1m", (SHOP,))]:  # fmt: skip
        verifier = KeyVerifier.load(source)
        for signer in signers:
            verifier.verify("tx-1", signer.sign("tx-1"))
        with pytest.raises(UntrustedKeyError):
            verifier.verify("tx-1", ELSEWHERE.sign("tx-1"))


@pytest.mark.parametrize(
    "content, named",
    [
        ("", "empty"),
        ("shop", "entry 1"),
        (f"shop:{text(SECRET)}", "entry 1"),  # no algorithm: it is not guessed
        ("shop:hs3:%%%", "entry 1"),
        (f"shop:none:{text(SECRET)}", "entry 1"),
        (f"a:hs3:{text(SECRET)}\nshop:mldsa65:{text(SECRET)}", "entry 2"),
        (f"shop:hs3:{text(SECRET[:16])}", "32 random bytes"),
        (f"a:hs3:{text(SECRET)},a:hs3:{text(SECRET)}", "entry 2"),
        (f"a b:hs3:{text(SECRET)}", "key id"),
    ],
)
@pytest.mark.attack("D17")
def test_wrong_keys_are_refused_and_never_shown(tmp_path: Path, content: str, named: str):
    (tmp_path / "signers").write_text(content)
    with pytest.raises(ConfigurationError, match=named) as caught:
        KeyVerifier.load(f"file:{tmp_path / 'signers'}?audience=payments")
    shown = f"{caught.value} {caught.value.__cause__} {caught.value.__context__}"
    assert text(SECRET)[:12] not in shown


@pytest.mark.parametrize(
    "source", ["", "signers", "http://x?audience=a", "file:/x", "file:?audience=a", "file:/x?audience=a&leway=3"]
)  # fmt: skip
def test_wrong_sources_are_refused(source: str):
    with pytest.raises(ConfigurationError, match="signatures"):
        KeyVerifier.load(source)


def test_an_audience_is_required_and_files_must_exist(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot be read"):
        KeyVerifier.load(f"file:{tmp_path / 'none'}?audience=a")
    with pytest.raises(ConfigurationError, match="is not set"):
        KeyVerifier.load("env:NOT_SET_HERE?audience=a")


def test_the_proxy_requires_signatures_by_configuration(file: str, tmp_path: Path):
    settings = tmp_path / "twicesafe.toml"
    settings.write_text(f"[http]\nsignatures = '{file}'\n")
    policy = load(settings, UP, {}).policy()
    assert isinstance(policy.signatures, KeyVerifier)
    stage = Stage("proxy", policy)
    try:
        signed = stage.send("tx-1", b"{}", "POST", "/charge", (SIGNATURE_HEADER, SHOP.sign("tx-1")))
        assert signed.status == 201
        for headers in [
            (),
            ((SIGNATURE_HEADER, SHOP.sign("tx-2")),),
            ((SIGNATURE_HEADER, ELSEWHERE.sign("tx-1")),),
            ((SIGNATURE_HEADER, PARTNER.sign("tx-1")[:-9]),),
            ((SIGNATURE_HEADER, SHOP.sign("tx-1")), (SIGNATURE_HEADER, SHOP.sign("tx-1"))),
        ]:
            refused = stage.send("tx-1", b"{}", "POST", "/charge", *headers)
            assert refused.status == 403
            assert b"key-untrusted" in refused.body
        again = stage.send(
            "tx-1", b"{}", "POST", "/charge", (SIGNATURE_HEADER, PARTNER.sign("tx-1"))
        )
        assert (again.status, again.body) == (201, signed.body)
    finally:
        stage.close()


def test_the_proxy_reads_a_variable_and_refuses_to_start_without_the_keys(
    file: str, tmp_path: Path
):
    (tmp_path / "empty.toml").write_text("")
    made = load(tmp_path / "empty.toml", UP, {"TWICESAFE_HTTP_SIGNATURES": file})
    assert made.policy().signatures is not None
    assert load(tmp_path / "empty.toml", UP, {}).policy().signatures is None
    with pytest.raises(ConfigurationError, match="cannot be read"):
        load(tmp_path / "empty.toml", UP, {"TWICESAFE_HTTP_SIGNATURES": "file:/none?audience=a"})
