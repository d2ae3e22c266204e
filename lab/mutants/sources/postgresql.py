"""Source mutants of PostgreSQL: statements, sweeps, generations, and the inbox inside a transaction."""

from __future__ import annotations

from .registry import break_source

SWEEP = "tests/stores/test_postgresql_sweep.py"
GEN = "tests/stores/test_postgresql_generations.py"
MIXED = "tests/stores/test_mixed_modes.py"
SWEPT = "tests/inbox/test_sweeps.py"
LEVEL = "tests/stores/test_postgresql_isolation.py"
PG = "tests/conformance/test_postgresql.py::TestPostgres16"
MEET = "tests/inbox/test_meeting.py"

break_source(
    "postgresql: a takeover counts a claim made ahead",
    bug="messages of a batch that never started are counted when their worker dies",
    file="_engines/postgresql/statements.py",
    old='    " THEN 1 ELSE 0 END)"',
    new='    " THEN 0 ELSE 0 END)"',
    tests=[f"{PG}::test_a_claim_made_ahead_of_its_start_is_not_counted"],
)
break_source(
    "postgresql: a sweep does not wait for old snapshots",
    bug="a record goes while a statement that knows a lower floor is running",
    file="_engines/postgresql/sweep_and_search.py",
    old="SELECT place FROM part, m WHERE over AND m.seen AND fence <= m.floor))",
    new="SELECT place FROM part, m WHERE over AND fence <= m.floor))",
    tests=[f"{SWEEP}::test_no_fence_is_given_out_twice_while_a_backend_stands_still"],
)
break_source(
    "postgresql: a floor that is not seen by all is raised again",
    bug="transactions that overlap put every sweep off for ever",
    file="_engines/postgresql/sweep_and_search.py",
    old="            if is_seen:\n",
    new="            if above:\n",
    tests=[f"{SWEEP}::test_a_sweep_goes_on_although_transactions_overlap_without_end"],
)
break_source(
    "postgresql: the floor of a drop is the smallest fence",
    bug="a dropped generation raises the floor to its smallest fence, so fences come back",
    file="_engines/postgresql/generation_sweep.py",
    old="coalesce(max(fence), 0) FROM {part} WHERE {where}",
    new="coalesce(min(fence), 0) FROM {part} WHERE {where}",
    tests=[f"{GEN}::test_the_floor_of_a_drop_is_as_high_as_its_highest_fence"],
)
break_source(
    "postgresql: a drop forgets the floor",
    bug="the floor is not raised when a generation goes",
    file="_engines/postgresql/generation_sweep.py",
    old='SET floor = {fence:d} WHERE floor < {fence:d}")',
    new='SET floor = floor WHERE floor < {fence:d}")',
    tests=[f"{GEN}::test_fences_go_on_after_a_drop"],
)
break_source(
    "postgresql: generations turn without a gate",
    bug="a claim under way does not hold back the next generation",
    file="_engines/postgresql/generation_sweep.py",
    old='yield Change(f"LOCK TABLE ONLY {self.records} IN EXCLUSIVE MODE")',
    new='yield Change("SELECT 1")',
    tests=[f"{GEN}::test_a_claim_under_way_holds_the_gate"],
)
break_source(
    "postgresql: a rewritten generation is dropped",
    bug="the file of a looked-through generation is not compared before its drop",
    file="_engines/postgresql/generation_sweep.py",
    old="AND pages >= {_pages(part)} AND file = pg_relation_filenode('{part}')",
    new="AND pages >= {_pages(part)}",
    tests=[f"{GEN}::test_a_table_that_was_rewritten_is_looked_at_again"],
)
break_source(
    "postgresql: a claim waits for a held row",
    bug="a claim waits longer for a row than the store waits for an answer",
    file="_engines/postgresql/statements.py",
    old="{True: 50, False: 1000}",
    new="{True: 60_000, False: 60_000}",
    tests=[f"{MIXED}::test_a_key_that_a_transaction_holds_is_in_progress[postgresql-reject]"],
)
break_source(
    "sql: a held key does not say so",
    bug="a waiter waits for an announcement that no transaction of a caller makes",
    file="_engines/sql/programs.py",
    old="wait=RETRY_WHEN_LOCKED, locked=True)",
    new="wait=RETRY_WHEN_LOCKED)",
    tests=[
        f"{MIXED}::test_unrelated_keys_do_not_wait_behind_it[{engine}]"
        for engine in ("postgresql", "mysql")
    ],
)
break_source(
    "postgresql: a take-over after a sweep inserts blindly",
    bug="a unique violation aborts the caller's transaction",
    file="_engines/postgresql/in_transaction.py",
    old="answer = yield from self._take(ask)",
    new="answer = yield from self._decide(ask)",
    tests=[f"{SWEPT}::test_the_callers_transaction_survives_a_sweep_in_every_gap[psycopg-process]"],
)
break_source(
    "postgresql: a note inserts blindly",
    bug="a unique violation loses the note of a failed attempt",
    file="_engines/postgresql/programs.py",
    old='f"{self._insert} ON CONFLICT DO NOTHING"',
    new="self._insert",
    tests=[f"{SWEPT}::test_a_deferred_write_is_made_whatever_comes_in_between[psycopg]"],
)
break_source(
    "postgresql: a note forgets the floor",
    bug="the fence of a noted attempt restarts after a sweep",
    file="_engines/postgresql/programs.py",
    old="greatest(?, (SELECT floor + 1 FROM {self.meta}))",
    new="greatest(?, 0)",
    tests=[f"{SWEPT}::test_a_deferred_write_after_a_sweep_has_a_higher_fence[psycopg]"],
)
break_source(
    "postgresql: the database's isolation is kept",
    bug="statements fail where they meet if the default is serializable",
    file="_engines/postgresql/session.py",
    old="set_config('default_transaction_isolation', 'read committed', false)",
    new="set_config('default_transaction_isolation', current_setting('default_transaction_isolation'), false)",
    tests=[f"{LEVEL}::test_workers_that_open_at_once_all_work[serializable-]"],
)
break_source(
    "postgresql: a pooler by statement is let in",
    bug="a pooler that has no transactions is found out by the first request that needs one",
    file="_engines/postgresql/session.py",
    old="        yield from _require_transactions(programs, where)\n",
    new="        yield from ()\n",
    tests=[f"{LEVEL}::test_what_a_pooler_cannot_give_is_refused_at_open"],
)
break_source(
    "postgresql: a hold does not hold",
    bug="an expired claim of a worker that may run at most once is taken over",
    file="_engines/postgresql/statements.py",
    old="({{r}}.state = 0 AND NOT {{r}}.hold)",
    new="{{r}}.state = 0",
    tests=[f"{PG}::test_an_expired_claim_is_held_if_its_owner_wanted_that"],
)
break_source(
    "postgresql: a new key starts its fences again",
    bug="the claim of a missing record does not read the floor, so a swept key's fence is given out again",
    file="_engines/postgresql/statements.py",
    old="SELECT m.floor + 1, ",
    new="SELECT 1, ",
    tests=[f"{PG}::test_fences_keep_increasing_after_a_sweep_that_removed_others_too"],
)
break_source(
    "postgresql: an owner's old fence is enough",
    bug="renew, complete and fail do not compare the fence",
    file="_engines/postgresql/statements.py",
    old='        owned = "r.owner = a.owner AND r.fence = a.fence"\n',
    new='        owned = "r.owner = a.owner"\n',
    tests=[f"{PG}::test_the_owner_alone_is_not_enough"],
)
break_source(
    "postgresql: a renewal shortens",
    bug="a renewal with a shorter lease takes time away",
    file="_engines/postgresql/statements.py",
    old="greatest(r.lease_until, a.now + a.lease)",
    new="a.now + a.lease",
    tests=[f"{PG}::test_renewal_never_shortens"],
)
break_source(
    "postgresql: a late owner is not heard",
    bug="a held or parked record cannot be completed by its owner",
    file="_engines/postgresql/statements.py",
    old="AND r.state IN (0, 4, 5)",
    new="AND r.state IN (0, 1, 5)",
    tests=[f"{PG}::test_completing_again_is_ok_and_changes_nothing"],
)
break_source(
    "postgresql: retention ended without a cause",
    bug="a start after the retention is told as a lost lease",
    file="_engines/postgresql/statements.py",
    old="WHEN {EXPIRED} THEN 3 ELSE 2 END",
    new="WHEN {EXPIRED} THEN 2 ELSE 2 END",
    tests=[f"{PG}::test_every_later_start_has_its_cause"],
)
break_source(
    "postgresql: nobody is woken",
    bug="the end of a record that somebody waits for is not announced",
    file="_engines/postgresql/statements.py",
    old="CASE WHEN r.awaited THEN",
    new="CASE WHEN NOT r.awaited THEN",
    tests=[f"{PG}::test_a_watcher_is_woken_at_the_end"],
)
break_source(
    "postgresql: a key fails for ever",
    bug="a key that failed too often is released again, never parked",
    file="_engines/postgresql/statements.py",
    old="WHEN {released} THEN 3 ELSE 5 END",
    new="WHEN {released} THEN 3 ELSE 3 END",
    tests=[f"{PG}::test_a_key_that_fails_too_often_is_parked"],
)
break_source(
    "postgresql: an unfinished inbox record is free",
    bug="a record that a handler committed by itself is taken over",
    file="_engines/postgresql/in_transaction.py",
    old='"hold": "true",\n            "error"',
    new='"hold": "false",\n            "error"',
    tests=[f"{MEET}::test_a_receiver_finds_an_unfinished_record_of_an_inbox_held[psycopg]"],
)
break_source(
    "postgresql: the caller's patience is ours",
    bug="the caller's lock time-out stays as the inbox set it",
    file="_engines/postgresql/in_transaction.py",
    old="            (SELECT set_config('lock_timeout', before, true) FROM lock_wait)\n        FROM (SELECT max",
    new="            (SELECT before FROM lock_wait)\n        FROM (SELECT max",
    tests=[f"{MEET}::test_the_callers_lock_timeout_is_as_it_was"],
)
break_source(
    "postgresql: a locked table is a busy key",
    bug="while the table is locked, a claim is told that its key is being worked on",
    file="_engines/postgresql/request_programs.py",
    old="if (is_claim or ask.op in ACTS) and (yield from self._table_is_free()):",
    new="if is_claim or ask.op in ACTS:",
    tests=[f"{MIXED}::test_a_locked_table_is_an_outage_and_not_a_busy_key"],
)
