"""Source mutants of durable runs: the programs that all SQL stores share, the statements of PostgreSQL and
MariaDB, and the scripts and the due index of Redis."""

from __future__ import annotations

from .registry import break_source

LITE = "tests/conformance/test_sqlite.py::TestSqlite"
PG = "tests/conformance/test_postgresql.py::TestPostgres16"
MARIA = "tests/conformance/test_mysql.py::TestMariadb"
RULES = "tests/stores/test_redis_conformance.py::TestValkey"
SQL = "tests/durable/test_sql_stores.py"
INDEX = "tests/durable/test_due_index.py"
SUSPENDING = "tests/durable/test_suspending.py"

# --- all SQL stores ------------------------------------------------------------------------------

break_source(
    "runs: a step is recorded for a run that is over",
    bug="the statement of a step does not look at the state of the record",
    file="_engines/sql/run_programs.py",
    old='" AND r.fence = ? AND r.state = 0{lock}"',
    new='" AND r.fence = ?{lock}"',
    tests=[f"{LITE}::test_no_step_without_a_run"],
)
break_source(
    "runs: steps of an earlier run stay",
    bug="a run that starts after retention keeps the steps of the one before it in the table",
    file="_engines/sql/run_programs.py",
    old="        if stale:\n",
    new="        if not stale:\n",
    tests=[f"{LITE}::test_a_run_after_retention_starts_without_the_old_steps"],
)
break_source(
    "runs: a signal that came first is not adopted",
    bug="a signal that came before its run never belongs to it, and is handed to the next run too",
    file="_engines/sql/run_programs.py",
    old="if any(step.fence == 0 for step in steps):",
    new="if any(step.fence < 0 for step in steps):",
    tests=[f"{LITE}::test_a_signal_before_its_run_is_kept"],
)
break_source(
    "runs: a run without an undo is started again and again",
    bug="a run whose attempts are used up, and that has nothing to undo, is not parked",
    file="_engines/sql/run_programs.py",
    old="            if parked is not None:\n",
    new="            if parked is ...:\n",
    tests=[f"{LITE}::test_a_run_without_an_undo_parks_after_its_attempts"],
)
break_source(
    "runs: a signal for the next run goes with the last one",
    bug="a signal beside a run whose retention is over is removed with that run",
    file="_engines/sql/run_programs.py",
    old="elif is_expired(row, now) or not (yield",
    new="elif not (yield",
    tests=[f"{LITE}::test_a_signal_for_the_next_run_of_a_key_is_kept"],
)
break_source(
    "runs: a signal does not look again after it waited",
    bug="a signal that meets the start of its run is kept as one that came before it",
    file="_engines/sql/run_programs.py",
    old="            row, now = yield from records.load(ask.id, records.lock)\n            if row is not None:\n",
    new="            if row is not None:\n",
    tests=[f"{SQL}::test_a_signal_beside_the_start_of_its_run_belongs_to_it[postgres]"],
)
break_source(
    "runs: a signal locks nothing before its run",
    bug="a run that starts beside its signal does not see it",
    file="_engines/sql/run_programs.py",
    old="        yield Change(self._expect_run, values)\n",
    new="        yield from () if values else ()\n",
    tests=[f"{SQL}::test_a_run_that_starts_beside_its_signal_gets_it[postgres]"],
)
break_source(
    "runs: a suspension does not look at signals",
    bug="a signal that came just before the suspension is missed",
    file="_engines/sql/run_programs.py",
    old="signalled = signalled or (step is not None",
    new="signalled = signalled and (step is not None",
    tests=[f"{LITE}::test_a_signal_that_came_before_the_suspension_is_not_missed"],
)
break_source(
    "runs: a restart keeps the steps",
    bug="a run that an operator restarts goes on where it was",
    file="_engines/sql/run_programs.py",
    old="            yield Change(self._remove_steps, (id_,))\n            now",
    new="            now",
    tests=[f"{LITE}::test_release_keeps_the_steps_and_restart_drops_them"],
)
break_source(
    "runs: the steps of a damaged record are removed",
    bug="a record that cannot be read counts as one that is gone",
    file="_engines/sql/run_upkeep.py",
    old="        return now + run_lifecycle.CLOSED_PAUSE\n",
    new="        return run_lifecycle.DROP\n",
    tests=[f"{SQL}::test_a_damaged_record_keeps_its_steps_and_hides_no_other[sqlite]"],
)
break_source(
    "runs: two completers get the same run",
    bug="a look does not ask whether it was the one that moved the run",
    file="_engines/sql/run_upkeep.py",
    old="            if (yield Change(self._look_later, (next_, id_, due_at))):\n                changed.add(id_)\n",
    new="            yield Change(self._look_later, (next_, id_, due_at))\n            changed.add(id_)\n",
    tests=[f"{SQL}::test_of_two_looks_at_once_one_gets_the_run[mariadb]"],
)
break_source(
    "runs: a look while records are moved takes them for gone",
    bug="steps of runs whose records are still in the wide table are removed",
    file="_engines/sql/run_upkeep.py",
    old="        if self._records.moves is not None:\n            yield from self._fetch(ids)\n",
    new="",
    tests=[
        "tests/conformance/test_sqlite.py::TestMovingSqlite::test_what_is_due_is_found[blocking]",
    ],
)

# --- PostgreSQL ----------------------------------------------------------------------------------

break_source(
    "postgresql runs: a step does not lock its record",
    bug="a takeover does not wait for the step of the owner before, and runs it again",
    file="_engines/postgresql/run_statements.py",
    old="AND r.fence = a.fence AND r.state = 0 FOR SHARE) mine",
    new="AND r.fence = a.fence AND r.state = 0) mine",
    tests=[f"{SQL}::test_a_takeover_sees_the_step_that_is_under_way[postgres]"],
)
break_source(
    "postgresql runs: a step for a run that is over",
    bug="the lone statement of a step does not look at the state of the record",
    file="_engines/postgresql/run_statements.py",
    old="AND r.fence = a.fence AND r.state = 0 FOR SHARE) mine",
    new="AND r.fence = a.fence FOR SHARE) mine",
    tests=[f"{PG}::test_no_step_without_a_run"],
)
break_source(
    "postgresql runs: every run is new",
    bug="a run that is taken over starts without its steps",
    file="_engines/postgresql/run_statements.py",
    old="xmax = 0 AS is_new",
    new="true AS is_new",
    tests=[f"{PG}::test_a_takeover_gets_the_recorded_steps"],
)
break_source(
    "postgresql runs: a signal that came first stays without a run",
    bug="a start hands out a signal that came before it, and does not adopt it",
    file="_engines/postgresql/run_programs.py",
    old="if any(not s.fence or (is_first",
    new="if any((is_first",
    tests=[f"{PG}::test_a_signal_after_a_failed_run_belongs_to_the_next"],
)
break_source(
    "postgresql runs: the lone start keeps old steps",
    bug="a run that starts after retention gets the steps of the one before it",
    file="_engines/postgresql/run_programs.py",
    old="(is_first and s.fence < answer.fence)",
    new="(is_first and s.fence > answer.fence)",
    tests=[f"{PG}::test_a_run_after_retention_starts_without_the_old_steps"],
)
break_source(
    "postgresql runs: a submitted run counts as an attempt",
    bug="a run that was only submitted has used up one of its attempts",
    file="_engines/postgresql/run_statements.py",
    old='"attempt": "0",',
    new='"attempt": "1",',
    tests=[f"{PG}::test_a_submitted_run_is_due_at_once"],
)
break_source(
    "postgresql runs: a look moves a run that was moved",
    bug="two completers that look at once both get the run",
    file="_engines/postgresql/run_programs.py",
    old="n(id, due_at, next)\n                JOIN {self.runs} t ON t.id = n.id AND t.due_at = n.due_at",
    new="n(id, due_at, next)\n                JOIN {self.runs} t ON t.id = n.id",
    tests=[f"{SQL}::test_of_two_looks_at_once_one_gets_the_run[postgres]"],
)
break_source(
    "postgresql runs: a run that was started again is removed",
    bug="the steps of a run are removed although it has just started again",
    file="_engines/postgresql/run_programs.py",
    old="n(id, due_at)\n                JOIN {self.runs} t ON t.id = n.id AND t.due_at = n.due_at",
    new="n(id, due_at)\n                JOIN {self.runs} t ON t.id = n.id",
    tests=[
        f"{SQL}::test_a_run_that_starts_while_the_last_one_is_removed_keeps_its_steps[postgres]"
    ],
)
break_source(
    "postgresql runs: a run that resumes has no cause",
    bug="a run that was suspended says that its lease expired",
    file="_engines/postgresql/statements.py",
    old="THEN 0 WHEN {{r}}.state IN (3, 7) THEN",
    new="THEN 0 WHEN {{r}}.state = 3 THEN",
    tests=[f"{PG}::test_a_suspended_run_is_claimed_when_it_is_due"],
)
break_source(
    "postgresql runs: one statement records a step twice",
    bug="of two results of one step in a batch both are acknowledged",
    file="_engines/postgresql/request_programs.py",
    old="(step is None or None in before or step in before)",
    new="(step is None or None in before)",
    tests=[f"{PG}::test_steps_can_be_sent_in_one_batch"],
)

# --- MariaDB and MySQL ---------------------------------------------------------------------------

break_source(
    "mysql runs: a step does not lock its record",
    bug="a takeover does not wait for the step of the owner before, and runs it again",
    file="_engines/mysql/run_programs.py",
    old=" LOCK IN SHARE MODE ON DUPLICATE KEY UPDATE",
    new=" ON DUPLICATE KEY UPDATE",
    tests=[f"{SQL}::test_a_takeover_sees_the_step_that_is_under_way[mariadb]"],
)
break_source(
    "mysql runs: a sleep has no end",
    bug="a sleep is recorded as one that is over",
    file="_engines/mysql/run_programs.py",
    old='f"{now} + ?"',
    new='"0 * ?"',
    tests=[f"{MARIA}::test_a_sleep_is_due_when_it_was"],
)
break_source(
    "mysql runs: a start waits for a locked record",
    bug="a start whose record is locked is an outage, not a run in progress",
    file="_engines/mysql/store.py",
    old="        if isinstance(request, ClaimRequest):\n            return self._claim(request)",
    new="        if type(request) is ClaimRequest:\n            return self._claim(request)",
    tests=[f"{SQL}::test_a_takeover_sees_the_step_that_is_under_way[mariadb]"],
)

# --- Redis: the scripts --------------------------------------------------------------------------

LUA = "_engines/redis/lua"

break_source(
    "redis runs: a step without its fence",
    bug="a worker whose run was taken over by itself records steps of its old claim",
    file=f"{LUA}/record_step.lua",
    old="if known == fence and holder == owner and",
    new="if holder == owner and",
    tests=[f"{RULES}::test_only_the_owner_with_its_fence_records"],
)
break_source(
    "redis runs: a step without its owner",
    bug="who knows the fence records steps",
    file=f"{LUA}/record_step.lua",
    old="if known == fence and holder == owner and",
    new="if known == fence and",
    tests=[f"{RULES}::test_only_the_owner_with_its_fence_records"],
)
break_source(
    "redis runs: a recorded result is replaced",
    bug="a step that is done takes another result",
    file=f"{LUA}/record_step.lua",
    old="  if not same then return REFUSED end\n",
    new="",
    tests=[f"{RULES}::test_recording_again_is_ok_and_changes_nothing"],
)
break_source(
    "redis runs: a sleep begins again with every worker",
    bug="a resumed sleep is due later than it was",
    file=f"{LUA}/record_step.lua",
    old="if step and step.state == WAITING and state == WAITING then return OK end",
    new="if step and step.state == WAITING and state == DONE then return OK end",
    tests=[f"{RULES}::test_a_sleep_is_due_when_it_was"],
)
break_source(
    "redis runs: steps of an earlier run stay",
    bug="a run that starts after retention gets the steps of the one before it",
    file=f"{LUA}/start_run.lua",
    old="if first and step.fence > 0",
    new="if not first and step.fence > 0",
    tests=[f"{RULES}::test_a_run_after_retention_starts_without_the_old_steps"],
)
break_source(
    "redis runs: a signal that came first is not adopted",
    bug="a signal that came before its run never belongs to it",
    file=f"{LUA}/start_run.lua",
    old="      if step.fence == 0 then\n",
    new="      if step.fence < 0 then\n",
    tests=[f"{RULES}::test_a_signal_before_its_run_is_kept"],
)
break_source(
    "redis runs: a run without an undo is started again and again",
    bug="a run whose attempts are used up, and that has nothing to undo, is not parked",
    file=f"{LUA}/start_run.lua",
    old="if attempt > most and not undoes then",
    new="if attempt > 2 * most then",
    tests=[f"{RULES}::test_a_run_without_an_undo_parks_after_its_attempts"],
)
break_source(
    "redis runs: a suspension does not look at signals",
    bug="a signal that came just before the suspension is missed",
    file=f"{LUA}/suspend.lua",
    old="if step and step.state == DONE then delay = 0 end",
    new="if step and step.state == STARTED then delay = 0 end",
    tests=[f"{RULES}::test_a_signal_that_came_before_the_suspension_is_not_missed"],
)
break_source(
    "redis runs: a suspension is an attempt",
    bug="a run that sleeps often enough is parked",
    file=f"{LUA}/suspend.lua",
    old="now, row.attempt - 1, BY_RESUMING",
    new="now, row.attempt, BY_RESUMING",
    tests=[f"{RULES}::test_a_suspended_run_has_no_owner_and_is_not_an_attempt"],
)
break_source(
    "redis runs: a signal wakes no run",
    bug="a run that waits for a signal sleeps to its end",
    file=f"{LUA}/signal.lua",
    old="row.lease = math.min(row.lease, now)",
    new="row.lease = math.max(row.lease, now)",
    tests=[f"{RULES}::test_a_signal_makes_the_run_that_waits_for_it_due"],
)
break_source(
    "redis runs: the last signal stays",
    bug="a second signal replaces the first",
    file=f"{LUA}/signal.lua",
    old="(step.kind ~= WAIT or step.state == DONE)",
    new="(step.kind ~= WAIT)",
    tests=[f"{RULES}::test_the_first_signal_stays"],
)
break_source(
    "redis runs: a restart keeps the steps",
    bug="a run that an operator restarts goes on where it was",
    file=f"{LUA}/restart.lua",
    old="if string.sub(name, 1, 1) == 's' then",
    new="if string.sub(name, 1, 1) == 'x' then",
    tests=[f"{RULES}::test_release_keeps_the_steps_and_restart_drops_them"],
)
break_source(
    "redis runs: an operator forgets a suspended run",
    bug="a run that sleeps may be forgotten, and is never finished",
    file=f"{LUA}/forget.lua",
    old="if before == IN_PROGRESS or before == SUSPENDED then",
    new="if before == IN_PROGRESS then",
    tests=[f"{RULES}::test_a_suspended_run_has_no_owner_and_is_not_an_attempt"],
)
break_source(
    "redis runs: a failed run is looked at when its lease would have ended",
    bug="the completer does not know that the back-off of a run is over",
    file=f"{LUA}/fail_run.lua",
    old="look_after(KEYS[3], KEYS[4], ARGV[8], delay)",
    new="look_after(nil)",
    tests=[f"{RULES}::test_what_is_due_is_found"],
)

# --- Redis: what is due --------------------------------------------------------------------------

break_source(
    "redis due: two completers get the same run",
    bug="an entry is moved although another completer has moved it",
    file=f"{LUA}/due_move.lua",
    old="if redis.call('ZSCORE', KEYS[1], member) ~= ARGV[at + 1] then",
    new="if not redis.call('ZSCORE', KEYS[1], member) then",
    tests=[f"{INDEX}::test_of_two_looks_at_once_one_gets_the_run"],
)
break_source(
    "redis due: a run that was started again is removed",
    bug="the steps of a run are removed without a look at its record",
    file=f"{LUA}/drop.lua",
    old="if row and not expired(row) and row.state ~= FORGOTTEN then return 0 end",
    new="",
    tests=[f"{INDEX}::test_a_run_that_starts_while_the_last_one_is_removed_is_kept[drop]"],
)
break_source(
    "redis due: a signal for the next run goes with the last one",
    bug="a signal that comes while the last run is removed is removed with it",
    file=f"{LUA}/drop.lua",
    old="if keep and tonumber(keep) > now then return 0 end",
    new="",
    tests=[f"{INDEX}::test_a_signal_that_comes_while_the_last_run_is_removed_is_kept"],
)
break_source(
    "redis due: no write is too late",
    bug="a run may be written after its mark was looked at and forgotten",
    file=f"{LUA}/runs.lua",
    old="return by ~= '' and now > tonumber(by)",
    new="return false",
    tests=[f"{INDEX}::test_a_write_that_comes_after_its_mark_is_repeated"],
)
break_source(
    "redis due: a mark is the entry itself",
    bug="a look between the mark and the write puts the run off, and its signal is lost",
    file=f"{LUA}/due_mark.lua",
    old="local mark = ARGV[1] .. '?'",
    new="local mark = ARGV[1]",
    tests=[
        f"{INDEX}::test_a_look_between_the_mark_and_the_write_loses_nothing",
        f"{INDEX}::test_waiters_do_not_put_off_the_look_at_a_run",
    ],
)
break_source(
    "redis due: a mark is forgotten too early",
    bug="a mark is looked at while its run may still be written",
    file="_engines/redis/due_index.py",
    old="MARK: Final = 30_000",
    new="MARK: Final = 5_000",
    tests=[f"{INDEX}::test_a_mark_without_its_run_is_forgotten"],
)
break_source(
    "redis due: runs of other functions hide ours",
    bug="only the first page of the index is searched for runs of our functions",
    file=f"{LUA}/due_list.lua",
    old="local STEP, STEPS = 500, 20",
    new="local STEP, STEPS = 500, 1",
    tests=[f"{INDEX}::test_runs_of_other_functions_do_not_hide_ours"],
)
break_source(
    "redis due: a damaged record hides the others",
    bug="no run is found while one of those that are due has a record that cannot be read",
    file="_engines/redis/due_index.py",
    old="    except (CorruptRecordError, SchemaVersionError):  # it waits",
    new="    except SchemaVersionError:  # it waits",
    tests=[
        f"{INDEX}::test_a_record_that_cannot_be_read_keeps_its_steps_and_hides_no_other[damaged]"
    ],
)
break_source(
    "redis due: a run and its steps are in different slots",
    bug="a Cluster refuses every request of a run",
    file="_engines/redis/due_index.py",
    old='return self.before + id + b"}r"',
    new='return self.before[:-2] + id + b"r"',
    tests=[f"{INDEX}::test_a_run_its_record_and_its_steps_are_in_one_slot"],
)

# --- steps and the completer ---------------------------------------------------------------------

break_source(
    "runs: a cancelled step counts as failed",
    bug="a step with a probe that its TaskGroup cancelled is taken for one that did not happen",
    file="_core/durable/steps.py",
    old="(TimeoutError, LeaseLostError)) or not isinstance(error, Exception)",
    new="(TimeoutError, LeaseLostError))",
    tests=["tests/durable/test_sagas.py::test_a_step_that_its_task_group_cancelled_is_in_doubt"],
)
break_source(
    "runs: a slow run keeps the completer from all others",
    bug="the completer looks for runs only when all that it has found before have ended",
    file="receiver/_completer.py",
    old="if len(left) < self._concurrency:",
    new="if not left:",
    tests=[f"{SUSPENDING}::test_a_run_that_takes_long_does_not_keep_the_completer_from_others"],
)
break_source(
    "runs: a slow inner run is a failure of the outer one",
    bug="a run is undone because a run that it calls takes long on another worker",
    file="_core/durable/run_suspension.py",
    old="    return is_busy or isinstance(error, SuspendedError)",
    new="    return isinstance(error, SuspendedError)",
    tests=[
        f"{SUSPENDING}::test_an_inner_run_that_another_worker_has_suspends_the_outer_one[memory-blocking]"
    ],
)
