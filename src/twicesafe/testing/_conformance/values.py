"""Values: every byte and every character of a record is read back unchanged."""

from __future__ import annotations

from typing import Final

from ..._core.protocol import Ack, Browse, Verdict
from ..._values.keys import Key
from .bench import Script
from .requests import HOUR, A, B, claim, read, won
from .rules import StoreRules, rule

__all__ = ["ValueRules"]

BYTES: Final = {
    "nul": b"\0" * 16,
    "nul_inside": b"ab\0cd\0efghijklmn",
    "high": b"\xff" * 16,
    "quotes": b"'\";--\\%_`$1{}[]!",
    "not_utf8": b"\xc3\x28\xa0\xa1\xe2\x28\xa1\xf0\x28\x8c\xbc\xfe\xff\x80\xbf\xc0",
    "digits": b"0123456789012345",
}
TEXTS: Final = {
    "one_letter": "x",
    "longest": "y" * 255,
    "nul": "a\0b",
    "quotes": 'O\'Brien "x"; DROP TABLE t; -- \\ %s {} $1 :a ?',
    "emoji": "🙂🏳️‍🌈",
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "newlines": "a\r\nb\tc\x1b[31m",
    "spaces": "  a  ",
    "digits": "007",
    "null": "null",
    "right_to_left": "\u202eabc",
}
FAR: Final = 100 * 365 * 24 * HOUR
"""A hundred years in milliseconds: more than 32 bits hold."""


class ValueRules(StoreRules):
    @rule("P2", cases=BYTES)
    def test_owners_are_compared_byte_by_byte(self, case: bytes) -> Script[None]:
        mine = yield from won(case)
        assert (yield read()).owner == case
        assert (yield claim(case)) == mine.answer
        near = case[:-1] + bytes([case[-1] ^ 1])
        assert (yield claim(near)).verdict is Verdict.BUSY
        assert (yield mine.replace(owner=near).complete(b"no")) is Ack.LOST
        assert (yield mine.replace(owner=case[:-1]).complete(b"no")) is Ack.LOST
        assert (yield mine.complete(b"yes")) is Ack.OK

    @rule("P11", cases=BYTES)
    def test_fingerprints_are_compared_byte_by_byte(self, case: bytes) -> Script[None]:
        yield from won(A, fingerprint=case)
        assert (yield read()).fingerprint == case
        near = case[:-1] + bytes([case[-1] ^ 1])
        answer = yield claim(B, fingerprint=near)
        assert (answer.verdict, answer.fingerprint) == (Verdict.MISMATCH, case)
        assert (yield claim(B, fingerprint=case)).verdict is Verdict.BUSY

    @rule(cases=TEXTS)
    def test_keys_are_stored_exactly(self, case: str) -> Script[None]:
        key = Key(case, scope=(case, "x", case))
        mine = yield from won(A, key)
        yield mine.fail(error=case)
        row = yield read(key)
        assert (row.id, row.value, row.scope) == (key.id, case, (case, "x", case))
        assert row.error == case
        assert (yield Browse(10, scope=(case,))).rows == [row]
        assert (yield Browse(10, scope=(case + "?",))).rows == [] or len(case) == 255

    @rule()
    def test_a_scope_may_have_up_to_eight_parts(self) -> Script[None]:
        for scope in ((), tuple("abcdefgh")):
            yield from won(A, Key("k", scope))
            assert (yield read(Key("k", scope))).scope == scope

    @rule()
    def test_long_times_fit(self) -> Script[None]:
        mine = yield from won(A, lease=FAR)
        row = yield read()
        assert row.lease_until == row.changed_at + FAR
        yield mine.complete(retention=FAR)
        row = yield read()
        assert row.expires_at == row.changed_at + FAR
        assert self.near((yield claim(B)).expires_in, FAR)
