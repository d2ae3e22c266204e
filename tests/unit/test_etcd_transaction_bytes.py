"""The bytes of a transaction that we put together are those that protobuf makes of the message."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("google.protobuf")

from twicesafe._engines.etcd.messages import CREATE, MOD, message
from twicesafe._engines.etcd.transaction_bytes import compared, delete, put, read, transaction

LENGTHS = (1, 40, 127, 128, 300, 2047, 2048, 20_000, 3_000_000)


def parsed(data: bytes) -> Any:
    return message("TxnRequest").FromString(data)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_part_of_a_transaction_of_any_length(length: int) -> None:
    key, value, lease, revision = b"k" * length, b"v" * length, length << 40, length << 20
    expected = message("TxnRequest")(
        compare=[
            {"target": MOD, "key": key, "mod_revision": revision},
            {"target": CREATE, "key": key, "create_revision": 0},
        ],
        success=[
            {"request_put": {"key": key, "value": value, "lease": lease}},
            {"request_put": {"key": key, "value": b""}},
            {"request_delete_range": {"key": key}},
        ],
        failure=[{"request_range": {"key": key}}, {"request_range": {"key": value}}],
    )
    made = transaction(
        [compared(key, MOD, revision), compared(key, CREATE, 0)],
        [put(key, value, lease), put(key, b""), delete(key)],
        [read(key), read(value)],
    )
    assert parsed(made) == expected


def test_the_largest_lease_and_revision_of_etcd() -> None:
    largest = (1 << 63) - 1
    made = parsed(transaction([compared(b"k", MOD, largest)], [put(b"k", b"v", largest)]))
    assert made.compare[0].mod_revision == largest
    assert made.success[0].request_put.lease == largest


def test_a_comparison_with_0_is_sent() -> None:
    made = parsed(transaction([compared(b"k", CREATE, 0)], []))
    assert made.compare[0].HasField("create_revision")
    assert not made.compare[0].HasField("mod_revision")
