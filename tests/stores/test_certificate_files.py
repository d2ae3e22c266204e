"""A certificate file that is missing or useless is a mistake in the URL, not an outage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from twicesafe import AsyncReceiver, Receiver
from twicesafe.consumers.sources import open_source
from twicesafe.errors import ConfigurationError
from twicesafe.outbox.publishers import open_publisher

NO_AUTHORITY = Path(__file__).parents[1] / "no_authority.pem"

URLS = {
    "postgresql": "postgresql://u@127.0.0.1:1/shop?sslmode=verify-full&",
    "mysql": "mysql://u@127.0.0.1:1/shop?ssl=verify&",
    "redis": "rediss://127.0.0.1:1/0?",
    "sentinel": "rediss+sentinel://127.0.0.1:1/main?",
    "cluster": "rediss+cluster://127.0.0.1:1?",
    "etcd": "etcds://127.0.0.1:1/x?",
    "mongodb": "mongodb://127.0.0.1:1/shop?tls=true&",
}
ROOTS = {
    "postgresql": "sslrootcert",
    "mysql": "ssl_ca",
    "redis": "ca_certs",
    "sentinel": "ca_certs",
    "cluster": "ca_certs",
    "etcd": "ca_certs",
    "mongodb": "tlsCAFile",
}
OTHERS = [
    ("postgresql", "sslcert={}", "sslcert"),
    ("postgresql", "sslkey={}", "sslkey"),
    ("postgresql", "sslcrl={}", "sslcrl"),
    ("redis", "certfile={}", "certfile"),
    ("redis", "keyfile={}", "keyfile"),
    ("etcd", "certfile={}&keyfile={}", "certfile"),
    ("mongodb", "tlsCertificateKeyFile={}", "tlsCertificateKeyFile"),
]


def refused(url: str) -> list[str]:
    """What a blocking and an async receiver say when they are opened: none of them may wait for a connection."""
    with pytest.raises(ConfigurationError) as blocking:
        Receiver.open(url)
    with pytest.raises(ConfigurationError) as asynchronous:
        AsyncReceiver.open(url)
    assert not blocking.value.retryable
    return [str(blocking.value), str(asynchronous.value)]


@pytest.mark.parametrize("store", ROOTS)
def test_a_file_of_the_ca_that_is_missing(store: str):
    option = ROOTS[store]
    for said in refused(f"{URLS[store]}{option}=/no/such/ca.pem"):
        assert f"{option}=/no/such/ca.pem cannot be read (No such file" in said


@pytest.mark.parametrize("store", ROOTS)
def test_a_file_of_the_ca_that_is_not_a_file_or_has_no_certificate(store: str, tmp_path: Path):
    option, text = ROOTS[store], tmp_path / "ca.pem"
    text.write_text("not a certificate")
    for said in refused(f"{URLS[store]}{option}={tmp_path}"):
        assert f"{option}={tmp_path} cannot be read (Is a directory" in said
    for said in refused(f"{URLS[store]}{option}={text}"):
        assert f"{option}={text} has no certificate" in said


@pytest.mark.parametrize("store, options, named", OTHERS)
def test_a_certificate_or_key_of_the_client_that_is_missing(store: str, options: str, named: str):
    for said in refused(URLS[store] + options.replace("{}", "/no/such/client.pem")):
        assert f"{named}=/no/such/client.pem cannot be read" in said


WITHOUT_TLS = [
    ("redis://127.0.0.1:1/0?ca_certs={}", "write rediss:// instead of redis://"),
    ("valkey://127.0.0.1:1/0?certfile={}", "write valkeys:// instead of valkey://"),
    ("redis+sentinel://127.0.0.1:1/main?ca_certs={}", "write rediss+sentinel://"),
    ("redis+cluster://127.0.0.1:1?keyfile={}", "write rediss+cluster://"),
    ("rediss://127.0.0.1:1/0?keyfile={}", "give certfile= too"),
    ("etcd://127.0.0.1:1/x?ca_certs={}", "write etcds:// instead of etcd://"),
    ("mysql://u@127.0.0.1:1/shop?ssl_ca={}", "ssl_ca= is for ssl=verify"),
    ("mysql://u@127.0.0.1:1/shop?ssl=off&ssl_ca={}", "ssl_ca= is for ssl=verify"),
    ("mongodb://127.0.0.1:1/shop?tls=false&tlsCAFile={}", "certificates are for TLS"),
]


@pytest.mark.parametrize("url, says", WITHOUT_TLS)
def test_certificates_without_tls_are_refused(url: str, says: str):
    """Whoever names a certificate expects TLS; the password would be sent in plain text."""
    for said in refused(url.replace("{}", str(NO_AUTHORITY))):
        assert says in said


@pytest.mark.parametrize("opener, more", [(open_publisher, ""), (open_source, "queue=q&")])
def test_certificates_of_rabbitmq(opener: Callable[[str], object], more: str):
    with pytest.raises(ConfigurationError, match="write amqps:// instead of amqp://"):
        opener(f"amqp://127.0.0.1:1/?{more}cafile={NO_AUTHORITY}")
    with pytest.raises(ConfigurationError, match=r"cafile=/no/such/ca\.pem cannot be read"):
        opener(f"amqps://127.0.0.1:1/?{more}cafile=/no/such/ca.pem")


def test_a_name_that_is_not_a_file_is_left_to_libpq():
    from twicesafe._engines.postgresql.settings import Settings

    url = "postgresql://u@127.0.0.1:1/shop?sslmode=verify-full&sslrootcert=system&sslkey=pkcs11:one"
    assert "sslrootcert=system" in Settings.of(url).dsn
