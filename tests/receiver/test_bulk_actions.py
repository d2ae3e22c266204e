"""Acts on records that were listed before: whatever happens in between, no run loses its claim."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twicesafe import Key, Policy, Receiver, Record, State
from twicesafe._core.bulk_actions import ActionResult, act_on_listed
from twicesafe._core.protocol import Read
from twicesafe._engines.sqlite import SqliteStore
from twicesafe.errors import LeaseLostError
from twicesafe.testing import FakeClock

KEY = Key("tx-1", absolute=True)
Request = Callable[[Receiver, Record], Any]

REQUESTS: dict[str, Request] = {
    "release": lambda to, record: to._release(KEY, "ana", "", False, record.fence, True),
    "forced": lambda to, record: to._release(KEY, "ana", "", True, record.fence, True),
    "resolve": lambda to, record: to._resolve(KEY, 7, "ana", "", Any, record.fence, True),
    "forget": lambda to, record: to._forget(KEY, "ana", ""),
}


@pytest.fixture
def receiver(tmp_path: Any) -> Any:
    clock = FakeClock()
    store = SqliteStore(str(tmp_path / "keys.db"), synchronous="normal", now=clock)
    with Receiver(store, policy=Policy(in_flight="reject")) as made:
        made.clock = clock  # type: ignore[attr-defined]
        yield made


def listed(receiver: Receiver) -> Record:
    (record,) = receiver.records()
    return record


def held(receiver: Receiver) -> Record:
    with receiver.options(policy=Policy(takeover="hold")).claim(KEY) as claim:
        claim.hold("ConnectionError")
    return listed(receiver)


def raced(
    receiver: Receiver, record: Record, request: Request, meanwhile: Any
) -> tuple[ActionResult, str]:
    """`meanwhile` happens after the last look and before the act."""
    flow = act_on_listed(record, request(receiver, record))
    answer, looked = None, False
    try:
        while True:
            command = flow.send(answer)
            if looked and not isinstance(command, Read):
                meanwhile, now = (lambda: None), meanwhile
                now()
            looked = True
            answer = receiver._runtime.store.perform(command)
    except StopIteration as end:
        result: tuple[ActionResult, str] = end.value
        return result


@pytest.mark.parametrize("name", REQUESTS)
def test_what_is_as_it_was_listed_is_changed(receiver: Receiver, name: str):
    fate, _ = raced(receiver, held(receiver), REQUESTS[name], lambda: None)
    assert fate is ActionResult.DONE
    assert listed(receiver).state is not State.HELD


@pytest.mark.parametrize("name", REQUESTS)
def test_a_run_that_starts_right_before_the_act_keeps_its_claim(receiver: Receiver, name: str):
    record = held(receiver)
    claim = receiver.claim(KEY)

    def another_operator_and_a_worker() -> None:
        receiver.release(KEY, by="ben")
        claim.__enter__()

    fate, why = raced(receiver, record, REQUESTS[name], another_operator_and_a_worker)
    assert (fate, why) == (
        ActionResult.CHANGED,
        "it is in_progress now: it changed since it was listed",
    )
    claim.complete("paid")
    claim.__exit__(None, None, None)
    assert receiver.process(KEY, str).value == "paid"


@pytest.mark.parametrize("name", ["release", "forced", "resolve"])
def test_an_answer_of_another_operator_stays(receiver: Receiver, name: str):
    record = held(receiver)
    fate, _ = raced(receiver, record, REQUESTS[name], lambda: receiver.resolve(KEY, 1, by="ben"))
    assert fate is ActionResult.CHANGED
    assert receiver.process(KEY, str).value == 1


@pytest.mark.parametrize("name", ["release", "resolve"])
def test_work_in_progress_is_touched_only_if_its_lease_is_over(receiver: Receiver, name: str):
    with receiver.claim(KEY) as claim:
        record = listed(receiver)
        fate, why = raced(receiver, record, REQUESTS[name], lambda: None)
        assert (fate, "a worker is running it" in why) == (ActionResult.REFUSED, True)
        receiver.clock.advance(60)  # type: ignore[attr-defined]
        fate, _ = raced(receiver, record, REQUESTS[name], lambda: None)
        assert fate is ActionResult.DONE
        with pytest.raises(LeaseLostError):
            claim.complete("late")


def test_what_is_gone_or_forgotten_is_said(receiver: Receiver):
    record = held(receiver)
    receiver.forget(KEY)
    forgotten = listed(receiver)
    assert raced(receiver, record, REQUESTS["release"], lambda: None)[0] is ActionResult.CHANGED
    assert list(act_on_listed(forgotten, None)) == []
    receiver.clock.advance(40 * 86400)  # type: ignore[attr-defined]
    receiver.sweep()
    assert raced(receiver, record, REQUESTS["release"], lambda: None)[0] is ActionResult.GONE


@pytest.mark.parametrize("verb", REQUESTS)
@pytest.mark.parametrize("scope", ["twicesafe", "twicesafe.regions", "twicesafe.follow"])
def test_what_twicesafe_keeps_for_itself_is_not_changed_with_others(
    receiver: Receiver, verb: str, scope: str
):
    """A register whose epochs are forgotten has no region for a home."""
    receiver.process(Key("eu", (scope, "homes"), absolute=True), lambda: 1)
    before = listed(receiver)
    flow = act_on_listed(before, REQUESTS[verb](receiver, before))
    fate, why = receiver._runtime.run(flow)
    assert (fate, "name this key alone" in why) == (ActionResult.REFUSED, True)
    assert listed(receiver) == before
