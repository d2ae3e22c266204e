"""D2, D3, D11, D12, D13: keys that try to meet, and text that is huge, slow to read, or more than a name."""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

import pytest

from twicesafe import ConfigurationError, InvalidKeyError, Key, Policy, Receiver
from twicesafe._values.records import State
from twicesafe.errors import StoreUnavailableError, UsageError
from twicesafe.stores._urls import identifier, mask, open_async_store, open_store, options_of
from twicesafe.stores.memory import MemoryStore

MEBIBYTE = 1 << 20
TIME_LIMIT = 20.0
"""Seconds of processor of this thread, however busy the machine is: far more than a linear reader needs for a mebibyte, far less than a backtracking one."""

PIECES = [
    "a",
    "b",
    "ab",
    "",
    "/",
    ":",
    "{",
    "}",
    "{a}",
    "\x1f",
    "a:b",
    '"',
    "\\",
    ",",
    "é",
    "e\u0301",
]


@pytest.mark.attack("D2")
def test_no_two_keys_are_glued_into_one():
    """All scopes of up to two pieces with all values: as many ids as there are keys."""
    scopes = [(), *((a,) for a in PIECES if a), *itertools.product(filter(None, PIECES), repeat=2)]
    keys = [Key(value, scope) for scope in scopes for value in PIECES if value]
    assert len({key.id for key in keys}) == len(keys) > 3000
    assert {len(key.id) for key in keys} == {32}


@pytest.mark.attack("D3", "D1")
def test_a_key_taken_in_one_scope_is_free_in_another():
    """Squatting: a caller who registers a key first, in any state, stops no other tenant."""
    store = MemoryStore()
    thief = Receiver(store, scope=("thief",), policy=Policy(in_flight="reject", max_attempts=1))
    victim = Receiver(store, scope=("victim",), policy=Policy(in_flight="reject"))

    def harm() -> str:
        assert victim.process("tx-1", lambda: "mine").value == "mine"  # while the thief is at it
        raise ConnectionError("as if by chance")

    with pytest.raises(ConnectionError):
        thief.process("tx-1", harm)
    assert thief.record("tx-1").state is State.PARKED
    assert victim.process("tx-1", lambda: "again").replayed
    assert victim.process("tx-2", lambda: "first").attempt == 1


@pytest.mark.attack("D11", "D12")
@pytest.mark.parametrize(
    "text",
    [
        "k" * 10 * MEBIBYTE,
        "\U0001f600" * MEBIBYTE,
        "a\0" * MEBIBYTE,
        " " * MEBIBYTE,
        "\ud800" * 999,
    ],
    ids=["long", "wide", "nul", "blank", "surrogates"],
)
def test_a_huge_or_odd_key_is_refused_at_once_and_shortly(text: str):
    began = time.thread_time()
    with pytest.raises(InvalidKeyError) as refused:
        Key(text)
    with pytest.raises(InvalidKeyError):
        Key("k", (text,))
    assert time.thread_time() - began < TIME_LIMIT
    assert len(str(refused.value)) < 500, "the refusal quotes it all"


@pytest.mark.attack("D11")
def test_a_hundred_thousand_keys_are_a_hundred_thousand_records_and_no_more():
    store = MemoryStore()
    with Receiver(store) as receiver:
        for start in range(0, 20_000, 1000):
            receiver.process_many(range(start, start + 1000), str, key=str)
        assert receiver.stats().total == 20_000
        assert len(receiver._runtime.flights.table) == 0, "nothing of a caller stays behind"


SLOW = ["a" * MEBIBYTE, "_" * MEBIBYTE + "!", "%41" * (MEBIBYTE // 3), "=&" * (MEBIBYTE // 16)]


@pytest.mark.attack("D12")
@pytest.mark.parametrize("text", SLOW, ids=["letters", "almost", "escapes", "pairs"])
def test_names_urls_and_options_are_read_in_linear_time(text: str):
    began = time.thread_time()
    for read in (
        lambda: identifier(text),
        lambda: mask(f"redis://u:p@{text}/"),
        lambda: options_of(f"x://h/?{text}", {"table": ""}),
        lambda: open_store(f"{text}://x"),
    ):
        try:
            read()
        except UsageError as refused:
            assert len(str(refused)) < 600  # noqa: PT017
    assert time.thread_time() - began < TIME_LIMIT


NAMES = [
    "x; drop table y", 'x"', "x'", "x`", "x--", "x/*", "x y", "1x", "X", "é", "x\0", "x" * 300, "", "x.y",
    "x%00", "../x", "pg_catalog.x;",
]  # fmt: skip
ENGINES = [
    "sqlite:///{folder}/keys.db?table={name}",
    "postgresql://127.0.0.1:1/x?table={name}",
    "postgresql://127.0.0.1:1/x?schema={name}",
    "mysql://127.0.0.1:1/x?table={name}",
    "redis://127.0.0.1:1/0?prefix={name}",
]


@pytest.mark.attack("D13")
@pytest.mark.parametrize("url", ENGINES)
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_a_name_that_is_more_than_a_name_is_refused_when_opened(
    url: str, name: str, tmp_path: Path
):
    from urllib.parse import quote

    if "prefix" in url and name in {"X", "1x", "x.y"}:
        pytest.skip("a prefix of keys, which is no part of any language")
    if "schema" in url and name == "":
        pytest.skip("no schema is the usual one")
    full = url.format(folder=tmp_path, name=quote(name, safe=""))
    for opening in (open_store, open_async_store):
        with pytest.raises((ConfigurationError, ValueError)):
            opening(full)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.attack("D13")
@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///file:keys.db?mode=memory", "sqlite:///file:/etc/passwd?mode=ro", "sqlite:///:memory:",
        "sqlite:///", "sqlite:///keys.db?mode=ro", "sqlite:///keys.db?vfs=unix-none",
    ],
)  # fmt: skip
def test_a_file_that_is_more_than_a_file_is_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    opened: list[Any] = []
    with pytest.raises(ConfigurationError):
        opened.append(open_store(url))
    assert list(tmp_path.iterdir()) == opened == []


@pytest.mark.attack("D13")
def test_a_folder_that_is_no_file_is_reported(tmp_path: Path):
    with pytest.raises((StoreUnavailableError, ConfigurationError)):
        open_store(f"sqlite:///{tmp_path}")
