"""A receiver that requires signed keys: nothing runs and no store is asked before the signature holds."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.receiver.bench import Bench
from twicesafe import AsyncReceiver, Inbox, Key, Policy, Receiver, current_key
from twicesafe.asgi import IdempotencyMiddleware
from twicesafe.client import RetryPolicy
from twicesafe.client.httpx import AsyncRetryTransport
from twicesafe.consumers import Consumer
from twicesafe.errors import ConfigurationError, UntrustedKeyError
from twicesafe.http import HttpPolicy
from twicesafe.signing import KeySigner, KeyVerifier, SignedKey
from twicesafe.testing import MemoryBroker

SECRET = secrets.token_bytes(32)
SIGNER = KeySigner("shop", SECRET, audience="payments")
OTHERS = KeySigner("shop", SECRET, audience="refunds")
VERIFIER = KeyVerifier({"shop": SECRET}, audience="payments")
POLICY = Policy(signatures=VERIFIER)


def never(*_: Any) -> None:
    raise AssertionError("the handler must not run")


@pytest.fixture
def strict(bench: Bench) -> Bench:
    bench.policy(signatures=VERIFIER)
    return bench


def test_a_signed_key_runs_and_is_replayed(strict: Bench):
    signed = SIGNER.signed("tx-1")
    assert strict.process(signed, lambda: "paid").value == "paid"
    again = strict.process(SIGNER.signed("tx-1"), never)
    assert (again.value, again.key) == ("paid", Key("tx-1"))


@pytest.mark.attack("D3")
@pytest.mark.parametrize(
    "key",
    ["tx-1", 7, Key("tx-1"), SignedKey("tx-1", ""), SignedKey("tx-1", "forged"), OTHERS.signed("tx-1"),
     SignedKey("tx-2", SIGNER.sign("tx-1"))],
)  # fmt: skip
def test_other_keys_are_refused_before_the_store_is_asked(strict: Bench, key: Any):
    strict.store.log.clear()
    with pytest.raises(UntrustedKeyError) as caught:
        strict.process(key, never)
    with pytest.raises(UntrustedKeyError):
        strict.manual(key, never)
    (failure,) = strict.process_many([1], never, key=lambda _: key)
    assert isinstance(failure.error, UntrustedKeyError)
    with pytest.raises(UntrustedKeyError):
        strict.idempotent(never, key=lambda _: key)("order")
    assert strict.store.log == []
    assert (caught.value.http_status, caught.value.retryable) == (403, False)


def test_inner_keys_and_operators_need_no_signature(strict: Bench):
    """Keys that are derived from a checked one are ours; an operator is not a sender."""
    derived: list[Key] = []

    def work() -> str:
        derived.append(current_key().derive("step"))
        return "paid"

    strict.process(SIGNER.signed("tx-1"), work)
    assert strict.process(derived[0], lambda: "inner").value == "inner"
    assert strict.call(strict.receiver.record, "tx-1") is not None
    strict.call(strict.receiver.release, "tx-1", by="ann", force=True)


@pytest.mark.attack("D3")
def test_an_inbox_asks_too(tmp_path: Path):
    path = tmp_path / "shop.db"
    with (
        Inbox.open(f"sqlite:///{path}", policy=POLICY) as inbox,
        closing(sqlite3.connect(path)) as connection,
    ):
        connection.execute("BEGIN IMMEDIATE")
        assert inbox.accept(connection, SIGNER.signed("m-1"))
        for key in ("m-2", OTHERS.signed("m-2")):
            with pytest.raises(UntrustedKeyError):
                inbox.accept(connection, key)
            with pytest.raises(UntrustedKeyError):
                inbox.process(connection, key, never)


@pytest.mark.attack("D3")
def test_a_consumer_reads_the_signature_beside_the_key():
    broker, ran = MemoryBroker(), []
    for key, signature in (("m-1", SIGNER.sign("m-1")), ("m-2", OTHERS.sign("m-2")), ("m-3", "")):
        headers = {"idempotency-key": key, "idempotency-key-signature": signature}
        broker.send("orders", key.encode(), headers=headers)
    with Receiver.open("memory://", policy=POLICY) as receiver:
        dead: list[Any] = []
        with Consumer(
            broker.source("orders"),
            receiver=receiver,
            dead_letter=lambda *letter: dead.append(letter),
        ) as consumer:
            consumer.drain(lambda message: ran.append(message.body), idle=0.1)
    assert ran == [b"m-1"]
    assert len(dead) == 2
    assert all(isinstance(error, UntrustedKeyError) for _, error in dead)


# --- HTTP ----------------------------------------------------------------------------------------


class Shop:
    """An application behind the middleware, and how often it and the store were reached."""

    def __init__(self, policy: HttpPolicy | None, own: Policy) -> None:
        self.runs = 0
        self.receiver = AsyncReceiver.open("memory://", policy=own)
        self.app = IdempotencyMiddleware(self.answer, receiver=self.receiver, policy=policy)
        self.asked: list[str] = []
        inner = self.receiver.store.perform

        async def perform(request: Any) -> Any:
            self.asked.append(request.op)
            return await inner(request)

        self.receiver.store.perform = perform  # type: ignore[method-assign]

    async def answer(self, scope: Any, receive: Any, send: Any) -> None:
        await receive()
        self.runs += 1
        await send({"type": "http.response.start", "status": 201, "headers": []})
        await send({"type": "http.response.body", "body": str(self.runs).encode()})

    def client(self, **settings: Any) -> httpx.AsyncClient:
        transport: Any = httpx.ASGITransport(self.app)
        if settings:
            transport = AsyncRetryTransport(transport, **settings)
        return httpx.AsyncClient(transport=transport, base_url="http://shop")


BOTH = pytest.mark.parametrize(
    "given", [(HttpPolicy(signatures=VERIFIER), Policy()), (None, POLICY), (HttpPolicy(), POLICY)]
)


@BOTH
async def test_signed_requests_are_run_and_replayed(given: Any):
    shop = Shop(*given)
    headers = {"Idempotency-Key": '"k-1"', "Idempotency-Key-Signature": SIGNER.sign("k-1")}
    async with shop.client() as client:
        replies = [await client.post("/charges", headers=headers) for _ in range(2)]
    assert [reply.text for reply in replies] == ["1", "1"]
    assert replies[1].headers["idempotent-replayed"] == "true"


@BOTH
@pytest.mark.attack("D3")
async def test_unsigned_requests_get_403_and_reach_neither_store_nor_application(given: Any):
    shop = Shop(*given)
    wrong: list[list[tuple[str, str]]] = [
        [],
        [("Idempotency-Key-Signature", "")],
        [("Idempotency-Key-Signature", "1.none.shop.9999999999.")],
        [("Idempotency-Key-Signature", SIGNER.sign("k-2"))],
        [("Idempotency-Key-Signature", OTHERS.sign("k-1"))],
        [("Idempotency-Key-Signature", SIGNER.sign("k-1"))] * 2,
        [("Idempotency-Key-Signature", "x" * 9000)],
    ]
    async with shop.client() as client:
        for lines in wrong:
            reply = await client.post("/charges", headers=[("Idempotency-Key", "k-1"), *lines])
            assert reply.status_code == 403, lines
            assert reply.json()["type"].endswith("key-untrusted")
            assert "k-1" not in reply.text
    assert (shop.runs, shop.asked) == (0, [])


async def test_our_clients_sign_what_they_send():
    shop = Shop(HttpPolicy(signatures=VERIFIER, required=True), Policy())
    async with shop.client(policy=RetryPolicy(signer=SIGNER)) as client:
        assert (await client.post("/charges")).text == "1"
        reply = await client.post("/charges", headers={"Idempotency-Key": "my-own"})
        assert reply.text == "2"
    async with shop.client(policy=RetryPolicy(signer=OTHERS)) as client:
        assert (await client.post("/charges")).status_code == 403


def test_what_cannot_verify_is_refused():
    with pytest.raises(ConfigurationError, match="object with verify"):
        Policy(signatures="secret")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="signature_header"):
        HttpPolicy(signature_header="no field")


@pytest.mark.attack("D3")
@pytest.mark.parametrize("key", [lambda order: order, "order"])
def test_a_durable_function_requires_a_signature(key: Any):
    with Receiver.open("memory://", policy=POLICY) as receiver:

        @receiver.durable(key=key)
        def pay(steps: Any, order: str) -> str:
            return "paid"

        for forged in ("tx-1", SignedKey("tx-1", "forged")):
            with pytest.raises(UntrustedKeyError):
                pay(forged)
            with pytest.raises(UntrustedKeyError):
                pay.submit(forged)
            assert receiver.record(pay.key(forged)) is None
        pay.submit(SIGNER.signed("tx-1"))
        assert receiver.complete_abandoned().completed == 1
        assert pay(SIGNER.signed("tx-1")) == "paid"
