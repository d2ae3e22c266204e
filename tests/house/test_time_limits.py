"""A limit whose expiry fails a test is for what hangs, not for what is slow: a minute or more.

On a busy machine a process takes 20 seconds to start, and a thread seconds to get its turn.
"""

from __future__ import annotations

import re

import pytest

from tests.house.repository import ROOT, name

LIMITS = [
    r"\.(?:result|exception)\((\d+)\)",
    r"asyncio\.timeout\((\d+)\)",
    r"asyncio\.wait(?:_for)?\(.*(?:, |timeout=)(\d+)\)",
    r"(?:acquire|Barrier|list_topics|committed|get_watermark_offsets)\(.*timeout=(\d+)\)",
    r"monotonic\(\) \+ (\d+)$",
    r"monotonic\(\) - \w+ < (\d+)\b",
]


def short(text: str) -> list[str]:
    found = [match for limit in LIMITS for match in re.finditer(limit, text, re.MULTILINE)]
    return [match[0] for match in found if 1 <= int(match[1]) < 60]


def test_every_limit_is_a_minute_or_more():
    texts = {name(path): path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py")}
    assert {place: found for place, text in texts.items() if (found := short(text))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "call.{}(10)".format("result"),
        "async with asyncio.{}(30):".format("timeout"),
        "await asyncio.{}(task, 20)".format("wait_for"),
        "until = time.{}() + 30".format("monotonic"),
        "assert time.{}() - began < 8".format("monotonic"),
    ],
)
def test_a_short_limit_would_be_seen(line: str):
    assert short(line)
