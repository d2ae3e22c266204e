"""The table: created by `open` or ``twicesafe migrate``, checked at every opening.

One key attribute, ``id`` (binary), on-demand billing, and a time to live in ``ttl``. A table with
another key is refused: DynamoDB would find other records in it, or none.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from ...errors import ConfigurationError, StoreError, StoreUnavailableError
from ...stores._base import Finding, Program
from .error_messages import code_of
from .items import BotoCall
from .settings import Settings

__all__ = ["TablePause", "examine", "migrate", "prepare"]

KEY: Final = [{"AttributeName": "id", "KeyType": "HASH"}]
TTL: Final = {"Enabled": True, "AttributeName": "ttl"}
MOST_LOOKS: Final = 120
"""Times that a table in the making is looked at."""


class TablePause(NamedTuple):
    """Wait; the reply is None."""

    seconds: float


def prepare(settings: Settings) -> Program[list[str]]:
    """Check the table; create it if it is missing and we may."""
    done: list[str] = []
    for _ in range(MOST_LOOKS):
        table = yield from _describe()
        if table is None and not done:  # also one that was being deleted
            if not settings.migrate:
                raise ConfigurationError(
                    f"there is no table {settings.table}, and migrate=false: run twicesafe migrate"
                )
            yield from _create()
            done = [f"created the table {settings.table}"]
        elif table is None or table["TableStatus"] in ("CREATING", "DELETING"):
            yield TablePause(0.5)
        else:
            break
    else:
        raise StoreUnavailableError(
            f"the table {settings.table} is still being created or deleted; try again"
        )
    if done:
        done += yield from _enable_ttl()
    _check_key(table, settings)
    return done


def migrate(settings: Settings) -> Program[list[str]]:
    """As `prepare`; a table without a time to live gets one."""
    done = yield from prepare(settings)
    return done or (yield from _enable_ttl())


def _describe() -> Program[Any]:
    try:
        return (yield BotoCall("describe_table", {}))["Table"]
    except StoreError as error:
        if error.__cause__ is not None and code_of(error.__cause__) == "ResourceNotFoundException":
            return None
        raise


def _create() -> Program[None]:
    try:
        yield BotoCall(
            "create_table",
            {
                "KeySchema": KEY,
                "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "B"}],
                "BillingMode": "PAY_PER_REQUEST",
            },
        )
    except StoreError as error:
        if error.__cause__ is None or code_of(error.__cause__) != "ResourceInUseException":
            raise  # else another worker creates it, too


def _enable_ttl() -> Program[list[str]]:
    """Tables with strong consistency across regions have no time to live; nothing depends on it."""
    if not (yield from _lacks_ttl()):
        return []
    try:
        yield BotoCall("update_time_to_live", {"TimeToLiveSpecification": TTL})
    except StoreUnavailableError:
        raise
    except StoreError as error:
        if not (yield from _lacks_ttl()):
            return []  # another worker was faster
        return [f"no time to live: {error}"]
    return ["switched on the time to live of expired records (attribute ttl)"]


def _lacks_ttl() -> Program[bool]:
    found = yield BotoCall("describe_time_to_live", {})
    return bool(found["TimeToLiveDescription"]["TimeToLiveStatus"] == "DISABLED")


def _check_key(table: Any, settings: Settings) -> None:
    kinds = {each["AttributeName"]: each["AttributeType"] for each in table["AttributeDefinitions"]}
    if table["KeySchema"] != KEY or kinds.get("id") != "B":
        found = ", ".join(
            f"{each['AttributeName']} ({kinds.get(each['AttributeName'], '?')})"
            for each in table["KeySchema"]
        )
        raise ConfigurationError(
            f"the table {settings.table} has the key {found}; a table of twicesafe has the binary key id "
            "and no sort key: use a separate table for the store"
        )


# --- the doctor ------------------------------------------------------------------------------


def examine(settings: Settings) -> Program[list[Finding]]:
    table = (yield BotoCall("describe_table", {}))["Table"]
    live = (yield BotoCall("describe_time_to_live", {}))["TimeToLiveDescription"]
    _check_key(table, settings)
    return [*_judge(table), _judge_ttl(live)]


def _judge(table: Any) -> Iterator[Finding]:
    status = table["TableStatus"]
    if status in ("ACTIVE", "UPDATING"):
        yield Finding("ok", f"the table is {status.lower()}")
    else:
        yield Finding(
            "refuse",
            f"the table is {status.lower()}: it can be neither read nor written",
            "look at it in the AWS console",
        )
    mode = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        yield Finding("ok", "on-demand billing")
    else:
        yield Finding(
            "warn", "provisioned capacity: above it, claims are refused", "use on-demand billing"
        )
    if not table.get("Replicas"):
        yield Finding("ok", "one region")
    elif table.get("MultiRegionConsistency") == "STRONG":
        yield Finding("ok", "several regions, strong consistency")
    else:
        yield Finding(
            "refuse",
            "a global table with eventual consistency: two regions can each win a claim of one key",
            "use one region, or a table with multi-region strong consistency",
        )


def _judge_ttl(live: Any) -> Finding:
    if live["TimeToLiveStatus"] in ("ENABLED", "ENABLING"):
        if live.get("AttributeName") == TTL["AttributeName"]:
            return Finding("ok", "time to live on ttl: DynamoDB deletes expired records")
        return Finding(
            "warn",
            f"the time to live is on {live.get('AttributeName')}: expired records stay",
            "switch it to the attribute ttl",
        )
    return Finding(
        "warn",
        "no time to live: expired records stay until a sweep, which reads the whole table",
        "run twicesafe migrate",
    )
