"""A missing driver is one error: a `ConfigurationError` that names the pip extra, raised by `open`.

Each case runs in its own process that cannot import the driver. A driver that is imported
later than by `open` would be met inside a request: as a crash, or as an outage that never ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator

import pytest

from tests.house.imports import Package
from tests.house.repository import PACKAGE, ROOT
from tests.house.test_layers import _first, is_driver
from twicesafe._values.drivers import EXTRAS

WARM = """
import json, os, sys, traceback

class Hidden:
    def __init__(self, driver):
        self.driver = driver

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in (self.driver, self.driver + "2"):  # httpx2 stands in for httpx
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

from twicesafe import AsyncInbox, AsyncReceiver, ConfigurationError, Inbox, Outbox, OutboxRelay, Receiver
from twicesafe.outbox.publishers import open_publisher
from twicesafe.consumers.sources.nats import JetStreamSource
from twicesafe.consumers.sources.rabbitmq import RabbitSource
from twicesafe.consumers.sources.redis import RedisStreamSource

def met(statement):
    try:
        exec(statement, globals())
    except ConfigurationError as error:
        assert isinstance(error.__cause__, ImportError), error.__cause__
        return f"{type(error).__name__} {error.retryable} {error}"
    return "no error"

for line in sys.stdin:
    driver, statement = json.loads(line)
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        continue
    sys.meta_path.insert(0, Hidden(driver))
    try:
        said = met(statement)
    except BaseException:
        said = traceback.format_exc()
    os.write(1, json.dumps(said).encode() + b"\\n")
    os._exit(0)
"""
"""An interpreter that has imported what needs no driver, and forks for each case."""

CASES = [
    ("starlette", "from twicesafe.dashboard import dashboard"),
    ("jinja2", "from twicesafe.dashboard import dashboard"),
    ("redis", "Receiver.open('redis://127.0.0.1:1/0')"),
    ("redis", "AsyncReceiver.open('redis://127.0.0.1:1/0')"),
    ("redis", "Receiver.open('redis+cluster://127.0.0.1:1')"),
    ("hiredis", "AsyncReceiver.open('redis+sentinel://127.0.0.1:1/main')"),
    ("google", "Receiver.open('etcd://127.0.0.1:1/x')"),
    ("google", "AsyncReceiver.open('etcd://127.0.0.1:1/x')"),
    ("grpc", "Receiver.open('etcd://127.0.0.1:1/x')"),
    ("grpc", "AsyncReceiver.open('etcd://127.0.0.1:1/x')"),
    ("pymongo", "Receiver.open('mongodb://127.0.0.1:1/x')"),
    ("pymongo", "AsyncReceiver.open('mongodb+srv://127.0.0.1/x')"),
    ("psycopg", "Receiver.open('postgresql://127.0.0.1:1/x')"),
    ("psycopg", "AsyncReceiver.open('postgresql://127.0.0.1:1/x')"),
    ("psycopg", "Inbox.open('postgresql://127.0.0.1:1/x')"),
    ("psycopg", "AsyncInbox.open('postgresql://127.0.0.1:1/x')"),
    ("psycopg", "Outbox.open('postgresql://127.0.0.1:1/x')"),
    ("asyncpg", "AsyncReceiver.open('postgresql+asyncpg://127.0.0.1:1/x')"),
    ("pymysql", "Receiver.open('mysql://127.0.0.1:1/x')"),
    ("pymysql", "AsyncReceiver.open('mariadb://127.0.0.1:1/x')"),
    ("redis", "open_publisher('redis://127.0.0.1:1/0')"),
    ("nats", "open_publisher('nats://127.0.0.1:1')"),
    ("aio_pika", "open_publisher('amqp://127.0.0.1:1/')"),
    ("confluent_kafka", "open_publisher('kafka://127.0.0.1:1')"),
    ("boto3", "open_publisher('sqs://?region=x')"),
    ("httpx", "open_publisher('http://127.0.0.1:1/')"),
    ("redis", "RedisStreamSource.open('redis://127.0.0.1:1/0?stream=s&group=g')"),
    ("nats", "JetStreamSource.open('nats://127.0.0.1:1?stream=s&durable=d')"),
    ("aio_pika", "RabbitSource.open('amqp://127.0.0.1:1/?queue=q')"),
    ("nats", "OutboxRelay.open('sqlite:///no/such/folder/x.db', 'nats://127.0.0.1:1')"),
    (
        "confluent_kafka",
        "from twicesafe.consumers.sources.kafka import KafkaSource as S; S.open('kafka://127.0.0.1:1?topics=a&group=b')",
    ),
    (
        "boto3",
        "from twicesafe.consumers.sources.sqs import SqsSource as S; S.open('sqs://orders?region=x')",
    ),
    ("wordllama", "from twicesafe.similar import NearDuplicates as N; N(prose='meaning')"),
    ("httpx", "import twicesafe.client.httpx"),
    ("httpx2", "import twicesafe.client.httpx2"),
    ("requests", "import twicesafe.client.requests"),
    ("aiohttp", "import twicesafe.client.aiohttp"),
    ("grpc", "import twicesafe.client.grpc"),
    ("prometheus_client", "from twicesafe.observers import PrometheusObserver"),
    ("opentelemetry", "from twicesafe.observers import OpenTelemetryObserver"),
    ("celery", "import twicesafe.integrations.celery"),
    ("dramatiq", "import twicesafe.integrations.dramatiq"),
    ("rq", "import twicesafe.integrations.rq"),
    ("taskiq", "import twicesafe.integrations.taskiq"),
    ("faststream", "import twicesafe.integrations.faststream"),
    ("fastmcp", "import twicesafe.integrations.mcp"),
    ("langchain", "import twicesafe.integrations.langchain"),
    ("pydantic_ai", "import twicesafe.integrations.pydantic_ai"),
    ("agents", "import twicesafe.integrations.openai_agents"),
    ("uvicorn", "from twicesafe._proxy import run; run(None, None)"),
    ("h11", "from twicesafe._proxy import run; run(None, None)"),
]


Without = Callable[[str, str], str]


@pytest.fixture(scope="module")
def without() -> Iterator[Without]:
    words = [sys.executable, "-W", "error", "-c", WARM]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as warm:
        assert warm.stdin is not None
        assert warm.stdout is not None
        asked, answers = warm.stdin, warm.stdout

        def ask(driver: str, statement: str) -> str:
            asked.write(json.dumps([driver, statement]).encode() + b"\n")
            asked.flush()
            said: str = json.loads(answers.readline())
            return said

        yield ask


@pytest.mark.parametrize("driver, statement", CASES)
def test_a_missing_driver_is_one_error_that_names_the_extra(
    without: Without, driver: str, statement: str
):
    assert without(driver, statement) == (
        f"ConfigurationError False the package {driver} cannot be imported "
        f"(No module named {driver!r}); install it: pip install 'twicesafe[{EXTRAS[driver]}]'"
    )


@pytest.mark.parametrize(
    "driver, statement, extra",
    [
        ("boto3", "Receiver.open('dynamodb://keys?region=x')", "dynamodb"),
        ("boto3", "AsyncReceiver.open('dynamodb://keys?region=x')", "dynamodb"),
        ("aiobotocore", "AsyncReceiver.open('dynamodb://keys?region=x')", "dynamodb"),
        ("boto3", "from twicesafe.archive import Archive; Archive.open('s3://answers')", "s3"),
    ],
)
def test_a_driver_of_several_extras_names_the_one_of_its_user(
    without: Without, driver: str, statement: str, extra: str
):
    assert without(driver, statement).endswith(f"pip install 'twicesafe[{extra}]'")


@pytest.mark.parametrize("driver", ["typer", "rich"])
def test_the_command_line_says_the_same(driver: str):
    code = f"import sys; sys.modules[{driver!r}] = None; from twicesafe._cli import main; sys.exit(main(['version']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert f"the package {driver} cannot be imported" in done.stderr
    assert "pip install 'twicesafe[cli]'" in done.stderr


def test_every_extra_brings_its_drivers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    # The only driver of s3 is boto3, which is listed under sqs.
    assert set(EXTRAS.values()) | {"s3"} == set(extras)


OF_THE_USER = {
    "aiomysql", "annotationlib", "asgiref", "asyncmy", "django", "fastapi", "hypothesis",
    "pytest", "sqlalchemy", "sqlite3", "urllib3",
}  # fmt: skip
"""Their objects are handed to us, or another package brings them; some are a newer Python's own."""


def test_every_driver_has_an_extra():
    package = Package.read(PACKAGE)
    imported = {_first(found.target) for found in package.outside() if is_driver(found.target)}
    assert imported - OF_THE_USER == set(EXTRAS)
