"""The crash matrix on real servers: what is right passes there too, and what is not is found."""

from __future__ import annotations

import asyncio

import pytest

from twicesafe import AsyncReceiver, Receiver, current_key
from twicesafe.testing import crash_matrix


@pytest.fixture(params=["postgres", "valkey"])
def url(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr("twicesafe.testing._simulated_process.BRIEF", 0.3)
    return request.getfixturevalue(f"{request.param}_url")


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_on_a_server(url: str, mode: str):
    done: dict[str, str] = {}
    lines: list[str] = []

    def put(item: str) -> str:
        done.setdefault(current_key().derive("line").value, item)
        return item

    async def append(item: str) -> str:
        await asyncio.sleep(0)
        lines.append(item)
        return item

    if mode == "sync":
        with Receiver.open(url) as receiver:
            report = crash_matrix(
                put, "tea", snapshot=lambda: [*done.values()], setup=done.clear, receiver=receiver,
                interleavings=1,
            )  # fmt: skip
        assert report.ok, str(report)
    else:
        receiver = AsyncReceiver.open(url)
        report = crash_matrix(
            append, "tea", snapshot=lambda: [*lines], setup=lines.clear, receiver=receiver,
            interleavings=0,
        )  # fmt: skip
        asyncio.run(receiver.close())
        assert {trial.name for trial in report.wrong} == {
            "after the handler, with nothing recorded",
            "before complete",
        }
