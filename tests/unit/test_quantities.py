"""Rates, shares and sizes as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe import ConfigurationError
from twicesafe._values.quantities import per_second, share, size

READERS = (per_second, share, size)


@pytest.mark.parametrize(
    "given, meant",
    [
        ("500/s", 500),
        ("30/m", 0.5),
        ("2M/d", 2e6 / 86400),
        ("1.5k/s", 1500),
        ("1e3/s", 1000),
        (7, 7),
    ],
)
def test_a_rate(given: object, meant: float):
    assert per_second(given) == pytest.approx(meant)


@pytest.mark.parametrize(
    "given, meant",
    [("2%", 0.02), ("0.02", 0.02), ("1e-6", 1e-6), ("0", 0), ("100%", 1), (0.5, 0.5)],
)
def test_a_share(given: object, meant: float):
    assert share(given) == pytest.approx(meant)


@pytest.mark.parametrize(
    "given, meant", [("200B", 200), ("200", 200), ("4KiB", 4096), ("4kB", 4000), ("1.5MB", 1.5e6)]
)
def test_a_size(given: object, meant: float):
    assert size(given) == meant


@pytest.mark.parametrize(
    "read, text, fix",
    [
        (per_second, "500", "write '500/s'"),
        (per_second, "500/sec", "write '500/s'"),
        (per_second, "500 per hour", "write '500/h'"),
        (per_second, "2,000/s", "write '2000/s'"),
        (per_second, "500 rps", "write '500/s'"),
        (per_second, "-5/s", "write it like '500/s'"),
        (per_second, "", "write it like '500/s'"),
        (per_second, "9" * 500 + "/s", "write"),
        (share, "2", "write '2%'"),
        (share, "2 %", "write '2%'"),
        (share, "2 percent", "write '2%'"),
        (share, "500", "write it like '2%'"),
        (share, "few", "write it like '2%'"),
        (size, "4k", "write '4KB'"),
        (size, "4 kib", "write '4KiB'"),
        (size, "4 bytes", "write '4B'"),
        (size, "big", "write it like '200B'"),
    ],
)
def test_what_is_none_is_refused_with_the_nearest_right_form(read, text: str, fix: str):
    with pytest.raises(ConfigurationError) as told:
        read(text, "x")
    assert told.value.message.startswith(f"x={text[:40]!r} is not a")
    assert fix in told.value.message
    assert len(told.value.message) < 200


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize(
    "wrong", [-1, True, None, float("nan"), float("inf"), [1], "9e999", "101%"]
)
def test_no_number_of_another_kind(read, wrong: object):
    with pytest.raises(ConfigurationError, match="x"):
        read(wrong, "x")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_with_a_form_that_is_read(text: str):
    for read in READERS:
        try:
            assert read(text, "x") >= 0
        except ConfigurationError as error:
            hint = error.message.partition(": write '")[2]
            if hint and not hint.startswith("it like"):
                read(hint.removesuffix("'"), "x")
