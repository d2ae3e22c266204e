"""What is special about DynamoDB: what a call costs, repeated and lost calls, the table, and errors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lab.field.drivers import through
from lab.field.proxy import Fault, Proxy
from tests.stores.drivers import AnyReceiver
from twicesafe import (
    ConfigurationError,
    Key,
    Policy,
    StoreUnavailableError,
)
from twicesafe._core.protocol import (
    Ack,
    ClaimRequest,
    Complete,
    History,
    Read,
    Release,
    Renew,
    Verdict,
)
from twicesafe._engines.dynamodb import DynamodbStore
from twicesafe._engines.dynamodb.settings import Settings

KEY = Key("order-7", scope=("shop", "charge"))
A, B, C = b"a" * 16, b"b" * 16, b"c" * 16
HOUR = 3_600_000


@pytest.fixture
def store(dynamodb_url: str) -> Iterator[DynamodbStore]:
    made = DynamodbStore(Settings.of(f"{dynamodb_url}"))
    yield made
    made.close()


def table_of(store: DynamodbStore) -> str:
    return store.settings.table


class Meter:
    """Counts the calls of a store, and adds up the capacity units that DynamoDB reports for them."""

    def __init__(self, store: DynamodbStore) -> None:
        self.calls: list[str] = []
        self.units = 0.0
        for once in (False, True):
            events = store._connect(once).meta.events
            events.register("provide-client-params.dynamodb", self._ask)
            events.register("after-call.dynamodb", self._count)

    def _ask(self, params: dict[str, Any], model: Any, **_: Any) -> dict[str, Any]:
        self.calls.append(model.name)
        return {**params, "ReturnConsumedCapacity": "TOTAL"}

    def _count(self, parsed: dict[str, Any], **_: Any) -> None:
        self.units += parsed.get("ConsumedCapacity", {}).get("CapacityUnits", 0.0)

    def take(self) -> tuple[list[str], float]:
        found = self.calls, self.units
        self.calls, self.units = [], 0.0
        return found


# --- what a request costs --------------------------------------------------------------------


def test_a_first_execution_is_two_writes_and_a_repeat_is_one_call(store: DynamodbStore):
    meter = Meter(store)
    won = store.perform(ClaimRequest(KEY, A, HOUR, fingerprint=b"f" * 32))
    assert meter.take() == (["PutItem"], 1.0)
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"r" * 300)) is Ack.OK
    assert meter.take() == (["UpdateItem"], 1.0)
    repeat = store.perform(ClaimRequest(KEY, B, HOUR, fingerprint=b"f" * 32))
    assert (repeat.verdict, repeat.result) == (Verdict.REPLAY, b"r" * 300)
    # DynamoDB reports no units for a refused write; it charges one per KB of the item that is there.
    assert meter.take() == (["PutItem"], 0.0)


def test_what_the_other_requests_cost(store: DynamodbStore):
    """As docs/how-to/dynamodb.md says."""
    meter = Meter(store)
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    meter.take()
    store.perform(Renew(KEY.id, A, won.fence, 2 * HOUR))
    assert meter.take() == (["UpdateItem"], 1.0)
    assert store.perform(ClaimRequest(KEY, B, HOUR)).verdict is Verdict.BUSY
    assert meter.take() == (["PutItem"], 0.0)
    store.perform(Release(KEY.id, "ann", "why", HOUR))
    assert meter.take() == (["GetItem", "PutItem"], 2.0)
    assert store.perform(ClaimRequest(KEY, B, HOUR)).verdict is Verdict.WON
    assert meter.take() == (["PutItem", "PutItem"], 1.0)


# --- a call that arrived, and its reply did not ------------------------------------------------


def repeated(store: DynamodbStore, operation: str) -> list[int]:
    """The driver sends this call twice, as it does if the first reply is cut off."""
    client = store._connect()
    send: Callable[..., Any] = getattr(client, operation)
    count = [0]

    def twice(**arguments: Any) -> Any:
        if count[0] == 0:
            count[0] += 1
            send(**arguments)
        return send(**arguments)

    setattr(client, operation, twice)
    return count


def test_a_claim_that_the_driver_repeats_is_won_once(store: DynamodbStore):
    repeated(store, "put_item")
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    assert (won.verdict, won.attempt) == (Verdict.WON, 1)
    assert store.perform(ClaimRequest(KEY, A, HOUR)) == won
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK


def test_a_takeover_that_the_driver_repeats_is_won_once(store: DynamodbStore):
    store.perform(ClaimRequest(KEY, A, 0))
    client = store._connect()
    send, calls = client.put_item, []

    def lossy(**arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:  # the first is refused: there is an item
            send(**arguments)
        return send(**arguments)

    client.put_item = lossy
    won = store.perform(ClaimRequest(KEY, B, HOUR))
    assert (won.verdict, won.attempt) == (Verdict.WON, 2)
    assert len(calls) == 2


def test_a_completion_that_the_driver_repeats_is_ok(store: DynamodbStore):
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    repeated(store, "update_item")
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK
    assert store.perform(ClaimRequest(KEY, B, HOUR)).result == b"x"


def test_an_operators_act_is_not_repeated(store: DynamodbStore):
    """Its outcome is unknown after a lost reply; a repeat might undo what others did since."""
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    count = throttled(store, 1000, "ThrottlingException", once=True)
    with pytest.raises(StoreUnavailableError):
        store.perform(Release(KEY.id, "ann", "why", HOUR))
    assert count == [1]
    assert store.perform(History(KEY.id)) == []
    assert store.perform(Complete(KEY.id, A, won.fence, HOUR, b"x")) is Ack.OK


def test_a_lost_reply_is_an_outage_and_the_same_owner_gets_its_claim(store: DynamodbStore):
    from botocore.exceptions import ReadTimeoutError

    client = store._connect()
    send = client.put_item

    def cut(**arguments: Any) -> Any:
        client.put_item = send
        send(**arguments)
        raise ReadTimeoutError(endpoint_url="http://…")

    client.put_item = cut
    with pytest.raises(StoreUnavailableError) as caught:
        store.perform(ClaimRequest(KEY, A, HOUR))
    assert caught.value.retryable
    assert store.perform(ClaimRequest(KEY, B, HOUR)).verdict is Verdict.BUSY
    won = store.perform(ClaimRequest(KEY, A, HOUR))
    assert (won.verdict, won.attempt) == (Verdict.WON, 1)


class Stranger(BaseHTTPRequestHandler):
    """The login page of a network, a health page, another service: it says 200 to everything."""

    def do_POST(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("is_async", [False, True])
def test_a_stranger_who_says_yes_is_not_believed(dynamodb: Any, dynamodb_url: str, is_async: bool):
    stranger = ThreadingHTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    runs: list[str] = []
    with Proxy(dynamodb.port) as proxy:
        url = through(dynamodb_url, proxy.port)
        with AnyReceiver(url, is_async=is_async, policy=Policy(lease=30)) as receiver:
            receiver.process("first", str)
            proxy.behind = stranger.server_port
            proxy.cut()
            with pytest.raises(StoreUnavailableError, match="is not DynamoDB"):
                receiver.process("second", runs.append, "run")
        with pytest.raises(StoreUnavailableError, match="is not DynamoDB"):
            DynamodbStore.open(url)
    stranger.shutdown()
    stranger.server_close()
    assert runs == []


# --- throttling ------------------------------------------------------------------------------


def throttled(store: DynamodbStore, times: int, code: str, once: bool = False) -> list[int]:
    """DynamoDB refuses so many requests, whatever they ask."""
    from botocore.awsrequest import AWSResponse

    count = [0]

    def refuse(request: Any, **_: Any) -> Any:
        if count[0] >= times:
            return None
        count[0] += 1
        body = (
            b'{"__type":"com.amazonaws.dynamodb.v20120810#%s","message":"slow down"}'
            % code.encode()
        )
        answer = AWSResponse(request.url, 400, {"content-length": str(len(body))}, None)
        answer._content = body
        return answer

    store._connect(once).meta.events.register("before-send.dynamodb", refuse)
    return count


@pytest.mark.parametrize("code", ["ProvisionedThroughputExceededException", "RequestLimitExceeded"])
def test_throttling_that_does_not_end_is_an_outage(store: DynamodbStore, code: str):
    count = throttled(store, 1000, code)
    with pytest.raises(StoreUnavailableError, match="throttles requests") as caught:
        store.perform(ClaimRequest(KEY, A, HOUR))
    assert caught.value.retryable
    assert count == [3]


def test_short_throttling_is_not_noticed(store: DynamodbStore):
    throttled(store, 2, "ThrottlingException")
    assert store.perform(ClaimRequest(KEY, A, HOUR)).verdict is Verdict.WON


# --- the table ---------------------------------------------------------------------------------


def test_a_table_is_made_on_demand_with_a_time_to_live(dynamodb_url: str, dynamodb: Any):
    store = DynamodbStore.open(dynamodb_url)
    assert store.migrated == [
        f"created the table {table_of(store)}",
        "switched on the time to live of expired records (attribute ttl)",
    ]
    client = dynamodb.client()
    table = client.describe_table(TableName=table_of(store))["Table"]
    assert table["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    live = client.describe_time_to_live(TableName=table_of(store))["TimeToLiveDescription"]
    assert live == {"TimeToLiveStatus": "ENABLED", "AttributeName": "ttl"}
    assert [finding.level for finding in store.doctor()] == ["ok"] * 4
    assert store.migrate() == []
    store.close()


def test_a_missing_table_is_not_made_if_we_may_not(dynamodb_url: str):
    with pytest.raises(ConfigurationError, match="run twicesafe migrate"):
        DynamodbStore.open(f"{dynamodb_url}&migrate=false")


def test_a_table_that_is_deleted_meanwhile_is_an_outage(store: DynamodbStore, dynamodb: Any):
    dynamodb.client().delete_table(TableName=table_of(store))
    with pytest.raises(StoreUnavailableError, match="the table is gone"):
        store.perform(ClaimRequest(KEY, A, HOUR))


@pytest.mark.parametrize(
    "keys, kind",
    [
        ([("id", "HASH")], "S"),
        ([("pk", "HASH")], "B"),
        ([("id", "HASH"), ("sort", "RANGE")], "B"),
    ],
)
def test_a_table_with_another_key_is_refused(
    dynamodb_url: str, dynamodb: Any, keys: list[tuple[str, str]], kind: str
):
    table = Settings.of(dynamodb_url).table
    dynamodb.client().create_table(
        TableName=table,
        KeySchema=[{"AttributeName": name, "KeyType": part} for name, part in keys],
        AttributeDefinitions=[{"AttributeName": name, "AttributeType": kind} for name, _ in keys],
        BillingMode="PAY_PER_REQUEST",
    )
    with pytest.raises(ConfigurationError, match="the binary key id and no sort key"):
        DynamodbStore.open(dynamodb_url)


def test_a_table_without_a_time_to_live_gets_one_by_a_migration(dynamodb_url: str, dynamodb: Any):
    DynamodbStore.open(dynamodb_url).close()
    client, table = dynamodb.client(), Settings.of(dynamodb_url).table
    client.update_time_to_live(
        TableName=table, TimeToLiveSpecification={"Enabled": False, "AttributeName": "ttl"}
    )
    store = DynamodbStore.open(dynamodb_url)
    assert [finding.level for finding in store.doctor()][-1] == "warn"
    assert store.migrate() == ["switched on the time to live of expired records (attribute ttl)"]
    store.close()


# --- a reply that ends within its headers ----------------------------------------------------------


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_reply_that_ends_within_its_headers_is_an_outage(
    dynamodb_url: str, dynamodb: Any, kind: str
):
    """boto3 alone takes it for a reply without content: a read would find no record."""
    with Proxy(dynamodb.port) as proxy:
        url = dynamodb_url.replace(str(dynamodb.port), str(proxy.port))
        with AnyReceiver(url, is_async=kind == "async") as receiver:
            assert receiver.process("tx-1", str, "paid").value == "paid"
            outages = 0
            for after in range(20, 420, 25):
                proxy.arm(Fault("reply", after, "close"))
                try:
                    row = receiver._end(receiver.receiver.store.perform(Read(Key("tx-1").id)))
                except StoreUnavailableError:
                    outages += 1
                else:
                    assert row is not None, f"cut after {after} bytes"
                proxy.disarm()
    # aiohttp notices it, and the driver repeats the call; boto3 does not, before it has the checksum.
    assert outages == 0 if kind == "async" else outages > 0
