"""boto3's client for this store, and what it shares with the async one."""

from __future__ import annotations

import functools
from email.utils import parsedate_to_datetime
from typing import Any, Final, TypeAlias

from ..._version import __version__
from ...errors import ConfigurationError, StoreUnavailableError
from ..versioned.lease_watch import GivenClock, ServiceClock
from .error_messages import CONFLICTED, REFUSED, code_of, explain
from .items import CONFLICT, BotoCall, ConditionFailed
from .settings import Settings

__all__ = [
    "arguments",
    "config",
    "connect",
    "place",
    "read_date",
    "received",
    "refused",
    "settings_refused",
    "with_models",
]

Clock: TypeAlias = ServiceClock | GivenClock

ATTEMPTS: Final = 3
"""Of one call: repeating is safe, and most throttling is over by then."""


def arguments(settings: Settings, call: BotoCall) -> dict[str, Any]:
    return {"TableName": settings.table, **call.arguments}


def config(settings: Settings, once: bool, agent: str) -> dict[str, Any]:
    """The arguments of botocore's Config, blocking or async. ``once``: it repeats no call. ``agent``: the
    user agent of the driver."""
    attempts = 1 if once else ATTEMPTS
    return {
        "connect_timeout": settings.timeout / attempts,
        "read_timeout": settings.timeout / attempts,
        "retries": {"mode": "standard", "total_max_attempts": attempts},
        "max_pool_connections": settings.pool,
        "parameter_validation": False,  # we build them, and the service checks them too
        # Given once: botocore would build it for every call, which is a tenth of the call's work.
        "user_agent": f"twicesafe/{__version__} {agent}",
    }


def place(settings: Settings) -> dict[str, Any]:
    return {
        "region_name": settings.region or None,
        "endpoint_url": settings.endpoint or None,
    }


def connect(settings: Settings, once: bool) -> Any:
    """A client, for all threads of this process. It does not connect yet."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError
    from botocore.session import get_session

    try:
        inner = with_models(get_session())
        session = boto3.session.Session(botocore_session=inner)
        chosen = Config(**config(settings, once, inner.user_agent()))
        return session.client("dynamodb", **place(settings), config=chosen)
    except (BotoCoreError, ValueError) as error:
        raise settings_refused(error, settings) from error


def with_models(session: Any) -> Any:
    """All sessions of a process share what they read from botocore's files: it takes 60 ms to parse."""
    session.register_component("data_loader", _loader(session.get_config_variable("data_path")))
    return session


@functools.cache
def _loader(folders: str | None) -> Any:
    from botocore.loaders import create_loader

    return create_loader(folders)


def settings_refused(error: Exception, settings: Settings) -> Exception:
    if code_of(error) == "ValueError":
        return ConfigurationError(f"{settings.url}: boto3 refuses a setting: {error}")
    return explain(error, settings.url)


def received(reply: Any, settings: Settings, clock: Clock, sent: int) -> Any:
    """The reply, if it is whole and DynamoDB's.

    boto3 takes any page with status 200 for a success without content: a claim would be won without a record.
    """
    if not reply["ResponseMetadata"].get("RequestId"):
        raise StoreUnavailableError(
            f"the server of {settings.url} is not DynamoDB: its reply has no request id; the outcome is "
            "unknown; check the endpoint, and any proxy on the way"
        )
    _read_headers(reply, settings, clock, sent)
    return reply


def refused(error: Exception, settings: Settings, clock: Clock, sent: int) -> ConditionFailed:
    """The reply of a write whose condition did not hold; raises our error for any other error."""
    response: dict[str, Any] = getattr(error, "response", None) or {}
    if response:
        _read_headers(response, settings, clock, sent)
    code = code_of(error)
    if code == REFUSED:
        return ConditionFailed(response.get("Item"))
    if code == CONFLICTED:
        return CONFLICT
    raise explain(error, settings.url) from error


def _read_headers(response: dict[str, Any], settings: Settings, clock: Clock, sent: int) -> None:
    """Read the service's time from a reply; raise if the reply ended before its time.

    If a connection ends within the headers, `http.client` takes that for their end, and boto3 for a
    reply without content: a read would find no record, a refused write no item. The body is safe: its
    length is checked below us, if the headers tell it.
    """
    headers = response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    if not headers.get("content-length", "").isdigit() and "transfer-encoding" not in headers:
        raise StoreUnavailableError(
            f"{settings.url} ended the connection in the middle of a reply; the outcome is unknown"
        )
    read_date(clock, headers.get("date"), sent)


def read_date(clock: Clock, date: str | None, sent: int) -> None:
    """The Date of a reply: the service's time was in that second."""
    second = _second(date or "")
    if second:
        clock.observed(second, second + 1000, sent)


@functools.lru_cache(8)
def _second(date: str) -> int:
    try:
        return int(parsedate_to_datetime(date).timestamp()) * 1000
    except ValueError:
        return 0
