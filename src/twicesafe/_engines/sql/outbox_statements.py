"""The statements of a relay's programs, written once for an engine and a driver.

What each of them is for is in `outbox_relay_programs`.
"""

from __future__ import annotations

from typing import Final

from .outbox_dialect import COLUMNS, FALSE, TRUE, OutboxDialect

__all__ = ["RelayStatements"]

_DAY: Final = 86_400_000


class RelayStatements:
    def __init__(self, outbox: OutboxDialect) -> None:
        t, mark, now = outbox.t, outbox.mark, outbox.instant()
        lock, share, skip = outbox.lock, outbox.share, outbox.skip
        old = f"seen_until < {now} - {_DAY:d}"
        outdated = (
            f"FROM {t}_troubles t WHERE t.parked = {FALSE} AND t.not_before <= {now}"
            f" AND NOT EXISTS (SELECT 1 FROM {t} o WHERE o.n = t.n)"
        )

        # -- slots
        self.release = f"UPDATE {t}_slots SET owner = ?, lease_until = 0 WHERE owner = ?"
        """Releases all slots of the owner; with a list of slots after it, only those."""
        self.release_all = mark(self.release)
        self.leave = mark(f"DELETE FROM {t}_relays WHERE owner = ?")
        # Accepted after the end of the lease, too, unless another relay took over (P4).
        self.renew = mark(f"UPDATE {t}_slots SET lease_until = {now} + ? WHERE owner = ?")
        self.seen = mark(
            outbox.upsert(
                f"{t}_relays",
                "owner, seen_until, asleep",
                f"?, {now} + ?, {FALSE}",
                "owner",
                ["seen_until"],
            )
        )
        self.seen_relays = mark(
            f"SELECT s.slot, s.fence, (SELECT count(*) FROM {t}_relays WHERE seen_until > {now}),"
            f" CASE WHEN EXISTS (SELECT 1 FROM {t}_relays WHERE {old}) THEN 1 ELSE 0 END,"
            f" CASE WHEN EXISTS (SELECT 1 {outdated}) THEN 1 ELSE 0 END"
            f" FROM {t}_relays r LEFT JOIN {t}_slots s ON s.owner = r.owner WHERE r.owner = ?"
        )
        self.free_slots = mark(
            f"SELECT slot, fence FROM {t}_slots WHERE lease_until <= {now} ORDER BY slot LIMIT ?{skip}"
        )
        self.take = (
            f"UPDATE {t}_slots SET owner = ?, fence = fence + 1, lease_until = {now} + ? WHERE"
        )
        """A list of slots follows."""
        self.awake = mark(f"UPDATE {t}_relays SET asleep = {FALSE} WHERE owner = ?")
        # One by one: a DELETE that searches for them would wait for every relay that renews.
        self.old_relays = f"SELECT owner FROM {t}_relays WHERE {old}"
        self.remove_old = mark(f"DELETE FROM {t}_relays WHERE owner = ? AND {old}")

        # -- rows
        self.fetch = (
            f"SELECT {', '.join(f'o.{name}' for name in COLUMNS.split(', '))},"
            " CASE WHEN t.n = o.n THEN t.attempts ELSE 0 END,"
            " CASE WHEN t.n = o.n THEN 1 ELSE 0 END,"
            f" CASE WHEN EXISTS (SELECT 1 FROM {t}_troubles) THEN 1 ELSE 0 END"
            f" FROM {t} o {outbox.in_trouble} WHERE {outbox.may_go()} AND"
        )
        """Lists of slots and lanes follow, here and in `passed`."""
        self.any_trouble = f"SELECT 1 FROM {t}_troubles LIMIT 1"
        self.passed = (
            f"SELECT o.n, o.lane FROM {t} o JOIN {t}_troubles t ON t.lane = o.lane"
            f" WHERE (t.parked = {TRUE} OR o.n > t.n) AND"
        )
        pending = f"SELECT 1 FROM {t} WHERE n = ?"
        self.share_pending = mark(pending + share)
        self.lock_pending = mark(pending + lock)

        # -- lanes in trouble
        self.outdated = f"SELECT t.lane {outdated} LIMIT 100"
        trouble = f"FROM {t}_troubles WHERE lane = ?"
        self.lock_outdated = mark(f"SELECT n {trouble} AND parked = {FALSE}{skip}")
        self.lock_cured = mark(f"SELECT 1 {trouble} AND n = ? AND parked = {FALSE}{lock}")
        self.lock_trouble = mark(f"SELECT n, parked {trouble}{lock}")
        self.lock_attempts = mark(f"SELECT attempts {trouble} AND n = ?{lock}")
        self.waiting = mark(
            f"SELECT n FROM {t}_parked WHERE lane = ? AND skipped_at = 0"
            f" ORDER BY n LIMIT {outbox.part:d}"
        )
        self.end_trouble = mark(f"DELETE {trouble}")
        self.move_trouble = mark(
            f"UPDATE {t}_troubles SET n = ?, attempts = 0, not_before = 0, parked = {FALSE}"
            " WHERE lane = ?"
        )
        self.holds = mark(
            f"SELECT 1 FROM {t}_slots WHERE slot = ? AND owner = ? AND fence = ?{share}"
        )
        values = f"?, ?, ?, {now} + ?, ?, ?, {now}"
        noted = ["n", "attempts", "not_before", "parked", "error"]
        columns = f"lane, {', '.join(noted)}, since"
        row = f"{t}_troubles", columns, values, "lane"
        self.refuse = mark(outbox.upsert(*row, [*noted, "since"]))
        self.refuse_again = mark(outbox.upsert(*row, noted))
