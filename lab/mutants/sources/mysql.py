"""Source mutants of MariaDB and MySQL: statements, floors, sweeps, and the inbox inside a transaction."""

from __future__ import annotations

from .registry import break_source

MIXED = "tests/stores/test_mixed_modes.py"
MEET = "tests/inbox/test_meeting.py"
RIVALS = "tests/stores/test_mysql_rivals.py"
WAITS = "tests/stores/test_mysql_waits.py"
MY = "tests/conformance/test_mysql.py::TestMariadb"
MYSQL = "tests/stores/test_mysql.py"

break_source(
    "mysql: the highest floor counts",
    bug="a record goes although a transaction has read a lower floor",
    file="_engines/mysql/sweep.py",
    old="SELECT MIN(floor) FROM",
    new="SELECT MAX(floor) FROM",
    tests=[f"{RIVALS}::test_a_floor_that_a_transaction_reads_holds_back_what_lies_above_it"],
)
break_source(
    "mysql: a sweep ignores the floor",
    bug="a record goes whatever the floor is",
    file="_engines/mysql/sweep.py",
    old=' AND fence <= {floor:d}"',
    new='"',
    tests=[f"{RIVALS}::test_a_floor_that_a_transaction_reads_holds_back_what_lies_above_it"],
)
break_source(
    "mysql: a sweep waits for who works on a record",
    bug="the rows of a bite are waited for",
    file="_engines/mysql/sweep.py",
    old="WHERE {still} FOR UPDATE SKIP LOCKED",
    new="WHERE {still} FOR UPDATE",
    tests=[f"{RIVALS}::test_a_sweep_does_not_wait_for_locked_records"],
)
break_source(
    "mysql: a sweep reads the table through",
    bug="a sweep waits at the rows that it has stepped over",
    file="_engines/mysql/sweep.py",
    old="DELETE o FROM {numbered(table, 'o', 'n', (row[0] for row in rows))}",
    new="DELETE o FROM {table} o WHERE o.n IN ({', '.join(str(row[0]) for row in rows)})",
    tests=[f"{RIVALS}::test_a_sweep_steps_over_what_a_transaction_has_met"],
)
break_source(
    "mysql: a batch reads the table through",
    bug="completions and renewals wait behind a row of another key that a transaction holds",
    file="_engines/mysql/owner_updates.py",
    old="AS a STRAIGHT_JOIN {records} r FORCE INDEX ({table}_identity) ON r.id = a.id",
    new="AS a JOIN {records} r ON r.id = a.id",
    tests=[f"{RIVALS}::test_a_batch_does_not_wait_for_a_row_that_is_none_of_its_own"],
)
break_source(
    "mysql: a batch reads a nearly empty table through",
    bug="renewals wait behind the row of an open inbox transaction, and leases are lost",
    file="_engines/mysql/owner_updates.py",
    old="{records} r FORCE INDEX ({table}_identity) ON r.id = a.id",
    new="{records} r ON r.id = a.id",
    tests=[
        f"{WAITS}::test_an_open_inbox_transaction_stops_no_renewal",
        f"{WAITS}::test_an_open_inbox_transaction_stops_no_async_renewal",
        f"{WAITS}::test_no_statement_that_locks_reads_a_table_through",
    ],
)
break_source(
    "mysql: rows by their numbers are searched for",
    bug="on a nearly empty table, sweeps and the outbox wait at rows of other sessions",
    file="_engines/mysql/row_lookup.py",
    old=" FORCE INDEX (PRIMARY) ON",
    new=" ON",
    tests=[f"{WAITS}::test_no_statement_that_locks_reads_a_table_through"],
)
break_source(
    "mysql: the floor is read without a lock",
    bug="MySQL: a sweep may raise the floor and delete while a claim that knows the old one inserts",
    file="_engines/mysql/programs.py",
    old="WHERE one = 1 AND floor = %s LOCK IN SHARE MODE{self._or_look}",
    new="WHERE one = 1 AND floor = %s{self._or_look}",
    tests=[f"{RIVALS}::test_a_claim_during_a_sweep_reads_the_new_floor[MySQL]"],
)
break_source(
    "mysql: new floors begin at nothing",
    bug="floors that are made later are lower than the first",
    file="_engines/mysql/sweep.py",
    old="{schema:d}, {floor:d})",
    new="{schema:d}, 0)",
    tests=[f"{RIVALS}::test_without_the_right_to_migrate_the_first_floor_serves_all"],
)
break_source(
    "mysql: a held key is an outage",
    bug="a claim of a key that a transaction holds fails",
    file="_engines/mysql/store.py",
    old="            if code_of(error.__cause__) != LOCK_WAIT:\n                raise\n            locked",
    new="            if code_of(error.__cause__) == LOCK_WAIT:\n                raise\n            locked",
    tests=[f"{MIXED}::test_a_key_that_a_transaction_holds_is_in_progress[mysql-reject]"],
)
break_source(
    "mysql: a changed record is the caller's fault",
    bug="with snapshot isolation a late duplicate is told that a try again is no use",
    file="_transactions/driver_errors.py",
    old='"mysql": {1205, 1213, 1020}',
    new='"mysql": {1205, 1213}',
    tests=[f"{RIVALS}::test_snapshot_isolation_tells_a_late_duplicate_to_come_again"],
)
break_source(
    "mysql: a lost insert is an error",
    bug="who inserts second is told of an outage",
    file="_engines/mysql/settings.py",
    old="frozenset({DUPLICATE, LOCK_WAIT, DEADLOCK, NO_NUMBER})",
    new="frozenset({LOCK_WAIT, DEADLOCK, NO_NUMBER})",
    tests=[f"{RIVALS}::test_a_lost_insert_finds_the_winner"],
)
break_source(
    "mysql: an owner's old fence is enough",
    bug="renew, complete and fail do not compare the fence",
    file="_engines/mysql/owner_updates.py",
    old='"r.owner = {owner} AND r.fence = {fence} AND "',
    new='"r.owner = {owner} AND {fence} > 0 AND "',
    tests=[f"{MY}::test_the_owner_alone_is_not_enough"],
)
break_source(
    "mysql: a renewal shortens",
    bug="a renewal with a shorter lease takes time away",
    file="_engines/mysql/owner_updates.py",
    old="GREATEST(r.lease_until, {now} + {{lease}})",
    new="{now} + {{lease}}",
    tests=[f"{MY}::test_renewal_never_shortens"],
)
break_source(
    "mysql: a key fails for ever",
    bug="a key that failed too often is released again, never parked",
    file="_engines/mysql/owner_updates.py",
    old="IF({released}, 3, 5))",
    new="IF({released}, 3, 3))",
    tests=[f"{MY}::test_a_key_that_fails_too_often_is_parked"],
)
break_source(
    "mysql: an unfinished inbox record is free",
    bug="a record that a handler committed by itself is taken over",
    file="_engines/mysql/in_transaction.py",
    old="{now}, {now}, 1, 0, x'')",
    new="{now}, {now}, 0, 0, x'')",
    tests=[f"{MEET}::test_a_receiver_finds_an_unfinished_record_of_an_inbox_held[pymysql]"],
)
break_source(
    "mysql: a session of any kind",
    bug="sessions take what does not fit and cut it",
    file="_engines/mysql/connection.py",
    old="STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
    new="NO_ENGINE_SUBSTITUTION",
    tests=[f"{MYSQL}::test_what_does_not_fit_is_an_error_and_never_cut"],
)
break_source(
    "mysql: a delivery is ended by its identity",
    bug="at REPEATABLE READ, unrelated keys cannot be claimed until the caller commits",
    file="_engines/mysql/in_transaction.py",
    old="WHERE n = %s AND owner = %s AND fence = %s AND state = 0",
    new="WHERE n + 0 = %s AND owner = %s AND fence = %s AND state = 0",
    tests=[f"{WAITS}::test_a_delivery_that_is_done_and_not_committed_locks_no_gap[process]"],
)
break_source(
    "mysql: an operator is told of an outage",
    bug="release and forget of a key that a transaction holds look like a server that is down",
    file="_engines/mysql/store.py",
    old="                raise\n            return Ack.LOCKED",
    new="                raise\n            raise",
    tests=[f"{MIXED}::test_an_operator_learns_that_a_transaction_holds_the_record[mysql]"],
)
break_source(
    "mysql: a batch that is run again asks everything again",
    bug="a claim that was decided is decided a second time when another of its batch met a lock",
    file="_engines/mysql/store.py",
    old="programs.perform_all(asks, known)",
    new="programs.perform_all(asks)",
    tests=[
        "tests/stores/test_mysql_rivals.py::test_a_batch_that_is_run_again_decides_no_claim_twice"
    ],
)
