"""The kit on inbox handlers: the delivery is the user's own transaction, so it is tried ``bare``.

Every line of a delivery is a death: before the claim, in the handler, between its writes, before the
commit and after it. A raised death leaves the ``with`` of the connection, which rolls back, as the
engine would; a kill leaves it to the engine itself.
"""

from __future__ import annotations

import contextlib
import gc
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from twicesafe.testing import Matrix, crash_matrix

SHOP = '''
import contextlib
import pathlib
import sqlite3

from twicesafe import Inbox

PATH = "shop.db"


def clean():
    for name in (PATH, PATH + "-wal", PATH + "-shm"):
        pathlib.Path(name).unlink(missing_ok=True)
    Inbox.open("sqlite:///" + PATH + "?synchronous=normal").close()
    with opened() as db:
        db.execute("CREATE TABLE paid (id TEXT, cents INT)")


def opened():
    return contextlib.closing(sqlite3.connect(PATH, timeout=0.1, isolation_level=None))


def paid():
    with opened() as db:
        return db.execute("SELECT id, cents FROM paid").fetchall()


def charge(db, order):
    db.execute("INSERT INTO paid VALUES (?, 100)", (order,))
    db.execute("UPDATE paid SET cents = cents + 1 WHERE id = ?", (order,))
    return order


def together(order):
    with Inbox.open("sqlite:///" + PATH + "?synchronous=normal") as inbox, opened() as db:
        db.execute("BEGIN IMMEDIATE")
        inbox.process(db, order, charge, db, order)
        db.execute("COMMIT")


def apart(order):
    """The classic: the message is accepted in one transaction, and handled in the next."""
    with Inbox.open("sqlite:///" + PATH + "?synchronous=normal") as inbox, opened() as db:
        db.execute("BEGIN IMMEDIATE")
        new = inbox.accept(db, order)
        db.execute("COMMIT")
        if new:
            charge(db, order)
'''

pytestmark = pytest.mark.filterwarnings("ignore:unclosed database:ResourceWarning")


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "inbox_shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import inbox_shop  # pyright: ignore[reportMissingImports]

    yield inbox_shop
    sys.modules.pop("inbox_shop", None)
    gc.collect()  # a raised death closes nothing: Python 3.13 warns of it, here and in no later test


def tried(shop: ModuleType, name: str, **options: object) -> Matrix:
    return crash_matrix(
        getattr(shop, name), "o-1", snapshot=shop.paid, setup=shop.clean, bare=True, **options
    )


def test_an_inbox_handler_is_applied_once_wherever_it_dies(shop: ModuleType):
    report = tried(shop, "together", lines=True, interleavings=3)
    assert report.ok, str(report)
    died = [trial.name for trial in report.trials if trial.kind == "crash"]
    for line in ("UPDATE paid", "COMMIT", "INSERT INTO paid"):
        assert any(line in name for name in died), line


def test_two_transactions_lose_what_lies_between(shop: ModuleType):
    report = tried(shop, "apart", lines=True, interleavings=0)
    assert report.wrong[0].fault.startswith("lost")
    assert "if new:" in report.wrong[0].name


def test_a_killed_inbox_handler_is_applied_once(shop: ModuleType):
    report = tried(shop, "together", interleavings=0, kill=True)
    assert report.ok, str(report)
    assert sum(trial.kind == "kill" for trial in report.trials) == 2


# The driver's thread has an answer for a loop that died with its life: that is the point of it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_async_inbox_too(shop: ModuleType):
    import aiosqlite

    from twicesafe import AsyncInbox

    async def together(order: str) -> None:
        inbox = AsyncInbox.open(f"sqlite:///{shop.PATH}?synchronous=normal")
        async with aiosqlite.connect(shop.PATH, timeout=0.1, isolation_level=None) as db:
            await db.execute("BEGIN IMMEDIATE")

            async def charge() -> str:
                await db.execute("INSERT INTO paid VALUES (?, 100)", (order,))
                await db.execute("UPDATE paid SET cents = cents + 1 WHERE id = ?", (order,))
                return order

            await inbox.process(db, order, charge)
            await db.execute("COMMIT")
        await inbox.close()

    report = crash_matrix(
        together, "o-1", snapshot=shop.paid, setup=shop.clean, bare=True, interleavings=1
    )
    assert report.ok, str(report)
    awaits = [trial.name for trial in report.trials if "the await of" in trial.name]
    assert len(awaits) >= 4
    with contextlib.closing(sqlite3.connect(shop.PATH)) as db:
        assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
