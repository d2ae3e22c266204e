"""Keys across hops: derived from the key one runs under, the same on every retry."""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.client.flaky import Flaky, response
from tests.client.libraries import QUICK, Library
from tests.http.stage import Answer, Stage
from twicesafe import (
    AsyncReceiver,
    Backoff,
    ConfigurationError,
    InvalidKeyError,
    Key,
    Policy,
    Receiver,
    current_key,
)
from twicesafe import propagation as hops
from twicesafe.client import RetryPolicy
from twicesafe.client._sending import call_of
from twicesafe.http import HttpPolicy
from twicesafe.propagation import extract, inject, numbered, outgoing_key

Make = Callable[..., Flaky]


@pytest.fixture
def receiver() -> Any:
    with Receiver.open("memory://") as made:
        yield made


def twice(receiver: Receiver, handler: Callable[[], Any], key: str = "root") -> list[Any]:
    """What two runs of one key give: the second is a retry of the first."""
    first = receiver.process(key, handler).value
    receiver.release(key, by="test", why="again", force=True)
    return [first, receiver.process(key, handler).value]


def test_a_step_has_the_same_key_on_every_run(receiver: Receiver):
    one, again = twice(receiver, lambda: [inject({}, step=s) for s in ("charge", "mail")])
    assert one == again
    charge, mail = (extract(headers) for headers in one)
    assert charge != mail
    assert charge == Key("root").derive("charge").value


def test_another_root_has_other_steps(receiver: Receiver):
    keys = {receiver.process(root, lambda: outgoing_key("charge")).value for root in ("a", "b")}
    with Receiver.open("memory://", scope=("tenant",)) as other:
        keys.add(other.process("a", lambda: outgoing_key("charge")).value)
    assert len(keys) == 3


def test_hops_chain(receiver: Receiver):
    def checkout() -> list[str]:
        order = outgoing_key("order")
        with Receiver.open("memory://") as orders:
            return [order, orders.process(order, lambda: outgoing_key("pay")).value]

    one, again = twice(receiver, checkout)
    assert one == again
    assert len(set(one)) == 2


def test_outside_a_key_is_new_each_time():
    assert current_key() is None
    keys = {extract(inject({}, step="charge")) for _ in range(10)}
    assert len(keys) == 10
    assert numbered("POST /") == "POST /"


@pytest.mark.parametrize(
    "headers",
    [
        {"Idempotency-Key": "k"},
        {"idempotency-key": b"k"},
        {"IDEMPOTENCY-KEY": '"k"'},
        [("Idempotency-Key", b"k"), ("other", b"\xff")],
        (("idempotency-key", "k"),),
        [(b"idempotency-key", b'"k";v=1')],
    ],
)
def test_headers_of_every_kind_are_read(headers: Any):
    assert extract(headers) == "k"


@pytest.mark.parametrize(
    "headers",
    [
        None,
        {},
        [],
        {"x": 1},
        [("x", None)],
        {"Idempotency-Key": None},
        [("idempotency-key", None)],
    ],
)
def test_no_key_is_none(headers: Any):
    assert extract(headers) is None


@pytest.mark.parametrize(
    "headers",
    [{"Idempotency-Key": ""}, {"Idempotency-Key": b"\xff"}, [("idempotency-key", "a")] * 2],
)
def test_a_malformed_key_is_an_error_of_the_sender(headers: Any):
    with pytest.raises(InvalidKeyError, match="the sender must correct it"):
        extract(headers)


@pytest.mark.parametrize("value", [7, True, 1.5, ["a"], {"a": 1}, bytearray(b"a")], ids=repr)
def test_a_key_is_text_or_bytes_and_nothing_that_could_be_printed(value: Any):
    for act in (extract, lambda headers: inject(headers, step="s")):
        with pytest.raises(InvalidKeyError, match=f"type {type(value).__name__}.* must correct it"):
            act({"Idempotency-Key": value})


def test_a_null_does_not_keep_a_key_out(receiver: Receiver):
    def check() -> None:
        for headers in ({"Idempotency-Key": None}, [("idempotency-key", None)]):
            assert extract(inject(headers, step="s")) == outgoing_key("s")  # type: ignore[type-var]

    receiver.process("root", check)


def test_a_policy_without_a_field_sends_no_key():
    with pytest.raises(ConfigurationError, match="header=None"):
        inject({}, "a", policy=HttpPolicy.webhook("github"))
    with pytest.raises(ConfigurationError, match="no header"):
        RetryPolicy(http=HttpPolicy.webhook("github"))


def test_injected_is_extracted_and_a_given_key_stays(receiver: Receiver):
    policies = [
        HttpPolicy(),
        HttpPolicy(strict=True),
        HttpPolicy.paypal(),
        HttpPolicy(max_key=36),
        HttpPolicy(header="X-Key", aliases=("Y-Key",)),
    ]

    def check() -> None:
        for policy in policies:
            expected = outgoing_key("s", policy=policy)
            assert len(expected) <= policy.max_key
            for headers in ({}, []):
                made = inject(headers, step="s", policy=policy)  # type: ignore[type-var]
                assert made is headers
                assert extract(made, policy=policy) == expected
                assert inject(made, step="other", policy=policy) == made
        assert inject([], step="s")[0][0] == "idempotency-key"
        assert inject({"y-KEY": "mine"}, step="s", policy=policies[-1]) == {"y-KEY": "mine"}

    receiver.process("root", check)


# --- calls without a name ------------------------------------------------------------------------


def keys_of(*calls: tuple[str, str]) -> list[str]:
    made = [call_of(QUICK, method, path, []) for method, path in calls]
    return [call.key for call in made if call is not None]


def test_unnamed_calls_are_numbered_per_method_and_path(receiver: Receiver):
    calls = [("POST", "/a"), ("POST", "/b"), ("POST", "/a"), ("PATCH", "/a")]
    one, again = twice(receiver, lambda: keys_of(*calls))
    assert one == again
    assert len(set(one)) == 4
    assert one[2] == Key("root").derive("POST /a #2").value


def test_a_call_that_comes_or_goes_elsewhere_does_not_shift_the_numbers(receiver: Receiver):
    runs = iter([[("POST", "/a"), ("POST", "/b")], [("POST", "/b")]])
    one, again = twice(receiver, lambda: keys_of(*next(runs)))
    assert one[1:] == again


def test_a_long_path_has_a_number_too(receiver: Receiver):
    calls = [("POST", "/" + "ü" * 5000), ("POST", "/" + "ü" * 5001)]
    one, again = twice(receiver, lambda: keys_of(*calls, *calls))
    assert one == again
    assert len(set(one)) == 4


def test_numbers_are_not_shared_between_claims_and_not_lost_between_threads(receiver: Receiver):
    def many() -> set[str]:
        with ThreadPoolExecutor(8) as pool:
            contexts = [contextvars.copy_context() for _ in range(200)]
            made = pool.map(lambda context: context.run(keys_of, ("POST", "/a"))[0], contexts)
            return set(made)

    one, again = twice(receiver, many)
    assert one == again
    assert len(one) == 200
    gc.collect()
    assert len(hops._numbers) == 0


async def test_tasks_of_one_handler_share_the_numbers():
    async with AsyncReceiver.open("memory://") as receiver:

        async def handler() -> list[str]:
            async def one() -> str:
                return keys_of(("POST", "/a"))[0]

            return list(await asyncio.gather(*(one() for _ in range(20))))

        assert len(set((await receiver.process("root", handler)).value)) == 20


def test_propagation_can_be_left_out(receiver: Receiver):
    policy = QUICK.replace(propagate=False)
    one, again = twice(receiver, lambda: call_of(policy, "POST", "/", []).key)  # type: ignore[union-attr]
    assert one != again


# --- over the wire -------------------------------------------------------------------------------


def test_a_retried_handler_sends_the_same_keys(library: Library, flaky: Make, receiver: Receiver):
    server = flaky(response(201))
    named = {"step": "named"}

    def handler() -> list[str]:
        sent = [
            library.send(server.url).sent,
            library.send(server.url).sent,
            library.send(server.url, headers=inject({}, **named)).sent,
        ]
        return [one.key for one in sent if one is not None]

    one, again = twice(receiver, handler)
    assert one == again
    assert len(set(one)) == 3
    assert server.keys == one * 2


def test_through_our_own_layer_a_retried_edge_acts_once(stage: Stage):
    """The edge dies after its call, and is run again: the service behind it is hit twice."""
    library = Library("httpx")
    url = f"http://127.0.0.1:{stage.server.port}/charges"
    runs: list[bool] = []

    def checkout() -> str:
        got = library.send(url)
        assert got.sent is not None
        runs.append(got.sent.replayed)
        if len(runs) == 1:
            raise ConnectionError("between the call and our own record")
        return got.body.decode()

    policy = Policy(backoff=Backoff(first=0))
    with Receiver.open("memory://", policy=policy) as receiver:
        with pytest.raises(ConnectionError):
            receiver.process("cart-7", checkout)
        assert receiver.process("cart-7", checkout).value == '{"n":1}'
    assert (runs, len(stage.seen)) == ([False, True], 1)


@pytest.mark.parametrize("stage", ["asgi", "wsgi"], indirect=True)  # a proxy is another process
def test_a_handler_behind_the_layer_derives_from_its_requests_key(stage: Stage):
    made: list[str] = []

    def handler(_: Any) -> Answer:
        made.append(outgoing_key("pay"))
        return Answer(503)  # released: the retry runs again

    stage.handler = handler
    for _ in range(2):
        stage.send("k")
    assert made[0] == made[1]
    assert made[0].startswith("step:")
