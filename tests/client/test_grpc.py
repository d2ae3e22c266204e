"""gRPC with the real library, over real sockets: keys in metadata, found by the server."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio
import pytest

from twicesafe import ConfigurationError, Receiver
from twicesafe.client.grpc import (
    AsyncSignedKeysRequired,
    KeyInterceptor,
    SignedKeysRequired,
    async_interceptors,
)
from twicesafe.propagation import extract, inject
from twicesafe.signing import KeySigner, KeyVerifier

CHARGE = "/shop.Bank/Charge"
LIST = "/shop.Bank/List"


class Bank:
    """A service that is unavailable as often as the test asks, after its work is done."""

    def __init__(self, *interceptors: Any) -> None:
        self.keys: list[str | None] = []
        self.effects: list[bytes] = []
        self.failures = 0
        self.left: list[float] = []
        self.receiver = Receiver.open("memory://", scope=("Charge",))
        handlers = {
            "Charge": grpc.unary_unary_rpc_method_handler(self.charge),
            "List": grpc.unary_stream_rpc_method_handler(self.list),
        }
        self.server = grpc.server(ThreadPoolExecutor(4), interceptors=interceptors)
        self.server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("shop.Bank", handlers),)
        )
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def charge(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        key = extract(context.invocation_metadata())
        self.keys.append(key)
        self.left.append(context.time_remaining())
        answer = self.receiver.process(key, self._charge, request).value
        if self.failures:
            self.failures -= 1
            context.abort(grpc.StatusCode.UNAVAILABLE, "the answer got lost")
        return answer

    def _charge(self, request: bytes) -> bytes:
        self.effects.append(request)
        return b"charge %d" % len(self.effects)

    def list(self, request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        self.keys.append(extract(context.invocation_metadata()))
        yield b"one"


@pytest.fixture
def bank() -> Iterator[Bank]:
    made = Bank()
    yield made
    made.server.stop(0).wait()
    made.receiver.close()


RETRIES = json.dumps(
    {
        "methodConfig": [
            {
                "name": [{"service": "shop.Bank"}],
                "retryPolicy": {
                    "maxAttempts": 4,
                    "initialBackoff": "0.01s",
                    "maxBackoff": "0.02s",
                    "backoffMultiplier": 1,
                    "retryableStatusCodes": ["UNAVAILABLE"],
                },
            }
        ]
    }
)
OPTIONS = [("grpc.service_config", RETRIES), ("grpc.enable_retries", 1)]


def charge(channel: Any, request: bytes = b"500", **more: Any) -> bytes:
    return channel.unary_unary(CHARGE)(request, timeout=120, **more)


def test_the_channels_own_retries_carry_one_key(bank: Bank):
    bank.failures = 2
    with grpc.insecure_channel(bank.address, OPTIONS) as plain:
        channel = grpc.intercept_channel(plain, KeyInterceptor())
        assert charge(channel) == b"charge 1"
        assert charge(channel) == b"charge 2"
    first, second, third, other = bank.keys
    assert first == second == third != other
    assert bank.effects == [b"500", b"500"]


async def test_the_same_with_asyncio(bank: Bank):
    bank.failures = 2
    async with grpc.aio.insecure_channel(
        bank.address, OPTIONS, interceptors=async_interceptors()
    ) as channel:
        assert await channel.unary_unary(CHARGE)(b"500", timeout=120) == b"charge 1"
        pieces = [piece async for piece in channel.unary_stream(LIST)(b"", timeout=120)]
        assert pieces == [b"one"]
        given = await channel.unary_unary(CHARGE)(
            b"7", metadata=(("idempotency-key", "mine"),), timeout=120
        )
        assert given == b"charge 2"
    first, second, third, listed, mine = bank.keys
    assert first == second == third
    assert listed is not None
    assert mine == "mine"


def test_inside_protected_work_keys_are_derived(bank: Bank):
    with (
        grpc.insecure_channel(bank.address) as plain,
        Receiver.open("memory://") as receiver,
    ):
        channel = grpc.intercept_channel(plain, KeyInterceptor())

        def handler() -> list[str]:
            named = inject([], step="charge-card")
            return [charge(channel).decode(), charge(channel, metadata=named).decode()]

        one = receiver.process("root", handler).value
        receiver.release("root", by="test", why="again", force=True)
        assert receiver.process("root", handler).value == one == ["charge 1", "charge 2"]
    assert bank.keys[:2] == bank.keys[2:]
    assert len(bank.effects) == 2


def test_other_metadata_and_other_methods_are_left_alone(bank: Bank):
    with grpc.insecure_channel(bank.address) as plain:
        channel = grpc.intercept_channel(plain, KeyInterceptor(methods=[CHARGE]))
        assert list(channel.unary_stream(LIST)(b"", metadata=[("a", "b")], timeout=120)) == [b"one"]
        charge(channel, metadata=[("a", "b"), ("idempotency-key", '"given"')])
    assert bank.keys == [None, "given"]
    assert 0 < bank.left[0] < 125  # the call's own time-out, as gRPC rounds it


def test_a_method_alone_is_not_several():
    with pytest.raises(ConfigurationError, match="methods"):
        KeyInterceptor(CHARGE)


# -- signed keys ---------------------------------------------------------------------------------

SECRET = secrets.token_bytes(32)
SIGNER = KeySigner("shop", SECRET, audience="bank")
VERIFIER = KeyVerifier({"shop": SECRET}, audience="bank")
SIGNATURE = "idempotency-key-signature"
FORGED = {
    "no signature": [],
    "of another key": [(SIGNATURE, SIGNER.sign("other"))],
    "for another service": [
        (SIGNATURE, KeySigner("shop", SECRET, audience="shop").sign("mine")),
    ],
    "twice": [(SIGNATURE, SIGNER.sign("mine")), (SIGNATURE, SIGNER.sign("mine"))],
    "malformed": [(SIGNATURE, "1.none.shop.9.")],
}


@pytest.fixture
def strict_bank() -> Iterator[Bank]:
    made = Bank(SignedKeysRequired(VERIFIER))
    yield made
    made.server.stop(0).wait()
    made.receiver.close()


def test_a_server_can_require_signed_keys(strict_bank: Bank):
    with grpc.insecure_channel(strict_bank.address) as plain:
        signing = grpc.intercept_channel(plain, KeyInterceptor(signer=SIGNER))
        assert charge(signing) == b"charge 1"
        assert charge(signing, metadata=[("idempotency-key", '"mine"')]) == b"charge 2"
        for name, metadata in FORGED.items():
            with pytest.raises(grpc.RpcError) as caught:
                charge(plain, metadata=[("idempotency-key", '"mine"'), *metadata])
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, name
        with pytest.raises(grpc.RpcError) as caught:
            list(plain.unary_stream(LIST)(b"", metadata=[("idempotency-key", '"x"')], timeout=120))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert list(plain.unary_stream(LIST)(b"", timeout=120)) == [b"one"]  # no key
    assert len(strict_bank.effects) == 2


def test_only_the_named_methods_are_checked():
    required = SignedKeysRequired(VERIFIER, methods=[CHARGE])
    bank = Bank(required)
    try:
        with grpc.insecure_channel(bank.address) as plain:
            keyed = [("idempotency-key", '"x"')]
            assert list(plain.unary_stream(LIST)(b"", metadata=keyed, timeout=120)) == [b"one"]
            with pytest.raises(grpc.RpcError):
                charge(plain, metadata=keyed)
    finally:
        bank.server.stop(0).wait()
        bank.receiver.close()
    with pytest.raises(ConfigurationError, match="KeyVerifier"):
        SignedKeysRequired(None)  # type: ignore[arg-type]


async def test_an_async_server_and_an_async_client():
    async def answer(request: bytes, context: Any) -> bytes:
        return str(extract(context.invocation_metadata())).encode()

    server = grpc.aio.server(interceptors=[AsyncSignedKeysRequired(VERIFIER)])
    handlers = {"Charge": grpc.unary_unary_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("shop.Bank", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        keyed = grpc.aio.Metadata(("idempotency-key", '"mine"'))
        signing = async_interceptors(signer=SIGNER)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", interceptors=signing) as channel:
            assert await channel.unary_unary(CHARGE)(b"", metadata=keyed, timeout=120) == b"mine"
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await channel.unary_unary(CHARGE)(b"", metadata=keyed, timeout=120)
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
    finally:
        await server.stop(0)
