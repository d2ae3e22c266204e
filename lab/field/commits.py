"""kill -9 around a commit: of those who work in a transaction (C3, mode 2), and of relays (C13).

The scripts and their judges are those of `tests/kill` and `tests/outbox`.
"""

from __future__ import annotations

from tests.kill.aftermath import check_inbox
from tests.outbox.aftermath import carnage

from .concurrent_processes import folder_for, run_storm
from .running import ROOT
from .trial import Trial, trial
from .zombies import fresh_url

__all__ = ["killed_inboxes", "killed_relays"]

SQL = ("sqlite", "postgres", "mariadb")
STORM = ROOT / "tests" / "kill" / "inbox_storm.py"


@trial("kill -9 in a transaction", "C3", "kills", SQL)
def killed_inboxes(t: Trial) -> None:
    """Workers are killed at random moments of a transaction with effect and record. Is an effect lost,
    applied twice, or without its record?"""
    for turn in range(t.size(1, 20)):
        with folder_for() as folder, fresh_url(t.engine) as url:
            seed, kills = t.seed * 1000 + turn, t.size(60, 500)
            notes = run_storm(STORM, folder, store=url, seed=seed, kills=kills)
            t.tried += len(notes["killed"])
            t.count("keys", notes["keys"])
            check_inbox(notes)


@trial("killed relays", "C13", "kills", SQL)
def killed_relays(t: Trial) -> None:
    """Two relays are killed again and again while writers commit late or roll back. Is a message lost,
    skipped or out of order for its key? Is at most one batch repeated for each kill, under the same ids?"""
    kills = t.size(16, 200)
    with folder_for() as folder, fresh_url(t.engine) as url:
        after = carnage(url, folder, kills, t.seed)
    t.tried = kills
    t.count("messages", after.messages)
    t.count("published again", after.repeats)
