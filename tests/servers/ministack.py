"""SQS, DynamoDB and S3 from a wheel (`ministack`): an emulator of AWS in one process. It keeps nothing when it ends."""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import urllib.request
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tests.servers.process import NoServerError, Server


class Ministack(Server):
    """SQS."""

    name = "ministack"
    service = "sqs"

    def __init__(self) -> None:
        if importlib.util.find_spec("ministack") is None:
            raise NoServerError("the wheel ministack is not installed")
        super().__init__()
        self._numbers = itertools.count(1)
        self._client: Any = None
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.url = f"sqs://?region=us-east-1&endpoint={self.endpoint}"
        # boto3 signs every request; the emulator accepts any signature.
        os.environ.setdefault("AWS_ACCESS_KEY_ID", "test")
        os.environ.setdefault("AWS_SECRET_ACCESS_KEY", "test")

    def command(self) -> Sequence[str]:
        settings = {
            "BIND_HOST": "127.0.0.1",  # it would listen everywhere
            "GATEWAY_PORT": str(self.port),
            "LOG_LEVEL": "WARNING",
            "SERVICES": self.service,
            "HOME": str(self.folder),
            "S3_DATA_DIR": str(self.folder / "s3"),
        }
        words = [f"{name}={value}" for name, value in settings.items()]
        return ["env", *words, sys.executable, "-m", "ministack"]

    def answers(self) -> bool:
        with urllib.request.urlopen(f"{self.endpoint}/_ministack/health", timeout=2) as answer:
            return bool(answer.status == 200)

    def client(self) -> Any:
        import boto3

        if self._client is None:
            self._client = boto3.session.Session().client(
                self.service, region_name="us-east-1", endpoint_url=self.endpoint
            )
        return self._client

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """A URL with a prefix of queues that no other test uses."""
        yield f"{self.url}&prefix=t{next(self._numbers)}_{uuid.uuid4().hex[:6]}-"


class Dynamodb(Ministack):
    name = "dynamodb"
    service = "dynamodb"

    def __init__(self) -> None:
        super().__init__()
        self.url = self.table_url("twicesafe")

    def table_url(self, table: str) -> str:
        """The URL of a store in this table."""
        return f"dynamodb://{table}?region=us-east-1&endpoint={self.endpoint}&timeout=120"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a store whose table does not exist yet; it is removed afterwards."""
        table = f"t{next(self._numbers)}_{uuid.uuid4().hex[:6]}"
        yield self.table_url(table)
        with suppress(self.client().exceptions.ResourceNotFoundException):
            self.client().delete_table(TableName=table)


class S3(Ministack):
    name = "s3"
    service = "s3"

    def __init__(self) -> None:
        super().__init__()
        self.url = self.place("twicesafe")

    def place(self, bucket: str) -> str:
        """The URL of an archive in this bucket."""
        return f"s3://{bucket}/answers?region=us-east-1&endpoint={self.endpoint}"

    @contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of an archive in a bucket of its own."""
        bucket = f"t{next(self._numbers)}-{uuid.uuid4().hex[:6]}"
        self.client().create_bucket(Bucket=bucket)
        yield self.place(bucket)
