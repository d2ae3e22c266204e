"""Tool calls apart from any framework: keys, the states of a call, unknown outcomes, approval."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from twicesafe import AsyncReceiver, Policy, Receiver, State, current_key
from twicesafe._core.tool_calls.answers import ToolAnswer
from twicesafe._core.tool_calls.identity import approval_key, normalised
from twicesafe._core.tool_calls.rule import Done, NotDone, ToolCall, ToolRule, check_rules
from twicesafe._edges.tool_guard import Invocation, ToolGuard
from twicesafe.errors import (
    ConfigurationError,
    InvalidKeyError,
    StoreError,
    StoreUnavailableError,
    UnsupportedByStoreError,
)
from twicesafe.stores import Capabilities
from twicesafe.stores.memory import MemoryStore
from twicesafe.testing import FakeClock

SCHEMA = {
    "properties": {
        "order_id": {"type": "string"},
        "cents": {"type": "integer"},
        "currency": {"type": "string", "default": "EUR"},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    }
}
ORDER = {"order_id": "o-1", "cents": 500}


def asked(arguments: dict[str, Any] = ORDER, **about: Any) -> Invocation:
    return Invocation(tool="charge", arguments=arguments, schema=SCHEMA, **about)


class Bank:
    """A blocking bench: a tool whose effect is counted, and a clock that moves when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, policy: Policy | None = None) -> None:
        self.clock = FakeClock()
        monkeypatch.setattr("twicesafe._edges.tool_guard.wall_clock", self.clock)
        self.receiver = Receiver(
            MemoryStore(now=self.clock), policy=policy or Policy(wait=0), scope=("shop",)
        )
        self.charged: list[str] = []
        self.trouble: BaseException | None = None
        """What the next charge raises, after its effect."""
        self.before: BaseException | None = None
        """What the next charge raises, before its effect."""

    def guard(self, rule: ToolRule, **settings: Any) -> ToolGuard[Receiver]:
        return ToolGuard(self.receiver, {"charge": rule}, keep=lambda result: result, **settings)

    def charge(self, rule: ToolRule, /, **changes: Any) -> ToolAnswer:
        given = {**ORDER, **changes}
        about = {name: given.pop(name, None) for name in ("key", "principal", "run")}
        return self.guard(rule).call(lambda: self._charge(given), asked(given, **about))

    def _charge(self, given: dict[str, Any]) -> str:
        before, self.before = self.before, None
        if before is not None:
            raise before
        self.charged.append(given["order_id"])
        trouble, self.trouble = self.trouble, None
        if trouble is not None:
            raise trouble
        return f"ch-{len(self.charged)}"

    def state(self, answer: ToolAnswer) -> State | None:
        assert answer.key is not None
        record = self.receiver.record(answer.key)
        return None if record is None else record.state


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> Iterator[Bank]:
    made = Bank(monkeypatch)
    with made.receiver:
        yield made


RULE = ToolRule(identity=("order_id",), prose=("note",))


# -- one operation, however it is written -----------------------------------------------------


def test_a_repeat_gets_the_recorded_result_and_a_note(bank: Bank) -> None:
    assert bank.charge(RULE).result == "ch-1"
    again = bank.charge(RULE)
    assert (again.state, again.result, bank.charged) == ("replayed", "ch-1", ["o-1"])
    assert "already done at 2023-11-14T22:13:20+00:00" in again.text
    assert "Do not call it again" in again.text
    assert again.meta["dev.twicesafe/replayed"] is True


@pytest.mark.parametrize(
    "changes",
    [
        {"cents": 500.0},
        {"cents": "500"},
        {"cents": "500.0"},
        {"note": "Charge the customer, please"},
        {"note": None},
        {"currency": "EUR"},
    ],
    ids=["float", "quoted", "both", "reworded", "null", "default"],
)
def test_the_same_operation_in_other_words(bank: Bank, changes: dict[str, Any]) -> None:
    bank.charge(RULE)
    assert bank.charge(RULE, **changes).state == "replayed"
    assert bank.charged == ["o-1"]


def test_composed_and_decomposed_letters_are_one_identity(bank: Bank) -> None:
    bank.charge(RULE, order_id="caf\u00e9")
    assert bank.charge(RULE, order_id="cafe\u0301").state == "replayed"


def test_what_is_normalised() -> None:
    given = {"cents": "12", "order_id": "12", "more": {"x": None, "y": [1.0, 1.5]}, "note": None}
    assert normalised(given, SCHEMA) == {
        "cents": 12,
        "order_id": "12",
        "currency": "EUR",
        "more": {"y": [1, 1.5]},
    }
    assert normalised({"cents": "twelve"}, {"properties": {"cents": {"type": "integer"}}}) == {
        "cents": "twelve"
    }


def test_other_arguments_under_the_same_identity_are_refused_by_name(bank: Bank) -> None:
    bank.charge(RULE)
    other = bank.charge(RULE, cents=900)
    assert (other.state, other.fields, bank.charged) == ("mismatch", ("cents",), ["o-1"])
    assert "(different: cents)" in other.text


@pytest.mark.parametrize("part", ["principal", "run", "key"])
def test_another_principal_run_or_key_is_another_operation(bank: Bank, part: str) -> None:
    states = [bank.charge(RULE, **{part: value}).state for value in ("a", "b", "a", None)]
    assert states == ["done", "done", "replayed", "done"]


@pytest.mark.parametrize("about", ["principal", "run"])
def test_an_object_cannot_say_whose_call_it_is(bank: Bank, about: str) -> None:
    """Its text has an address, so each repeat was a call of its own."""
    for id_ in (7, UUID(int=7)):
        for _ in range(2):
            bank.charge(RULE, **{about: id_})
    assert len(bank.charged) == 2
    with pytest.raises(ConfigurationError, match=f"{about}= returned a value of type object"):
        bank.charge(RULE, **{about: object()})
    assert len(bank.charged) == 2


def test_a_long_principal_still_makes_a_key(bank: Bank) -> None:
    assert bank.charge(RULE, principal="p" * 1000).state == "done"
    assert bank.charge(RULE, principal="p" * 1000).state == "replayed"
    assert bank.charge(RULE, principal="p" * 999).state == "done"


def test_the_same_call_is_a_new_one_after_its_retention(bank: Bank) -> None:
    bank.charge(RULE)
    bank.clock.advance(12 * 3600 + 1)
    assert bank.charge(RULE).result == "ch-2"


def test_a_rule_without_identity_needs_a_key(bank: Bank) -> None:
    rule = ToolRule()
    refused = bank.charge(rule)
    assert (refused.state, bank.charged) == ("not_done", [])
    assert "needs a key with every call" in refused.text
    assert bank.charge(rule, key="k-1").state == "done"
    assert bank.charge(rule, key="k-1").state == "replayed"


def test_a_call_without_its_identity_is_refused(bank: Bank) -> None:
    rule = ToolRule(identity=("note",))
    refused = bank.charge(rule, note=None)
    assert (refused.state, bank.charged) == ("not_done", [])
    assert "pass a value for note" in refused.text


def test_in_the_tool_the_current_key_is_the_calls(bank: Bank) -> None:
    seen: list[Any] = []
    answer = bank.guard(RULE).call(lambda: seen.append(current_key()), asked())
    assert seen == [answer.key]
    assert current_key() is None


# -- how a tool ends --------------------------------------------------------------------------


def test_after_nothing_was_done_the_model_may_correct_its_arguments(bank: Bank) -> None:
    bank.before = NotDone("500 is more than the limit")
    assert bank.charge(RULE).text == "Nothing was done by charge: 500 is more than the limit."
    assert bank.charge(RULE, cents=400).state == "done"
    assert bank.charge(RULE, cents=400).state == "replayed"
    assert bank.charge(RULE).state == "mismatch"


def test_an_error_that_the_rule_lists_means_that_nothing_was_done(bank: Bank) -> None:
    bank.before = LookupError("no such order")
    with pytest.raises(LookupError):
        bank.charge(ToolRule(identity=("order_id",), not_done=(LookupError,)))
    assert bank.charge(RULE).state == "done"


def test_any_other_error_holds_the_key(bank: Bank) -> None:
    bank.trouble = ConnectionResetError("the bank hung up")
    first = bank.charge(RULE)
    assert (first.state, bank.state(first)) == ("unknown", State.HELD)
    record = bank.receiver.record(first.key)  # type: ignore[arg-type]
    assert record is not None
    assert record.error == "ConnectionResetError"
    assert bank.charge(RULE).state == "unknown"
    assert bank.charged == ["o-1"]
    assert "Do not call it again" in first.text


def _reworded() -> BaseException:
    try:
        try:
            raise TimeoutError
        except TimeoutError:
            raise NotDone("the bank is slow today")  # noqa: B904 - as people write it
    except NotDone as error:
        return error


def test_a_time_out_in_other_words_is_still_a_time_out(bank: Bank) -> None:
    bank.trouble = _reworded()
    assert bank.charge(RULE).state == "unknown"


def test_raised_from_none_the_author_is_believed(bank: Bank) -> None:
    bank.before = _reworded()
    bank.before.__suppress_context__ = True
    assert bank.charge(RULE).state == "not_done"


def test_with_takeover_retry_the_next_call_runs(bank: Bank) -> None:
    rule = ToolRule(identity=("order_id",), takeover="retry")
    bank.trouble = TimeoutError()
    with pytest.raises(TimeoutError):
        bank.charge(rule)
    resting = bank.charge(rule)
    assert resting.state == "running"
    assert resting.retry_after == pytest.approx(0.1, abs=0.06)
    bank.clock.advance(1)
    assert bank.charge(rule).result == "ch-2"


def test_too_many_failures_are_final(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank(monkeypatch, Policy(wait=0, max_attempts=1))
    rule = ToolRule(identity=("order_id",), takeover="retry")
    bank.trouble = TimeoutError()
    with pytest.raises(TimeoutError):
        bank.charge(rule)
    last = bank.charge(rule)
    assert last.state == "failed"
    assert last.text.startswith(
        "charge failed permanently: it was tried too often without success."
    )


def test_a_remembered_failure_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank(monkeypatch, Policy(wait=0, remember=(PermissionError,)))
    bank.before = PermissionError("the account is closed")
    with pytest.raises(PermissionError):
        bank.charge(RULE)
    assert bank.charge(RULE).text.startswith("charge failed permanently: the account is closed.")


def test_a_result_that_cannot_be_kept_is_still_done(bank: Bank) -> None:
    ran: list[int] = []

    def tool() -> object:
        ran.append(1)
        return object()

    guard = bank.guard(RULE)
    assert guard.call(tool, asked()).state == "done"
    again = guard.call(tool, asked())
    assert (again.state, again.has_result, ran) == ("replayed", False, [1])
    assert "its result was not kept" in again.text


def test_a_result_that_says_error_is_not_recorded(bank: Bank) -> None:
    guard = bank.guard(RULE, is_final=lambda result: result != "error")
    results = iter(["error", "fine"])
    answers = [guard.call(lambda: next(results), asked()) for _ in range(3)]
    assert [answer.state for answer in answers] == ["done", "done", "replayed"]
    assert [answer.result for answer in answers] == ["error", "fine", "fine"]


def test_a_call_that_is_still_running_is_not_run_twice(bank: Bank) -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow() -> str:
        inside.set()
        assert leave.wait(60)
        return "ch-1"

    thread = threading.Thread(target=bank.guard(RULE).call, args=(slow, asked()))
    thread.start()
    assert inside.wait(60)
    try:
        answer = bank.charge(RULE)
    finally:
        leave.set()
        thread.join()
    assert (answer.state, bank.charged) == ("running", [])
    assert answer.text.startswith("An earlier call of charge for this is not finished")


def test_an_interrupt_holds_the_key(bank: Bank) -> None:
    bank.trouble = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        bank.charge(RULE)
    assert bank.charge(RULE).state == "unknown"


def test_a_store_that_is_down_starts_nothing(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bank.receiver.store, "claim", down)
    refused = bank.charge(RULE)
    assert (refused.state, refused.retry_after, bank.charged) == ("not_done", 5, [])


def down(*_: Any) -> None:
    error = StoreUnavailableError("down")
    error.asked = False
    raise error


@pytest.mark.parametrize("trouble", [None, TimeoutError()])
def test_a_store_that_fails_after_the_effect_leaves_the_outcome_unknown(
    monkeypatch: pytest.MonkeyPatch, trouble: BaseException | None
) -> None:
    bank = Bank(monkeypatch, Policy(wait=0, lease=0.2))
    bank.trouble = trouble
    for name in ("complete", "fail"):
        monkeypatch.setattr(bank.receiver.store, name, refuse)
    assert bank.charge(RULE).state == "unknown"
    monkeypatch.undo()
    monkeypatch.setattr("twicesafe._edges.tool_guard.wall_clock", bank.clock)
    bank.clock.advance(60)
    assert bank.charge(RULE).state == "unknown"
    assert bank.charged == ["o-1"]


def refuse(*_: Any) -> None:
    raise StoreError("no permission")


# -- verify before retry ----------------------------------------------------------------------


def probing(found: Any, **settings: Any) -> ToolRule:
    return ToolRule(identity=("order_id",), probe=lambda call: found, **settings)


def test_rules_that_are_no_dictionary_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"rules=.*use a dictionary"):
        check_rules(["charge"])  # type: ignore[arg-type]


def test_a_probe_that_takes_no_call_is_refused_before_it_is_needed() -> None:
    with pytest.raises(ConfigurationError, match=r"probe= is called with \(call\)"):
        ToolRule(probe=lambda: None)  # type: ignore[arg-type,misc]


def test_the_probe_finds_what_happened_in_the_same_call(bank: Bank) -> None:
    seen: list[ToolCall] = []

    def probe(call: ToolCall) -> Done:
        seen.append(call)
        return Done("ch-1, as the bank says")

    rule = ToolRule(identity=("order_id",), probe=probe)
    bank.trouble = TimeoutError()
    answer = bank.charge(rule, principal="ann", run="r-1")
    assert (answer.state, answer.result) == ("replayed", "ch-1, as the bank says")
    assert (seen[0].tool, seen[0].principal, seen[0].run) == ("charge", "ann", "r-1")
    assert seen[0].arguments["order_id"] == "o-1"
    assert bank.charge(rule, principal="ann", run="r-1").state == "replayed"
    assert (len(seen), bank.charged) == (1, ["o-1"])


def test_not_done_counts_only_when_it_has_settled(bank: Bank) -> None:
    rule = probing(NotDone(), settles_within=30)
    bank.trouble = TimeoutError()
    first = bank.charge(rule)
    assert (first.state, first.retry_after) == ("unknown", 30)
    assert "Ask again in 30 seconds" in first.text
    bank.clock.advance(29)
    assert bank.charge(rule).state == "unknown"
    bank.clock.advance(1)
    assert bank.charge(rule).result == "ch-2"
    record = bank.receiver.record(first.key)  # type: ignore[arg-type]
    assert record is not None
    assert [entry.by for entry in bank.receiver.audit(first.key)] == ["twicesafe probe"]  # type: ignore[arg-type]


def test_one_call_runs_the_tool_at_most_once(bank: Bank) -> None:
    rule = probing(NotDone("not in the ledger"), settles_within=0)
    bank.before = TimeoutError()
    answer = bank.charge(rule)
    assert (answer.state, bank.charged) == ("not_done", [])
    assert bank.charge(rule).state == "done"


@pytest.mark.parametrize("found", [None, "yes", 1])
def test_a_probe_that_does_not_know_changes_nothing(bank: Bank, found: Any) -> None:
    bank.trouble = TimeoutError()
    assert bank.charge(probing(found)).state == "unknown"
    assert bank.charge(probing(found)).state == "unknown"


@pytest.mark.parametrize(
    "found, said", [(NotDone, "the class NotDone"), ({"id": 7}, "a value of type dict")]
)
def test_the_log_says_what_a_probe_returned_instead(
    bank: Bank, caplog: pytest.LogCaptureFixture, found: Any, said: str
) -> None:
    bank.trouble = TimeoutError()
    rule = ToolRule(identity=("order_id",), probe=lambda call: found, settles_within=0)
    assert bank.charge(rule).state == "unknown"
    assert f"charge: the probe returned {said}, so the outcome stays unknown" in caplog.text


def test_a_probe_that_fails_changes_nothing(bank: Bank) -> None:
    def probe(call: ToolCall) -> None:
        raise ConnectionError("the ledger is down")

    bank.trouble = TimeoutError()
    answer = bank.charge(ToolRule(identity=("order_id",), probe=probe))
    assert (answer.state, bank.state(answer)) == ("unknown", State.HELD)


def test_a_late_probe_cannot_undo_a_newer_run(bank: Bank) -> None:
    """Two callers look up the same held key. The first lets it run again, which is cut off, too. What
    the second one saw was before that: its "not done" must not let a third run start."""
    bank.trouble = TimeoutError()
    bank.charge(RULE)
    bank.clock.advance(60)

    def slow_probe(call: ToolCall) -> NotDone:
        if len(bank.charged) == 1:
            bank.trouble = TimeoutError()
            bank.charge(once)  # the other caller, meanwhile
        return NotDone()

    once = ToolRule(
        identity=("order_id",),
        probe=lambda call: NotDone() if len(bank.charged) == 1 else None,
        settles_within=0,
    )
    answer = bank.charge(ToolRule(identity=("order_id",), probe=slow_probe, settles_within=30))
    assert (answer.state, len(bank.charged)) == ("unknown", 2)


def test_an_operator_answers_in_the_probes_place(bank: Bank) -> None:
    bank.trouble = TimeoutError()
    held = bank.charge(RULE)
    bank.receiver.resolve(held.key, "ch-77", by="ann", why="saw it in the ledger")  # type: ignore[arg-type]
    again = bank.charge(RULE)
    assert (again.state, again.result, again.at) == ("replayed", "ch-77", None)


# -- approval ---------------------------------------------------------------------------------

ASKING = ToolRule(identity=("order_id",), prose=("note",), approval=True)


def approve(bank: Bank, waiting: ToolAnswer, value: Any = True) -> bool:
    assert waiting.key is not None
    return bank.receiver.signal(waiting.key, "approval", value, by="ann", why="looks good")


def test_nothing_runs_until_a_person_says_yes(bank: Bank) -> None:
    waiting = bank.charge(ASKING, note="a gift")
    assert (waiting.state, bank.charged) == ("waiting", [])
    assert bank.charge(ASKING, note="a gift").state == "waiting"
    record = bank.receiver.record(waiting.key)  # type: ignore[arg-type]
    assert record is not None
    assert record.state is State.SUSPENDED
    asks = 'approve charge {"currency":"EUR","order_id":"o-1","cents":500,"note":"a gift"}'
    assert [step.name for step in record.steps] == [asks, "approval"]
    assert approve(bank, waiting)
    assert not approve(bank, waiting, False)  # the first word stays
    assert bank.charge(ASKING, note="a gift").state == "done"
    assert bank.charge(ASKING, note="in other words").state == "replayed"
    assert bank.charged == ["o-1"]


@pytest.mark.parametrize(
    "value, reason", [(False, "no reason was given"), ("too much", "too much")]
)
def test_a_person_may_say_no(bank: Bank, value: Any, reason: str) -> None:
    waiting = bank.charge(ASKING)
    approve(bank, waiting, value)
    refused = bank.charge(ASKING)
    assert (refused.state, refused.reason, bank.charged) == ("refused", reason, [])


@pytest.mark.parametrize("changes", [{"cents": 5000}, {"note": "send it to my other account"}])
def test_a_yes_is_for_exactly_these_arguments(bank: Bank, changes: dict[str, Any]) -> None:
    waiting = bank.charge(ASKING)
    approve(bank, waiting, True)
    assert bank.charge(ASKING, **changes).state == "mismatch"
    assert bank.charged == []


def test_after_a_no_corrected_arguments_are_another_question(bank: Bank) -> None:
    """They were a mismatch for twelve hours, and no person could change that."""
    approve(bank, bank.charge(ASKING), "too much")
    assert bank.charge(ASKING).state == "refused"
    waiting = bank.charge(ASKING, cents=400)
    assert waiting.state == "waiting"
    assert bank.charge(ASKING, cents=300).state == "mismatch"  # one question at a time
    assert bank.charge(ASKING).state == "refused"
    approve(bank, waiting, "still too much")
    assert bank.charge(ASKING, cents=400).reason == "still too much"
    approve(bank, bank.charge(ASKING, cents=300))
    assert bank.charge(ASKING, cents=400).state == "refused"
    assert bank.charge(ASKING, cents=300).state == "done"
    assert bank.charged == ["o-1"]


def test_after_many_noes_the_next_question_is_asked_too(bank: Bank) -> None:
    """The sixth was not asked. The model waited for a person, who could not say yes."""
    for cents in range(1000, 100, -100):
        approve(bank, bank.charge(ASKING, cents=cents), "too much")
        assert bank.charge(ASKING, cents=cents).state == "refused"
    approve(bank, bank.charge(ASKING, cents=100))
    assert bank.charge(ASKING, cents=100).state == "done"


def test_a_yes_is_for_one_run(bank: Bank) -> None:
    waiting = bank.charge(ASKING)
    bank.clock.advance(3600)
    approve(bank, waiting, True)
    assert bank.charge(ASKING).state == "done"
    bank.clock.advance(12 * 3600 + 1)
    assert bank.charge(ASKING).state == "waiting"
    assert bank.charged == ["o-1"]


def test_a_yes_that_nothing_was_called_for_expires(bank: Bank) -> None:
    assert approve(bank, bank.charge(ASKING))
    bank.clock.advance(12 * 3600 + 1)
    assert bank.charge(ASKING).state == "waiting"
    assert bank.charged == []


def test_a_long_question_is_cut_to_the_name_of_a_step(bank: Bank) -> None:
    waiting = bank.charge(ASKING, note="ä" * 500)
    record = bank.receiver.record(waiting.key)  # type: ignore[arg-type]
    assert record is not None
    assert 190 < len(record.steps[0].name.encode()) <= 200
    assert approve(bank, waiting)
    assert bank.charge(ASKING, note="ä" * 500).state == "done"


@pytest.mark.parametrize("half", ["\ud83d", {"\ud83d": 1}])
def test_a_question_about_odd_arguments_can_be_asked(bank: Bank, half: Any) -> None:
    waiting = bank.charge(ASKING, note=half)
    assert waiting.state == "waiting"
    record = bank.receiver.record(waiting.key)  # type: ignore[arg-type]
    assert record is not None
    assert record.steps[0].name.startswith("approve charge {'")


def test_a_question_about_a_very_long_number_can_be_asked(bank: Bank) -> None:
    waiting = bank.charge(ASKING, cents=10**5000)
    assert waiting.state == "waiting"


def test_names_in_arguments_may_be_tuples(bank: Bank) -> None:
    """A framework makes them of the model's arguments; JSON has none."""
    seats = {("a", 1): {"cafe\u0301": 1}}
    assert bank.charge(RULE, seats=seats).state == "done"
    assert bank.charge(RULE, seats={("a", 1): {"café": 1}}).state == "replayed"
    assert bank.charge(RULE, seats={("a", 2): {"café": 1}}).state == "mismatch"
    assert bank.charged == ["o-1"]


def test_two_names_that_are_one_in_unicode_are_refused(bank: Bank) -> None:
    """One of the two would not be compared."""
    refused = bank.charge(RULE, seats={"café": 1, "cafe\u0301": 2})
    assert (refused.state, bank.charged) == ("not_done", [])
    assert "equal after Unicode normalisation" in refused.text


def test_arguments_that_are_nested_too_deeply_are_refused(bank: Bank) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    refused = bank.charge(RULE, note=deep)
    assert (refused.state, bank.charged) == ("not_done", [])
    assert "nested too deeply" in refused.text


def test_an_operator_may_resolve_an_approval(bank: Bank) -> None:
    waiting = bank.charge(ASKING)
    bank.receiver.resolve(waiting.key, True, by="ann", why="talked to them")  # type: ignore[arg-type]
    assert bank.charge(ASKING).state == "done"


def test_approvals_need_a_store_that_keeps_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    bank = Bank(monkeypatch)
    monkeypatch.setattr(bank.receiver.store, "capabilities", Capabilities())
    with pytest.raises(UnsupportedByStoreError, match="cannot keep steps"):
        bank.guard(ASKING)


def test_a_receiver_that_runs_handlers_in_an_outage_may_guard_tools_with_approval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was refused as for a durable function, which the user had not written."""
    bank = Bank(monkeypatch, Policy(wait=0, outage="run"))
    with bank.receiver:
        assert bank.charge(ASKING).state == "waiting"


def test_released_by_mistake_an_approval_is_asked_for_again(bank: Bank) -> None:
    waiting = bank.charge(ASKING)
    bank.receiver.release(waiting.key, by="ann")  # type: ignore[arg-type]
    assert bank.charge(ASKING).state == "waiting"


def test_after_nothing_was_done_other_arguments_need_another_yes(bank: Bank) -> None:
    waiting = bank.charge(ASKING)
    approve(bank, waiting, True)
    bank.before = NotDone("over the limit")
    assert bank.charge(ASKING).state == "not_done"
    assert bank.charge(ASKING, cents=1).state == "mismatch"
    assert bank.charge(ASKING).state == "done"


def test_the_approvals_key_is_found_by_the_calls(bank: Bank) -> None:
    waiting, done = bank.charge(ASKING), bank.charge(RULE)
    assert done.key is not None
    assert waiting.key == approval_key(done.key)


# -- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"identity": "order_id"},
        {"identity": ()},
        {"identity": ("a",), "prose": ("a",)},
        {"takeover": "maybe"},
        {"not_done": (1,)},
        {"not_done": LookupError},
        {"probe": 1},
        {"retention": "soon"},
    ],
    ids=str,
)
def test_a_rule_that_cannot_be_right_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ToolRule(**settings)


def test_a_rule_that_does_not_fit_the_tool_is_refused_before_it_runs(bank: Bank) -> None:
    with pytest.raises(ConfigurationError, match="identity='order' is not an argument of the tool"):
        bank.charge(ToolRule(identity=("order",)))
    assert bank.charged == []


def test_a_guard_refuses_what_it_cannot_do(bank: Bank) -> None:
    async def probe(call: ToolCall) -> None: ...

    with pytest.raises(ConfigurationError, match="the probe of 'charge' is async"):
        bank.guard(ToolRule(identity=("order_id",), probe=probe))
    with pytest.raises(ConfigurationError, match=r"use a ToolRule"):
        bank.guard({"identity": "order_id"})  # type: ignore[arg-type]
    deep = bank.receiver.options(scope=("a", "b", "c", "d", "e"))
    with pytest.raises(ConfigurationError, match="at most 4"):
        ToolGuard(deep, {"charge": RULE}, keep=lambda result: result)


def test_a_key_that_is_too_long_is_refused(bank: Bank) -> None:
    refused = bank.charge(RULE, key="k" * 300)
    assert (refused.state, bank.charged) == ("not_done", [])
    assert InvalidKeyError.__name__ not in refused.text


def test_a_run_that_is_not_valid_unicode_is_refused(bank: Bank) -> None:
    for run in ("\ud800", "\ud800" * 300):
        bank.charge(RULE, run=run)
    assert bank.charge(RULE, run="\ud800").state == "not_done"
    assert len(bank.charged) == 1, "a long one is part of the key as a hash"


# -- async ------------------------------------------------------------------------------------


async def called(
    receiver: AsyncReceiver, rule: ToolRule, tool: Callable[[], Awaitable[Any]]
) -> ToolAnswer:
    guard = ToolGuard(receiver, {"charge": rule}, keep=lambda result: result)
    return await guard.call_async(tool, asked())


async def test_async_calls_follow_the_same_flow() -> None:
    charged: list[int] = []

    async def charge() -> str:
        charged.append(1)
        raise TimeoutError

    async def probe(call: ToolCall) -> Done:
        await asyncio.sleep(0)
        return Done("found")

    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as receiver:
        rule = ToolRule(identity=("order_id",), probe=probe)
        assert (await called(receiver, rule, charge)).result == "found"
        plain = ToolRule(identity=("order_id",), probe=lambda call: Done("other"))
        assert (await called(receiver, plain, charge)).result == "found"
    assert charged == [1]


async def test_a_cancelled_call_holds_the_key() -> None:
    began = asyncio.Event()

    async def charge() -> None:
        began.set()
        await asyncio.Event().wait()

    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as receiver:
        task = asyncio.create_task(called(receiver, RULE, charge))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        answer = await called(receiver, RULE, charge)
        assert answer.state == "unknown"
        [record] = [one async for one in receiver.records()]
        assert record.error == "CallInterrupted", "an operator reads it"


async def test_a_blocking_probe_does_not_stop_the_loop() -> None:
    seen: list[bool] = []

    def probe(call: ToolCall) -> Done:
        seen.append(threading.current_thread() is threading.main_thread())
        return Done()

    async def charge() -> None:
        raise TimeoutError

    async with AsyncReceiver.open("memory://", policy=Policy(wait=0)) as receiver:
        rule = ToolRule(identity=("order_id",), probe=probe)
        assert (await called(receiver, rule, charge)).state == "replayed"
    assert seen == [False]


NESTED = {
    "properties": {
        "order": {"$ref": "#/$defs/Order"},
        "lines": {"type": "array", "items": {"type": ["integer", "null"]}},
        "note": {"type": ["string", "null"]},
        "parent": {"oneOf": [{"$ref": "#/$defs/Order"}, {"type": "null"}]},
    },
    "$defs": {
        "Order": {
            "properties": {"id": {"allOf": [{"type": "integer"}]}, "of": {"$ref": "#/$defs/Order"}}
        }
    },
}


def test_numbers_in_quotes_are_numbers_at_any_depth() -> None:
    """The tool's own parser reads both as one, so they must be one operation."""
    quoted = {
        "order": {"id": "10", "of": {"id": "9", "name": "9"}},
        "lines": ["1", 2.0, None],
        "note": "7",
        "parent": {"id": "8"},
        "unknown": "6",
    }
    assert normalised(quoted, NESTED) == {
        "order": {"id": 10, "of": {"id": 9, "name": "9"}},
        "lines": [1, 2, None],
        "note": "7",
        "parent": {"id": 8},
        "unknown": "6",
    }


def test_true_and_false_in_quotes_are_booleans_where_the_schema_says_so() -> None:
    about = {
        "a": {"type": "boolean"},
        "b": {"type": ["boolean", "string"]},
        "c": {"type": "integer"},
    }
    given = dict.fromkeys("abc", "True")
    assert normalised(given, {"properties": about}) == {"a": True, "b": "True", "c": "True"}
    assert normalised({"a": "false"}, {"properties": about}) == {"a": False}


def test_a_schema_that_is_odd_is_no_reason_to_fail() -> None:
    odd = {"properties": {"a": True, "b": {"$ref": "#/nowhere"}, "c": {"anyOf": None, "type": 5}}}
    assert normalised({"a": "1", "b": "2", "c": "3"}, odd) == {"a": "1", "b": "2", "c": "3"}


def test_null_is_not_the_default() -> None:
    """``limit: int | None = 100``: null is no limit, so an approval of 100 is no approval of it."""
    schema = {"properties": {"limit": {"type": ["integer", "null"], "default": 100}}}
    assert normalised({}, schema) == {"limit": 100}
    assert normalised({"limit": None}, schema) == {}


def test_a_field_that_is_absent_has_its_default_at_any_depth() -> None:
    order = {"properties": {"id": {"type": "string"}, "count": {"type": "integer", "default": 1}}}
    again = {"$ref": "#/$defs/Again", "default": {}}
    schema = {
        "properties": {"order": {"$ref": "#/$defs/Order"}, "again": {"$ref": "#/$defs/Again"}},
        "$defs": {"Order": order, "Again": {"properties": {"next": again}}},
    }
    whole = {"order": {"id": "o-1", "count": 1}}
    assert normalised({"order": {"id": "o-1"}}, schema) == whole
    assert normalised({"order": {"id": "o-1", "count": "1"}}, schema) == whole
    assert normalised({"order": {"id": "o-1", "count": None}}, schema) != whole
    assert normalised({"again": {}}, schema) == {"again": {"next": {}}}


@pytest.mark.parametrize("one", [1.5, "1.5", "1.50", Decimal("1.5"), Decimal("1.500")])
def test_a_decimal_is_one_number_however_it_is_written(one: Any) -> None:
    """Newer versions of Pydantic declare a decimal like this."""
    text = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"}
    schema = {
        "properties": {
            "price": {"anyOf": [{"type": "number"}, text]},
            "code": {"type": ["integer", "string"]},
        }
    }
    assert normalised({"price": one, "code": "1.50"}, schema) == {"price": 1.5, "code": "1.50"}


@pytest.mark.parametrize(
    "one, other",
    [("12345678901234567890", 12345678901234567890), ("0.1234567890123456789", "0.12345678901234567890")],
)  # fmt: skip
def test_decimals_lose_no_digit(one: Any, other: Any) -> None:
    schema = {"properties": {"price": {"type": "number"}}}
    assert normalised({"price": one}, schema) == normalised({"price": other}, schema)
    for changed in (one[:-1], "1e999999999", one[:-1] + "8"):
        assert normalised({"price": changed}, schema) != normalised({"price": one}, schema)
