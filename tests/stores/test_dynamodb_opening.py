"""Opening a DynamoDB store: its URL, and errors that say what is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.servers import free_port
from twicesafe import AsyncReceiver, ConfigurationError, Receiver, StoreUnavailableError
from twicesafe._core.driving import drive
from twicesafe._core.protocol import Survey
from twicesafe._engines.dynamodb import AsyncDynamodbStore, DynamodbStore
from twicesafe._engines.dynamodb.error_messages import explain
from twicesafe._engines.dynamodb.settings import Settings
from twicesafe._engines.dynamodb.table import KEY, TablePause, examine, migrate, prepare

ENDPOINT = "endpoint=http://127.0.0.1:1"


@pytest.fixture
def no_aws(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A machine that has no credentials, no region and no profile."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))


def open_and_use(kind: str, url: str) -> None:
    if kind == "blocking":
        DynamodbStore.open(url).close()
        return

    async def use() -> None:
        store = AsyncDynamodbStore.open(url)
        try:
            await store.perform(Survey())
        finally:
            await store.close()

    asyncio.run(use())


@pytest.mark.parametrize(
    "url, problem",
    [
        ("dynamodb://", "dynamodb://table"),
        ("dynamodb://ab", "3 to 255"),
        ("dynamodb://key:secret@keys", "AWS_ACCESS_KEY_ID"),
        ("dynamodb://keys/other", "dynamodb://table"),
        ("dynamodb://keys%20x", "3 to 255"),
        ("dynamodb://keys?regions=x", "did you mean 'region'"),
        ("dynamodb://keys?region=EU west", "eu-central-1"),
        ("dynamodb://keys?endpoint=127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("dynamodb://keys?endpoint=ftp://host", "http://127.0.0.1:8000"),
        ("dynamodb://keys?endpoint=http://u:secret@host", "without a user"),
        ("dynamodb://keys?endpoint=http://host:99999", "http://127.0.0.1:8000"),
        ("dynamodb://keys?pool=0", "1 or more"),
        ("dynamodb://keys?timeout=0", "above 0"),
        ("dynamodb://keys?skew=2h", "0 to 3600"),
    ],
)
def test_a_wrong_url_is_refused(url: str, problem: str):
    for receiver in (Receiver, AsyncReceiver):
        with pytest.raises(ConfigurationError) as caught:
            receiver.open(url)
        assert problem in str(caught.value)
        assert "secret" not in str(caught.value)


def test_the_options():
    settings = Settings.of("dynamodb://My.keys-1?region=eu-central-1&skew=2s&timeout=3&pool=7")
    assert (settings.table, settings.region, settings.skew) == ("My.keys-1", "eu-central-1", 2.0)
    assert settings.url == "dynamodb://My.keys-1"


@pytest.mark.usefixtures("no_aws")
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_no_region(kind: str):
    with pytest.raises(ConfigurationError, match=r"add \?region="):
        open_and_use(kind, "dynamodb://keys")


@pytest.mark.usefixtures("no_aws")
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_no_credentials(kind: str):
    with pytest.raises(ConfigurationError, match="AWS_ACCESS_KEY_ID"):
        open_and_use(kind, f"dynamodb://keys?region=eu-central-1&{ENDPOINT}")


@pytest.mark.usefixtures("dynamodb")
@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_no_server(kind: str):
    url = f"dynamodb://keys?region=eu-central-1&endpoint=http://127.0.0.1:{free_port()}&timeout=1"
    with pytest.raises(StoreUnavailableError, match="did not answer") as caught:
        open_and_use(kind, url)
    assert caught.value.retryable


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_a_missing_table(kind: str, dynamodb_url: str):
    with pytest.raises(ConfigurationError, match="run twicesafe migrate"):
        open_and_use(kind, f"{dynamodb_url}&migrate=false")


@pytest.mark.parametrize("kind", ["blocking", "async"])
def test_the_first_to_open_makes_the_table(kind: str, dynamodb_url: str):
    open_and_use(kind, dynamodb_url)
    open_and_use(kind, f"{dynamodb_url}&migrate=false")


def test_many_may_open_at_once(dynamodb_url: str):
    async def all_at_once() -> None:
        stores = [AsyncDynamodbStore.open(dynamodb_url) for _ in range(5)]
        await asyncio.gather(*(store.ready() for store in stores))
        await asyncio.gather(*(store.close() for store in stores))

    asyncio.run(all_at_once())


class Service:
    """Answers the calls about the table, one after the other."""

    def __init__(self, **replies: list[Any]) -> None:
        self._replies = replies
        self.asked: list[str] = []

    def perform(self, command: Any) -> Any:
        if isinstance(command, TablePause):
            return None
        self.asked.append(command.operation)
        reply = self._replies[command.operation].pop(0)
        if isinstance(reply, str):
            raise explain(ClientError({"Error": {"Code": reply}}, command.operation), "here")
        return reply


def table(status: str) -> Any:
    kinds = [{"AttributeName": "id", "AttributeType": "B"}]
    return {"Table": {"TableStatus": status, "KeySchema": KEY, "AttributeDefinitions": kinds}}


def ttl(status: str) -> Any:
    return {"TimeToLiveDescription": {"TimeToLiveStatus": status}}


GONE = "ResourceNotFoundException"


def test_a_table_that_is_being_deleted_is_made_anew():
    service = Service(
        describe_table=[table("DELETING"), GONE, GONE, table("CREATING"), table("ACTIVE")],
        create_table=[{}],
        describe_time_to_live=[ttl("ENABLED")],
    )
    done = drive(prepare(Settings.of("dynamodb://keys")), service.perform)
    assert done == ["created the table keys"]


def test_two_workers_switch_on_the_time_to_live_at_once():
    service = Service(
        describe_table=[table("ACTIVE")],
        describe_time_to_live=[ttl("DISABLED"), ttl("ENABLING")],
        update_time_to_live=["ValidationException"],
    )
    assert drive(migrate(Settings.of("dynamodb://keys")), service.perform) == []


def test_the_doctor_refuses_a_table_that_cannot_be_used():
    service = Service(
        describe_table=[table("INACCESSIBLE_ENCRYPTION_CREDENTIALS")],
        describe_time_to_live=[ttl("ENABLED")],
    )
    found = drive(examine(Settings.of("dynamodb://keys")), service.perform)
    assert found[0].level == "refuse"


def test_expired_credentials_are_an_outage_that_says_so():
    error = explain(ClientError({"Error": {"Code": "ExpiredTokenException"}}, "put_item"), "here")
    assert isinstance(error, StoreUnavailableError)
    assert "credentials have expired" in str(error)
