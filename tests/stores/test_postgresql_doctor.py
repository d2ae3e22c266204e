"""The doctor on generations: it warns when they stop turning, since nothing else would."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import psycopg
import pytest

from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest, Sweep
from twicesafe._engines.postgresql import PostgresStore
from twicesafe._engines.postgresql.async_store import AsyncpgStore, AsyncPostgresStore
from twicesafe._engines.postgresql.settings import Settings
from twicesafe.stores._base import Finding

HOUR = 3600


def of_generations(findings: list[Finding]) -> Finding:
    [one] = [finding for finding in findings if "generation" in finding.what]
    return one


def made_older(url: str, hours: float) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "UPDATE twicesafe_meta SET opened_at = opened_at - %s", (round(hours * HOUR * 1000),)
        )


def test_a_generation_that_is_not_turned_is_a_warning_until_a_sweep(postgres_url: str):
    store = PostgresStore(replace(Settings.of(postgres_url), generations=float(HOUR)))
    store.perform(Sweep(100))
    assert of_generations(store.doctor()).level == "ok"
    made_older(postgres_url, 1.9)
    assert of_generations(store.doctor()).level == "ok"
    made_older(postgres_url, 1.2)
    late = of_generations(store.doctor())
    assert late.level == "warn"
    assert "3.1 periods old" in late.what
    assert "maintain" in late.remedy
    store.perform(Sweep(100))
    assert of_generations(store.doctor()).level == "ok"
    store.close()


def test_one_that_was_never_swept_is_as_old_as_its_records(postgres_url: str):
    store = PostgresStore(replace(Settings.of(postgres_url), generations=float(HOUR)))
    assert of_generations(store.doctor()).level == "ok"
    store.perform(ClaimRequest(Key("k"), b"o" * 16, 1000))
    assert of_generations(store.doctor()).level == "ok"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("UPDATE twicesafe_generations SET created_at = changed_at - 9000000")
    late = of_generations(store.doctor())
    assert (late.level, late.what[:40]) == ("warn", "the current generation is 2.5 periods ol")
    store.close()


@pytest.mark.parametrize("cls", [AsyncPostgresStore, AsyncpgStore])
async def test_the_async_store_says_the_same(postgres_url: str, cls: Any):
    store = cls(replace(Settings.of(postgres_url), generations=float(HOUR)))
    await store.perform(Sweep(100))
    assert of_generations(await store.doctor()).level == "ok"
    made_older(postgres_url, 5)
    assert of_generations(await store.doctor()).level == "warn"
    await store.close()


def test_without_generations_there_is_nothing_to_say(postgres_url: str):
    store = PostgresStore(Settings.of(postgres_url))
    assert not any("generation" in finding.what for finding in store.doctor())
    store.close()
