"""An async store on top of a blocking one: no call is left without an answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from twicesafe import Key
from twicesafe._core.protocol import ClaimRequest, Read, Verdict
from twicesafe.stores import _threaded_store, open_async_store
from twicesafe.stores._threaded_store import ThreadedStore


async def test_a_call_that_meets_a_close_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Another event loop closes the store between two lines of this call. The call waited forever."""
    store: Any = open_async_store(f"sqlite:///{tmp_path / 'keys.db'}")
    assert isinstance(store, ThreadedStore)
    await store.perform(Read(Key("k").id))
    worker, put = store._worker, _threaded_store._Worker.put

    def late(self: Any, call: Any) -> None:
        if store._worker is worker:
            store._worker = None
            worker.stop()
        put(self, call)

    monkeypatch.setattr(_threaded_store._Worker, "put", late)
    claim = ClaimRequest(Key("k"), b"o" * 16, 1000)
    async with asyncio.timeout(60):
        assert (await store.perform(claim)).verdict is Verdict.WON
    await store.close()
