"""Durable runs in the dashboard: their steps, approvals, skipped steps and restarts."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.dashboard.conftest import words
from tests.dashboard.test_actions import Enter, act
from twicesafe import (
    CompensatedError,
    CompensationFailedError,
    Receiver,
    State,
    Steps,
    SuspendedError,
)
from twicesafe._core.tool_calls.rule import ToolRule
from twicesafe._edges.tool_guard import Invocation, ToolGuard
from twicesafe.dashboard import Access


@pytest.fixture
def waiting(receiver: Receiver) -> Any:
    """A run that waits for its approval."""

    @receiver.durable(key="order", scope=("shop",), policy=receiver.policy.replace(wait=0.1))
    def checkout(steps: Steps, order: str) -> Any:
        price = steps.capture("price <b>", lambda: 7)
        return [price, steps.wait("approval", timeout=3600)]

    with pytest.raises(SuspendedError):
        checkout("a")
    return checkout


async def test_the_page_of_a_run_shows_its_steps(visit: Enter, waiting: Any):
    page = await visit().get(f"/keys/{waiting.key('a').id.hex()}")
    text = words(page)
    assert "done price <b> capture 1" in text
    assert "waiting approval wait 1" in text
    assert "Signal approval" in text
    assert "Skip approval" not in text
    assert "price &lt;b&gt;" in page.text
    assert "continues where it stopped" in text


async def test_an_ordinary_key_has_no_steps(visit: Enter, receiver: Receiver):
    receiver.process("tx-1", int)
    text = words(await visit().get(f"/keys/{receiver.key('tx-1').id.hex()}"))
    assert "Steps" not in text
    assert "Restart" not in text


@pytest.mark.parametrize("value", ["true", "false"])
async def test_approve_or_refuse(visit: Enter, receiver: Receiver, waiting: Any, value: str):
    key, visitor = waiting.key("a"), visit()
    page = await visitor.get(f"/keys/{key.id.hex()}")
    assert re.findall(r'name="answer" value="(\w+)"', page.text) == ["true", "false"]
    done = await act(visitor, key, "signal", step="approval", answer=value)
    assert (done.status_code, "got the signal" in words(done)) == (200, True)
    assert "suspended until the completer or the next call continues it" in words(done)
    assert waiting("a") == [7, value == "true"]
    (entry,) = receiver.audit(key)
    assert (entry.action, entry.by, entry.state_before) == ("signal", "ana", State.SUSPENDED)
    late = await act(visitor, key, "signal", step="approval", answer="true")
    assert (late.status_code, "Nothing was changed" in words(late)) == (409, True)


async def test_a_tool_call_is_approved(visit: Enter, receiver: Receiver):
    """The page says what the model asks for, and its button lets the tool run."""
    rule = ToolRule(identity=("order_id",), approval=True)
    guard = ToolGuard(receiver, {"refund": rule}, keep=lambda result: result)
    call = Invocation(tool="refund", arguments={"order_id": "o-1", "cents": 5}, schema={})
    asked = guard.call(lambda: "refunded", call)
    assert asked.key is not None
    text = words(await visit().get(f"/keys/{asked.key.id.hex()}"))
    assert 'approve refund {"order_id":"o-1","cents":5}' in text
    await act(visit(), asked.key, "signal", step="approval", answer="true")
    assert guard.call(lambda: "refunded", call).result == "refunded"


async def test_a_form_without_its_step_changes_nothing(
    visit: Enter, receiver: Receiver, waiting: Any
):
    key, visitor = waiting.key("a"), visit()
    for fields in ({"step": "", "answer": "true"}, {"step": "approval", "answer": "yes"}):
        assert (await act(visitor, key, "signal", **fields)).status_code == 422
    assert receiver.audit(key) == []


async def test_restart(visit: Enter, receiver: Receiver, waiting: Any):
    key = waiting.key("a")
    done = await act(visit(), key, "restart")
    assert "starts from the beginning" in words(done)
    record = receiver.record(key)
    assert record is not None
    assert (record.state, record.steps) == (State.RELEASED, ())


async def test_skip_an_undo(visit: Enter, receiver: Receiver):
    def undo(value: str) -> None:
        raise ConnectionError

    @receiver.durable(key="order", scope=("shop",))
    def checkout(steps: Steps, order: str) -> None:
        steps.run("charge", lambda: "ch_1", undo=undo)
        steps.abort("refused")

    with pytest.raises(CompensationFailedError):
        checkout("a")
    key, visitor = checkout.key("a"), visit()
    assert "Skip charge" in words(await visitor.get(f"/keys/{key.id.hex()}"))
    done = await act(visitor, key, "skip", step="charge")
    assert (done.status_code, "continues without the step" in words(done)) == (200, True)
    with pytest.raises(CompensatedError):
        checkout("a")


async def test_a_reader_sees_the_steps_and_cannot_act(visit: Enter, waiting: Any):
    visitor = visit(Access(level="read-only", show_keys=True))
    page = await visitor.get(f"/keys/{waiting.key('a').id.hex()}")
    assert "waiting approval" in words(page)
    assert "Approve" not in words(page)
    refused = await visitor.send(
        f"/keys/{waiting.key('a').id.hex()}/signal", "/keys", step="approval", answer="true"
    )
    assert refused.status_code == 403


@pytest.mark.parametrize("name", ["restart", "signal", "skip"])
async def test_acts_of_runs_are_for_one_key_only(visit: Enter, name: str):
    assert (await visit().get(f"/actions/{name}")).status_code == 404
