"""The life of a record, as pure decisions: no store, no clock, no wait.

Every state meets every request; what the table does not list cannot happen.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe import Key
from twicesafe._core import lifecycle
from twicesafe._core.protocol import (
    Abandon,
    Ack,
    ClaimRequest,
    Complete,
    Fail,
    Forget,
    Release,
    Renew,
    Resolve,
    Verdict,
)
from twicesafe._core.transitions import TRANSITIONS, RecordEvent
from twicesafe._values.records import Cause, Row, State

KEY = Key("k", ("s",))
NOW = 1_000_000
ME, OTHER = b"me" * 8, b"other" * 3


def row(state: State, **changes: Any) -> Row:
    settled = state in (State.COMPLETED, State.FAILED, State.FORGOTTEN, State.RELEASED)
    values: dict[str, Any] = {
        "id": KEY.id,
        "scope": KEY.scope,
        "value": KEY.value,
        "state": state,
        "fence": 7,
        "attempt": 2,
        "owner": OTHER,
        "lease_until": NOW + 50 if state is State.IN_PROGRESS else 0,
        "created_at": NOW - 500,
        "changed_at": NOW - 100,
        "expires_at": NOW + 1000 if settled else 0,
        "result": b"j1" if state in (State.COMPLETED, State.FAILED) else None,
    }
    return Row(**{**values, **changes})


def ask(**changes: Any) -> ClaimRequest:
    return ClaimRequest(**{"key": KEY, "owner": ME, "lease": 100, **changes})


# --- claim -----------------------------------------------------------------------------------------


def test_a_new_key_is_won_above_the_floor() -> None:
    answer, after = lifecycle.claim(None, ask(hold=True, fingerprint=b"f"), NOW, floor=41)
    assert (answer.verdict, answer.fence, answer.attempt, answer.cause) == (
        Verdict.WON,
        42,
        1,
        None,
    )
    assert after is not None
    assert (after.state, after.owner, after.lease_until) == (State.IN_PROGRESS, ME, NOW + 100)
    assert (after.hold, after.fingerprint, after.expires_at) == (True, b"f", 0)


@pytest.mark.parametrize(
    "state, verdict",
    [
        (State.IN_PROGRESS, Verdict.BUSY),
        (State.COMPLETED, Verdict.REPLAY),
        (State.FAILED, Verdict.REPLAY),
        (State.HELD, Verdict.HELD),
        (State.PARKED, Verdict.PARKED),
        (State.FORGOTTEN, Verdict.FORGOTTEN),
    ],
)
def test_a_present_record_answers_without_a_write(state: State, verdict: Verdict) -> None:
    answer, after = lifecycle.claim(row(state), ask(), NOW)
    assert (answer.verdict, after) == (verdict, None)
    if verdict is Verdict.BUSY:
        assert answer.wait == 50
    if verdict is Verdict.REPLAY:
        assert (answer.result, answer.age, answer.expires_in) == (b"j1", 100, 1000)
        assert (answer.fence, answer.attempt, answer.state) == (7, 2, state)


def test_the_present_owner_gets_its_fence_again() -> None:
    answer, after = lifecycle.claim(row(State.IN_PROGRESS, owner=ME), ask(), NOW)
    assert (answer.verdict, answer.fence, answer.attempt, after) == (Verdict.WON, 7, 2, None)


@pytest.mark.parametrize("state", list(State))
def test_a_mismatch_comes_before_everything_else(state: State) -> None:
    present = row(state, fingerprint=b"one")
    answer, after = lifecycle.claim(present, ask(fingerprint=b"two"), NOW)
    assert (answer.verdict, after) == (Verdict.MISMATCH, None)
    for print_ in (b"one", None):
        assert lifecycle.claim(present, ask(fingerprint=print_), NOW)[0].verdict is not (
            Verdict.MISMATCH
        )


def test_a_lease_that_ran_out_is_taken_over() -> None:
    for late in (0, 1):
        present = row(State.IN_PROGRESS, lease_until=NOW - late, fingerprint=b"f")
        answer, after = lifecycle.claim(present, ask(), NOW)
        assert (answer.verdict, answer.fence, answer.attempt) == (Verdict.WON, 8, 3)
        assert answer.cause is Cause.LEASE_EXPIRED
        assert after is not None
        assert (after.owner, after.fingerprint, after.created_at) == (ME, b"f", NOW - 500)


def test_a_lease_that_ran_out_is_held_if_its_owner_said_so() -> None:
    present = row(State.IN_PROGRESS, lease_until=NOW, hold=True)
    answer, after = lifecycle.claim(present, ask(hold=False), NOW)
    assert answer.verdict is Verdict.HELD
    assert after is not None
    assert (after.state, after.owner, after.fence, after.expires_at) == (State.HELD, OTHER, 7, 0)


@pytest.mark.parametrize("state", [State.IN_PROGRESS, State.RELEASED])
def test_the_last_attempt_is_parked(state: State) -> None:
    present = row(state, lease_until=NOW, attempt=5)
    answer, after = lifecycle.claim(present, ask(max_attempts=5), NOW)
    assert answer.verdict is Verdict.PARKED
    assert after is not None
    assert (after.state, after.expires_at) == (State.PARKED, 0)
    assert lifecycle.claim(present, ask(max_attempts=6), NOW)[0].verdict is Verdict.WON


def test_a_released_key_rests_then_runs_with_its_cause() -> None:
    present = row(State.RELEASED, lease_until=NOW + 5, cause=Cause.FAILED)
    answer, after = lifecycle.claim(present, ask(), NOW)
    assert (answer.verdict, answer.wait, after) == (Verdict.RESTING, 5, None)
    answer, after = lifecycle.claim(present, ask(), NOW + 5)
    assert (answer.verdict, answer.attempt, answer.cause) == (Verdict.WON, 3, Cause.FAILED)


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED, State.FORGOTTEN, State.RELEASED])
def test_after_retention_it_is_a_new_key_with_a_higher_fence(state: State) -> None:
    present = row(state, expires_at=NOW, fingerprint=b"old", lease_until=0)
    answer, after = lifecycle.claim(present, ask(fingerprint=b"new"), NOW)
    assert (answer.verdict, answer.fence, answer.attempt) == (Verdict.WON, 8, 1)
    assert after is not None
    assert (after.fingerprint, after.result, after.created_at) == (b"new", None, NOW)
    if state is not State.RELEASED:
        assert answer.cause is Cause.RETENTION_EXPIRED


@pytest.mark.parametrize("state", [State.IN_PROGRESS, State.HELD, State.PARKED])
def test_live_work_never_expires(state: State) -> None:
    assert not lifecycle.is_expired(row(state), NOW + 10**12)


# --- what an owner may do ----------------------------------------------------------------------------


def mine(state: State = State.IN_PROGRESS, **changes: Any) -> Row:
    return row(state, owner=ME, **changes)


COMPLETE = Complete(KEY.id, ME, 7, 1000, b"j2")
FAIL = Fail(KEY.id, ME, 7, 30, 5, 1000, "ValueError")
RENEW = Renew(KEY.id, ME, 7, 100)
ABANDON = Abandon(KEY.id, ME, 1000)


@pytest.mark.parametrize("request_", [COMPLETE, FAIL, RENEW, ABANDON], ids=lambda r: r.op)
def test_requests_of_other_owners_change_nothing(request_: Any) -> None:
    decide = getattr(lifecycle, request_.op)
    assert decide(None, request_, NOW) == (Ack.MISSING, None)
    assert decide(row(State.IN_PROGRESS), request_, NOW) == (Ack.LOST, None)
    if request_.op != "abandon":
        assert decide(mine(fence=8), request_, NOW) == (Ack.LOST, None)


@pytest.mark.parametrize("state", [State.IN_PROGRESS, State.HELD, State.PARKED])
def test_the_owner_completes_even_late(state: State) -> None:
    ack, after = lifecycle.complete(mine(state, lease_until=NOW - 999), COMPLETE, NOW)
    assert ack is Ack.OK
    assert after is not None
    assert (after.state, after.result, after.expires_at) == (State.COMPLETED, b"j2", NOW + 1000)


@pytest.mark.parametrize("state", [State.COMPLETED, State.FAILED])
def test_complete_is_idempotent(state: State) -> None:
    assert lifecycle.complete(mine(state), COMPLETE, NOW) == (Ack.OK, None)


@pytest.mark.parametrize("state", [State.RELEASED, State.FORGOTTEN])
def test_complete_after_giving_up_is_lost(state: State) -> None:
    assert lifecycle.complete(mine(state), COMPLETE, NOW) == (Ack.LOST, None)


def test_a_remembered_failure_is_an_end() -> None:
    ask_ = Complete(KEY.id, ME, 7, 1000, b"{}", State.FAILED, "Declined")
    ack, after = lifecycle.complete(mine(), ask_, NOW)
    assert ack is Ack.OK
    assert after is not None
    assert (after.state, after.error) == (State.FAILED, "Declined")


def test_fail_rests_parks_or_holds() -> None:
    _, after = lifecycle.fail(mine(), FAIL, NOW)
    assert after is not None
    assert (after.state, after.lease_until, after.cause) == (
        State.RELEASED,
        NOW + 30,
        Cause.FAILED,
    )
    assert after.expires_at == NOW + 1000
    _, after = lifecycle.fail(mine(attempt=5), FAIL, NOW)
    assert after is not None
    assert after.state is State.PARKED
    hold = Fail(KEY.id, ME, 7, 0, 5, 1000, "CancelledError", True)
    _, after = lifecycle.fail(mine(), hold, NOW)
    assert after is not None
    assert (after.state, after.expires_at) == (State.HELD, 0)


@pytest.mark.parametrize("state", [State.RELEASED, State.PARKED, State.HELD])
def test_fail_is_idempotent(state: State) -> None:
    assert lifecycle.fail(mine(state), FAIL, NOW) == (Ack.OK, None)


def test_renew_only_ever_lengthens() -> None:
    _, after = lifecycle.renew(mine(lease_until=NOW + 50), RENEW, NOW)
    assert after is not None
    assert after.lease_until == NOW + 100
    _, after = lifecycle.renew(mine(lease_until=NOW + 500), RENEW, NOW)
    assert after is not None
    assert after.lease_until == NOW + 500


def test_abandon_takes_the_attempt_back() -> None:
    ack, after = lifecycle.abandon(mine(), ABANDON, NOW)
    assert ack is Ack.OK
    assert after is not None
    assert (after.state, after.attempt, after.lease_until) == (State.RELEASED, 1, NOW)
    assert lifecycle.abandon(mine(State.COMPLETED), ABANDON, NOW) == (Ack.LOST, None)


# --- the table ---------------------------------------------------------------------------------------

REQUESTS: list[Any] = [
    ask(),
    ask(max_attempts=1),
    RENEW,
    COMPLETE,
    Complete(KEY.id, ME, 7, 1000, b"{}", State.FAILED),
    FAIL,
    Fail(KEY.id, ME, 7, 0, 1, 1000),
    Fail(KEY.id, ME, 7, 0, 5, 1000, "", True),
    ABANDON,
    Release(KEY.id, "ann", "", 1000),
    Release(KEY.id, "ann", "", 1000, True),
    Resolve(KEY.id, "ann", "", 1000, b"j1"),
    Forget(KEY.id, "ann", "", 1000),
]


@given(
    st.sampled_from(list(State)),
    st.sampled_from(REQUESTS),
    st.booleans(),
    st.booleans(),
    st.sampled_from([NOW - 1, NOW, NOW + 1]),
    st.sampled_from([0, NOW - 1, NOW + 1]),
)
def test_every_change_is_in_the_table_and_fences_never_fall(
    state: State, request: Any, owned: bool, hold: bool, lease: int, expires: int
) -> None:
    if state in (State.IN_PROGRESS, State.SUSPENDED, State.HELD, State.PARKED):
        expires = 0
    before = row(
        state, owner=ME if owned else OTHER, hold=hold, lease_until=lease, expires_at=expires
    )
    _, after = getattr(lifecycle, request.op)(before, request, NOW)
    if after is None:
        return
    reachable = {to for (at, _), to in TRANSITIONS.items() if at is state}
    if (state, RecordEvent.EXPIRE) in TRANSITIONS:
        reachable.add(TRANSITIONS[None, RecordEvent.CLAIM])  # expired, then claimed anew
    assert after.state in reachable
    assert after.fence >= before.fence
    if after.owner != before.owner:
        assert after.fence > before.fence
    if after.state in (State.IN_PROGRESS, State.HELD, State.PARKED):
        assert after.expires_at == 0
    else:
        assert after.expires_at > NOW


OPERATOR = {
    RecordEvent.RELEASE: Release(KEY.id, "ann", "", 1000, True),
    RecordEvent.RESOLVE: Resolve(KEY.id, "ann", "", 1000, b"j1"),
    RecordEvent.FORGET: Forget(KEY.id, "ann", "", 1000),
}


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(OPERATOR))
def test_operators_are_held_to_the_table(state: State, event: RecordEvent) -> None:
    ack, after = getattr(lifecycle, OPERATOR[event].op)(row(state), OPERATOR[event], NOW)
    target = TRANSITIONS.get((state, event))
    if target is not None:
        assert ack is Ack.OK
        assert after.state is target
        assert (after.fence, after.owner) == (8, b"")
    elif (state, event) == (State.FORGOTTEN, RecordEvent.FORGET):
        assert (ack, after) == (Ack.OK, None)
    else:
        assert (ack, after) == (Ack.REFUSED, None)


@pytest.mark.parametrize("event", list(OPERATOR))
def test_operators_do_not_touch_what_is_gone(event: RecordEvent) -> None:
    decide = getattr(lifecycle, OPERATOR[event].op)
    assert decide(None, OPERATOR[event], NOW) == (Ack.MISSING, None)
    assert decide(row(State.COMPLETED, expires_at=NOW), OPERATOR[event], NOW) == (Ack.MISSING, None)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("event", list(RecordEvent))
def test_what_is_not_in_the_table_is_impossible(state: State, event: RecordEvent) -> None:
    if (state, event) in TRANSITIONS:
        if TRANSITIONS[state, event] is not None:
            assert lifecycle.move(row(state), event, NOW).state is TRANSITIONS[state, event]
    else:
        with pytest.raises(KeyError):
            lifecycle.move(row(state), event, NOW)


def test_forgetting_leaves_only_a_tombstone() -> None:
    before = row(State.COMPLETED, fingerprint=b"f", error="E")
    _, after = lifecycle.forget(before, Forget(KEY.id, "ann", "", 1000), NOW)
    assert after is not None
    assert (after.value, after.scope, after.result) == ("", (), None)
    assert (after.fingerprint, after.error, after.owner) == (None, "", b"")
    assert after.id == KEY.id
