"""The suite for sources rejects broken ones, each by the rule that is meant for it; and not the right one."""

from __future__ import annotations

import importlib.util
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from twicesafe.testing import ConsumerConformance

SPOOL = Path(__file__).parents[2] / "examples" / "twicesafe-spool" / "twicesafe_spool.py"


@pytest.fixture(scope="module")
def spool() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("spool_for_the_suite", SPOOL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


class OnSpool(ConsumerConformance):
    breaks = restarts = False

    def __init__(self, spool: ModuleType, root: Path, wrong: Any) -> None:
        self.kind = type("Wrong", (spool.SpoolSource,), wrong)
        self.spool, self.root = spool, root

    def open_source(self) -> Any:
        return self.kind(self.root, "orders", ack_wait=0.5)

    def publisher_url(self) -> Any:
        return self.spool.SpoolPublisher(self.root)

    def topic(self) -> str:
        return "orders"

    def unsettled(self) -> int:
        return sum(1 for each in ("ready", "held") for _ in (self.root / "orders" / each).iterdir())


def acknowledges_at_its_end(spool: ModuleType) -> dict[str, Any]:
    """What it had fetched is lost."""

    def fetch(self: Any, most: int, seconds: float) -> Any:
        found = spool.SpoolSource.fetch(self, most, seconds)
        self.mine = [*getattr(self, "mine", ()), *(one.receipt for one in found)]
        return found

    return {"fetch": fetch, "close": lambda self: self.acknowledge(self.mine)}


def gives_back_the_first_only(spool: ModuleType) -> dict[str, Any]:
    right = spool.SpoolSource.give_back
    return {"give_back": lambda self, receipts, seconds: right(self, receipts[:1], seconds)}


def extends_the_first_only(spool: ModuleType) -> dict[str, Any]:
    right = spool.SpoolSource.extend
    return {"extend": lambda self, receipts: right(self, receipts[:1])}


def hands_out_backwards(spool: ModuleType) -> dict[str, Any]:
    right = spool.SpoolSource.fetch
    return {"fetch": lambda self, most, seconds: right(self, most, seconds)[::-1]}


def looks_then_takes(spool: ModuleType) -> dict[str, Any]:
    """Two steps where there must be one."""
    both_look = threading.Barrier(2)

    def hold(self: Any, path: Path) -> Any:
        name, _, count = path.name.rpartition(".")
        with spool.gone:
            text = path.read_bytes()
            if not vars(self).setdefault("waited", False):
                self.waited = True
                both_look.wait(60)
            mine = self.held / f"{name}.{int(count) + 1}"
            mine.write_bytes(text)
            path.unlink(missing_ok=True)
            given = json.loads(text) | {"body": b"", "deliveries": int(count) + 1, "position": name}
            return [spool.Received(spool.Message(**given), mine.name)]
        return []

    return {"_hold": hold}


def has_its_own_scope(_: ModuleType) -> dict[str, Any]:
    return {"scope": lambda self, _: (str(id(self)),)}


def has_no_scope(_: ModuleType) -> dict[str, Any]:
    return {"scope": lambda _self, _topic: ()}


BROKEN = [
    (acknowledges_at_its_end, "test_what_a_closed_consumer_held_comes_to_another", "never came"),
    (gives_back_the_first_only, "test_several_messages_are_given_back_at_once", "2 of 3 never"),
    (extends_the_first_only, "test_a_message_that_is_extended_goes_to_no_other", "is extended"),
    (hands_out_backwards, "test_messages_of_a_key_come_in_their_order", "At index 0"),
    (looks_then_takes, "test_a_message_has_one_first_delivery", "first delivery of"),
    (has_its_own_scope, "test_the_members_of_a_group_have_one_scope", "== "),
    (has_no_scope, "test_the_members_of_a_group_have_one_scope", "without a scope"),
]


@pytest.mark.parametrize("wrong, rule, why", BROKEN, ids=[w.__name__ for w, *_ in BROKEN])
def test_a_broken_source_is_rejected(
    wrong: Any, rule: str, why: str, spool: ModuleType, tmp_path: Path, monkeypatch: Any
) -> None:
    right, broken = tmp_path / "right", tmp_path / "broken"
    getattr(OnSpool(spool, right, {}), rule)()
    monkeypatch.setattr(OnSpool, "seconds", 2.0)  # what is lost never comes
    with pytest.raises(AssertionError, match=why):
        getattr(OnSpool(spool, broken, wrong(spool)), rule)()
