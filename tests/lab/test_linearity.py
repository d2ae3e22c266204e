"""The judge of histories: it acquits what one atomic store can do, and convicts what it cannot."""

from __future__ import annotations

import math
from typing import Any

import pytest

from lab.field.linearity import UNDECIDED, UNKNOWN, Call, check, partition
from twicesafe import Key
from twicesafe._core.protocol import (
    Abandon,
    Ack,
    Claimed,
    ClaimRequest,
    Complete,
    Fail,
    Read,
    Release,
    Renew,
    Verdict,
)
from twicesafe._values.records import Cause, State

HOUR = 3_600_000
KEY = Key("k")
A, B, C = (bytes([letter]) * 16 for letter in b"ABC")


def claim(owner: bytes, lease: int = HOUR) -> ClaimRequest:
    return ClaimRequest(KEY, owner, lease)


def complete(owner: bytes, fence: int, result: bytes = b"r") -> Complete:
    return Complete(KEY.id, owner, fence, HOUR, result)


def fail(owner: bytes, fence: int) -> Fail:
    return Fail(KEY.id, owner, fence, 0, 5, HOUR)


def renew(owner: bytes, fence: int) -> Renew:
    return Renew(KEY.id, owner, fence, HOUR)


def abandon(owner: bytes) -> Abandon:
    return Abandon(KEY.id, owner, HOUR)


def release() -> Release:
    return Release(KEY.id, "op", "", HOUR)


def won(fence: int, attempt: int = 1, cause: Cause | None = None) -> Claimed:
    return Claimed(Verdict.WON, fence, attempt, cause)


def replay(fence: int, result: bytes = b"r") -> Claimed:
    return Claimed(Verdict.REPLAY, fence, 1, state=State.COMPLETED, result=result)


BUSY = Claimed(Verdict.BUSY, wait=HOUR)
TAKEN = Cause.LEASE_EXPIRED


def told(*moments: Any) -> list[Call]:
    """(request, answer) one after the other; (request, answer, from, to) where they overlap."""
    calls = []
    for number, (request, answer, *when) in enumerate(moments):
        called, returned = when or (10 * number, 10 * number + 5)
        if answer is UNKNOWN:
            returned = math.inf
        calls.append(Call(number, request, called, returned, answer))
    return calls


GOOD = {
    "one after the other": told(
        (claim(A), won(7)), (complete(A, 7), Ack.OK), (claim(B), replay(7))
    ),
    "the same owner asks twice": told((claim(A), won(7)), (claim(A), won(7))),
    "two at once, the later one wins": told(
        (claim(A), BUSY, 0, 10), (claim(B), won(3), 5, 20), (complete(B, 3), Ack.OK)
    ),
    "a takeover": told(
        (claim(A, 0), won(1)),
        (claim(B), won(900, 2, TAKEN)),
        (complete(A, 1), Ack.LOST),
        (complete(B, 900), Ack.OK),
    ),
    "an open claim happened": told((claim(A), UNKNOWN), (claim(B), BUSY), (claim(A), won(2))),
    "an open claim never happened": told((claim(A), UNKNOWN), (claim(B), won(1))),
    "an open claim happened late": told(
        (claim(A), UNKNOWN), (claim(B), won(1)), (fail(B, 1), Ack.OK), (claim(C), BUSY)
    ),
    "an open complete happened": told(
        (claim(A), won(1)), (complete(A, 1), UNKNOWN), (claim(B), replay(1))
    ),
    "a read that overlaps": told((claim(A), won(1), 0, 10), (Read(KEY.id), None, 5, 20)),
}

BAD = {
    "two winners": told((claim(A), won(1)), (claim(B), won(2))),
    "two winners at once": told((claim(A), won(1), 0, 10), (claim(B), won(2), 5, 20)),
    "one fence for two": told((claim(A, 0), won(1)), (claim(B), won(1, 2, TAKEN))),
    "a fence that goes back": told((claim(A, 0), won(9)), (claim(B), won(8, 2, TAKEN))),
    "the same owner, another fence": told((claim(A), won(1)), (claim(A), won(2))),
    "a stale complete": told(
        (claim(A, 0), won(1)), (claim(B), won(2, 2, TAKEN)), (complete(A, 1), Ack.OK)
    ),
    "a stale renewal": told(
        (claim(A, 0), won(1)), (claim(B), won(2, 2, TAKEN)), (renew(A, 1), Ack.OK)
    ),
    "a stale release": told(
        (claim(A, 0), won(1)), (claim(B), won(2, 2, TAKEN)), (fail(A, 1), Ack.OK)
    ),
    "an owner that is not heard": told((claim(A), won(1)), (complete(A, 1), Ack.LOST)),
    "a lost result": told((claim(A), won(1)), (complete(A, 1), Ack.OK), (claim(B), won(2))),
    "another result": told(
        (claim(A), won(1)), (complete(A, 1), Ack.OK), (claim(B), replay(1, b"other"))
    ),
    "a result from nowhere": told((claim(A), won(1)), (claim(B), replay(1))),
    "busy without an owner": told((claim(A), BUSY)),
    "busy after the end": told((claim(A), won(1)), (complete(A, 1), Ack.OK), (claim(B), BUSY)),
    "a takeover without its cause": told((claim(A, 0), won(1)), (claim(B), won(2, 2))),
    "an attempt that was not counted": told((claim(A, 0), won(1)), (claim(B), won(2, 1, TAKEN))),
    "a row from a complete": told((complete(A, 1), Ack.OK)),
    "given back by a stranger": told((claim(A), won(1)), (abandon(B), Ack.OK)),
    "a stale read": told((claim(A), won(1)), (Read(KEY.id), None)),
    "a release that the owner survives": told(
        (claim(A), won(1)), (release(), Ack.OK), (complete(A, 1), Ack.OK)
    ),
    "an open claim cannot have happened before its call": told(
        (claim(B), BUSY, 0, 5), (claim(A), UNKNOWN, 10, 20)
    ),
}


@pytest.mark.parametrize("name", GOOD)
def test_what_one_store_can_do_is_acquitted(name: str):
    assert check(GOOD[name]) == ""


@pytest.mark.parametrize("name", BAD)
def test_what_no_store_can_do_is_convicted(name: str):
    assert check(BAD[name])


def test_there_are_enough_bad_ones():
    assert len(BAD) >= 10


def test_keys_are_judged_apart():
    other = ClaimRequest(Key("other"), B, HOUR)
    history = told((claim(A), won(1)), (other, won(1)))
    assert check(history)
    assert [check(part) for part in partition(history).values()] == ["", ""]


def test_a_history_with_too_many_orders_is_not_decided():
    crowd = [Call(n, claim(bytes([n]) * 16, 0), 0.0) for n in range(1, 20)]
    assert check([*crowd, *told((claim(A), replay(1)))], most_states=50) == UNDECIDED
