"""One way of the matrix, tried: begin, record, effect, end; and what the server says at each step.

What a wrapper says about itself counts for nothing here. After the record is written the server is
asked through the same connection whether the transaction still runs, and others, through connections
of their own, must see neither record nor effect before the commit, both after it, and none after a
rollback. A way that is refused must leave nothing behind.
"""

from __future__ import annotations

from typing import Any

from tests.transactions import ways, wrapped
from tests.transactions.kinds import Door, open_door
from tests.transactions.ways import Way
from twicesafe import AsyncInbox, AsyncOutbox, Inbox, Outbox, Receiver, TwicesafeError, UsageError

EFFECT = "INSERT INTO credits (n, amount) VALUES (1, {})"
STILL_OPEN = {
    "postgres": "SELECT pg_current_xact_id_if_assigned() IS NOT NULL",
    "mariadb": "SELECT @@in_transaction",
}
LOOKING = {"sqlite": "sqlite3-implicit", "postgres": "psycopg", "mariadb": "pymysql"}


class Shop:
    """One database, with those who look at it from outside."""

    def __init__(self, engine: str, url: str) -> None:
        self.url = url
        self.receiver, self.inbox, self.outbox = (
            kind.open(url) for kind in (Receiver, Inbox, Outbox)
        )
        self.others = open_door(LOOKING[engine], url)
        with self.others.transaction():
            self.others.sql("CREATE TABLE credits (n INTEGER, amount INTEGER)")

    def close(self) -> None:
        for each in (self.others, self.inbox, self.outbox, self.receiver):
            each.close()


def seen_in(shop: Shop, number: int) -> tuple[bool, int]:
    """Is there a record, and how many effects, as others see them?"""
    with shop.others.transaction():
        effects = shop.others.sql(f"SELECT n FROM credits WHERE n = 1 AND amount = {number}")
    return shop.receiver.record(f"m-{number}") is not None, len(effects)


class Trial:
    """A door to the shop that is opened in some way, and used like that once or often."""

    def __init__(self, way: Way, shop: Shop, place: str) -> None:
        self.way, self.engine, self.shop = way, way.engine, shop
        self.receiver, self.others = shop.receiver, shop.others
        self.door = open_door(way.kind, place, **way.options)
        self.inbox: Any = AsyncInbox.open(shop.url) if self.door.is_async else shop.inbox
        self.outbox: Any = AsyncOutbox.open(shop.url) if self.door.is_async else shop.outbox

    def close(self) -> None:
        if self.door.is_async:
            self.door.end(self.inbox.close())
            self.door.end(self.outbox.close())
        self.door.close()

    def act(self, name: str, number: int) -> None:
        """Ours, in the user's transaction."""
        connection = self.door.connection
        if name == "accept":
            assert self.door.end(self.inbox.accept(connection, f"m-{number}"))
        elif name == "process":
            handler = self.door.handler(lambda: "done")
            self.door.end(self.inbox.process(connection, f"m-{number}", handler))
        else:
            self.door.end(self.outbox.add(connection, topic="t", body=b"", id=f"m-{number}"))

    def seen(self, name: str, number: int) -> tuple[bool, bool]:
        """Record and effect, as others see them."""
        with self.others.transaction():
            effect = self.others.sql(f"SELECT n FROM credits WHERE amount = {number}")
            if name == "add":
                sent = f"SELECT n FROM twicesafe_outbox WHERE id = 'm-{number}'"
                return bool(self.others.sql(sent)), bool(effect)
        return self.receiver.record(f"m-{number}") is not None, bool(effect)

    def is_open(self) -> bool:
        if self.engine != "sqlite":
            return bool(self.door.sql(STILL_OPEN[self.engine])[0][0])
        return bool(_driver_of(self.door).in_transaction)

    def once(self, name: str, commit: bool) -> str:
        """Begin, record, effect, end; "refused", or "" when all was atomic, or what was not."""
        number = ways.number()
        after = self.way.begin(self.door)
        try:
            self.act(name, number)
        except TwicesafeError as error:
            self.give_up()
            if self.seen(name, number) != (False, False):
                return f"something is left after: {error}"
            return "refused" if isinstance(error, UsageError) else f"fails: {error}"
        if not self.is_open():
            return "the server has no open transaction"
        if after is not None:
            after()
        if self.seen(name, number) != (False, False):
            return "committed before the commit"
        self.door.sql(EFFECT.format(number))
        if self.seen(name, number) != (False, False):
            return "committed before the commit"
        self.door.commit() if commit else self.door.rollback()
        if self.seen(name, number) != (commit, commit):
            return f"(record, effect) = {self.seen(name, number)} after commit={commit}"
        return ""

    def give_up(self) -> None:
        try:
            self.door.rollback()
        except Exception:  # there may be nothing to roll back
            return


def _driver_of(door: Door) -> Any:
    """The `sqlite3.Connection` below whatever is above it."""
    connection = wrapped.driver_of(door)
    return getattr(connection, "_conn", connection)
