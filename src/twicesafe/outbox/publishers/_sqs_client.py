"""Reaching SQS: the client, the addresses of queues, and what an error means.

sqs://queue?region=eu-central-1                     AWS, with the credentials that boto3 finds
sqs://queue?endpoint=http://127.0.0.1:4566&region=us-east-1      an emulator
sqs://queue?account=123456789012                    the queue of another account
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from ..._values.drivers import require
from ..._values.settings import expect, refuse_unknown
from ...errors import BrokerUnavailableError, ConfigurationError
from ._urls import driver_url

__all__ = [
    "MISSING",
    "PLACE",
    "SqsClient",
    "code_of",
    "is_fifo",
    "outage_of",
    "place_of",
    "server_of",
]

PLACE: Final = {"region": "", "endpoint": "", "account": "", "timeout": 10.0}
"""Options that say how to reach SQS; the same for a source and a publisher."""

MISSING: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})

_AWAY: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "IncompleteSignature", "InvalidClientTokenId",
     "InvalidSecurity", "KmsThrottled", "MissingAuthenticationToken", "OverLimit",
     "RequestExpired", "RequestThrottled", "SignatureDoesNotMatch", "Throttling",
     "ThrottlingException", "UnrecognizedClientException"}
)  # fmt: skip
"""Refusals that concern our credentials or the rate of requests, not a message or its queue."""

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,80}|[A-Za-z0-9_-]{1,75}\.fifo", re.ASCII)


def place_of(url: str, ours: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The queue that the URL names, or "", and its options; others are refused by name."""
    require("boto3")
    theirs, options = driver_url(url, ours)
    refuse_unknown(dict(parse_qsl(urlsplit(theirs).query)), ours, "option of an sqs URL")
    queue = urlsplit(url).netloc
    expect(not queue or _NAME.fullmatch(queue), "queue", queue, _remedy())
    return queue, options


def server_of(options: Mapping[str, Any]) -> str:
    """The URL of a publisher for any queue there."""
    given = {name: options[name] for name in ("region", "endpoint", "account") if options[name]}
    return f"sqs://?{urlencode(given)}" if given else "sqs://"


def is_fifo(queue: str) -> bool:
    return queue.endswith(".fifo")


class SqsClient:
    """A client of boto3, with the addresses of queues."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        timeout = options["timeout"]
        try:
            self.calls: Any = boto3.session.Session().client(
                "sqs",
                region_name=options["region"] or None,
                endpoint_url=options["endpoint"] or None,
                config=Config(
                    connect_timeout=timeout,
                    read_timeout=timeout,
                    retries={"total_max_attempts": 1},  # the caller retries
                    max_pool_connections=20,
                ),
            )
        except (BotoCoreError, ValueError) as error:
            raise ConfigurationError(f"boto3 refused a setting: {error}") from error
        self._account = options["account"]
        self._addresses: dict[str, str] = {}

    def address(self, queue: str) -> str:
        """The queue's URL at SQS; raises what boto3 raises, or `ValueError` for an impossible name."""
        if queue not in self._addresses:
            if not _NAME.fullmatch(queue):
                raise ValueError(f"{queue[:40]!r} cannot be the name of a queue: {_remedy()}")
            owner = {"QueueOwnerAWSAccountId": self._account} if self._account else {}
            self._addresses[queue] = self.calls.get_queue_url(QueueName=queue, **owner)["QueueUrl"]
        return self._addresses[queue]

    def forget(self, queue: str) -> None:
        self._addresses.pop(queue, None)

    def close(self) -> None:
        self.calls.close()


def _remedy() -> str:
    return "use up to 80 letters, digits, - and _; the name of a FIFO queue ends in .fifo"


def code_of(error: Exception) -> str:
    """What SQS calls its refusal; the error's class if it is not SQS's."""
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code") or type(error).__name__)


def outage_of(error: Exception) -> BrokerUnavailableError | None:
    """The outage that an error of boto3 reports; None: SQS refuses what it was asked to do."""
    from botocore import exceptions as known

    said = f"SQS cannot be used: {code_of(error)}"
    if isinstance(error, known.ParamValidationError):
        return None
    if isinstance(error, known.ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status < 500 and code_of(error) not in _AWAY:
            return None
        outage = BrokerUnavailableError(said, blames="none")
    elif isinstance(error, known.ReadTimeoutError):
        outage = BrokerUnavailableError("SQS did not answer in time")
    elif isinstance(error, known.ConnectionClosedError):
        outage = BrokerUnavailableError(said, blames="alone")
    else:  # no connection, no credentials
        outage = BrokerUnavailableError(said, blames="none")
    outage.__cause__ = error
    return outage
