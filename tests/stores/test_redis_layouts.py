"""The two layouts of a Redis record: compact in new stores, the first one where older nodes may be."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from twicesafe import AsyncReceiver, ConfigurationError, Key, Receiver
from twicesafe._core.protocol import ClaimRequest, Complete, Fail, Read, Renew
from twicesafe._engines.redis import RedisStore
from twicesafe._engines.redis.key_scans import COMPACT, PLAIN
from twicesafe._engines.redis.settings import Settings

OWNER = b"o" * 16


def version(url: str, key: str) -> int:
    """The layout that is on the server."""
    place, prefix = placed(url)
    with redis.Redis.from_url(place) as client:
        found: Any = client.get(prefix + b":{." + Key(key).id + b"}")
        return int(found[0] >> 4)


def placed(url: str) -> tuple[str, bytes]:
    """The URL for the driver, and the prefix of all names."""
    settings = Settings.of(url)
    return url.partition("?")[0], settings.prefix.encode()


def test_a_new_store_gets_compact_records(valkey_url: str):
    with Receiver.open(valkey_url) as receiver:
        receiver.process("k", str, 1)
        assert version(valkey_url, "k") == 2
        assert receiver.store.migrate() == []
    with Receiver.open(valkey_url) as again:
        assert again.process("k", str, 2).value == "1"
        assert again.store.programs.how is COMPACT  # type: ignore[attr-defined]


def test_an_existing_store_keeps_the_first_layout_until_it_is_migrated(valkey_url: str):
    with Receiver.open(valkey_url) as old:
        old.store.programs.how = PLAIN  # type: ignore[attr-defined]
        old.process("k", str, 1)
        place, prefix = placed(valkey_url)
        with redis.Redis.from_url(place) as client:
            assert client.delete(prefix + b":layout") == 1
        with Receiver.open(valkey_url) as beside:
            beside.process("new", str, 1)
            assert version(valkey_url, "new") == 1
            assert "compact" in beside.store.migrate()[0]
            beside.process("newer", str, 1)
        assert version(valkey_url, "newer") == 2
        assert old.process("newer", str, 2).value == "1"
    with Receiver.open(valkey_url) as later:
        assert later.process("k", str, 2).value == "1"
        later.process("last", str, 1)
        assert (version(valkey_url, "k"), version(valkey_url, "last")) == (1, 2)


async def test_the_async_store_decides_the_same(valkey_url: str):
    async def one() -> int:
        return 1

    async with AsyncReceiver.open(valkey_url) as receiver:
        await receiver.process("k", one)
        assert version(valkey_url, "k") == 2
        assert await receiver.store.migrate() == []


def test_both_layouts_say_the_same(valkey_url: str):
    """The same life in each; only the moment differs."""
    store = RedisStore.open(valkey_url)
    rows = []
    for number, how in enumerate((PLAIN, COMPACT)):
        store.programs.how = how
        seen = []
        for end in ("none", "renewed", "done", "large", "failed"):
            key = Key(f"{end}-{number}", ("tenant",))
            mine = store.perform(ClaimRequest(key, OWNER, 60_000, fingerprint=b"f" * 32))
            asks: dict[str, Any] = {
                "renewed": Renew(key.id, OWNER, mine.fence, 120_000),
                "done": Complete(key.id, OWNER, mine.fence, 60_000, b"result"),
                "large": Complete(key.id, OWNER, mine.fence, 10**13, b"r" * 5000),
                "failed": Fail(key.id, OWNER, mine.fence, 10, 5, 60_000, "no"),
            }
            if end in asks:
                store.perform(asks[end])
            row = store.perform(Read(key.id))
            assert row.created_at == row.fence // 1000
            assert 0 <= row.changed_at - row.created_at < 30_000
            spans = tuple(at and at - row.changed_at for at in (row.lease_until, row.expires_at))
            # A renewal is counted from its own moment, a little later.
            about = tuple(round(span, -5) if end == "renewed" else span for span in spans)
            seen.append(
                (row.state, row.attempt, row.owner, row.fingerprint, row.result, row.scope, about)
            )
        rows.append(seen)
    store.close()
    assert rows[0] == rows[1]


def test_a_takeover_writes_what_does_not_follow_from_its_fence(valkey_url: str):
    with Receiver.open(valkey_url) as receiver:
        store = receiver.store
        key = receiver.key("k")
        first = store.perform(ClaimRequest(key, OWNER, 60_000))
        store.perform(Fail(key.id, OWNER, first.fence, 0, 5, 60_000, "no"))
        second = store.perform(ClaimRequest(key, b"p" * 16, 60_000))
        row = store.perform(Read(key.id))
        assert (row.attempt, row.created_at) == (2, first.fence // 1000)
        assert second.fence > first.fence


def test_a_user_that_may_not_write_the_mark_keeps_the_first_layout(valkey_url: str):
    """It can work all the same; only a migration says that it is not allowed."""
    place, prefix = placed(valkey_url)
    with redis.Redis.from_url(place) as client:
        client.acl_setuser(
            "limited", enabled=True, passwords=["+pw"], commands=["+@all"],
            keys=[f"{prefix.decode()}:{{*"], channels=["*"], reset=True,
        )  # fmt: skip
    url = valkey_url.replace("redis://", "redis://limited:pw@", 1)
    with Receiver.open(url) as receiver:
        assert receiver.process("k", str, 1).value == "1"
        assert version(valkey_url, "k") == 1
        with pytest.raises(ConfigurationError, match="permission"):
            receiver.store.migrate()
