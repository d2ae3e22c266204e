"""The fault matrix in the caller's own transaction: what must happen after each fault, and the tests."""

from __future__ import annotations

from typing import Final

from tests.maps.faults import NONE, Cell

ROOM, K = "tests/inbox/", "tests/kill/"
BASIC, ATOMIC, FAILS = f"{ROOM}test_inbox.py", f"{ROOM}test_atomicity.py", f"{ROOM}test_failures.py"
MEET, STORE, TIME = (
    f"{ROOM}test_meeting.py",
    f"{ROOM}test_store_faults.py",
    f"{ROOM}test_time_and_load.py",
)
DIES = "tests/kit/test_inbox_matrix.py::test_an_inbox_handler_is_applied_once_wherever_it_dies"
KILLED = "tests/kit/test_inbox_matrix.py::test_a_killed_inbox_handler_is_applied_once"
STORM = f"{K}test_inbox.py::test_no_kill_loses_or_doubles_an_effect"
SESSIONS = f"{K}test_inbox.py::test_sessions_ended_in_the_server"
LIFE = f"{K}test_inbox_life.py"
CUT = f"{ROOM}test_commit_cut.py::test_a_commit_cut_anywhere_is_resolved_by_reading"
CUTS = "lab/field/transactions.py"
WAITS = f"{MEET}::test_a_duplicate_waits_for_the_first_and_replays"
TOLD = f"{MEET}::test_a_duplicate_that_may_not_wait_is_refused"
LATER = f"{MEET}::test_a_duplicate_takes_over_when_the_first_rolls_back"
GONE = f"{STORE}::test_a_store_that_is_gone_before_the_record_applies_nothing"
CLOCK = f"{TIME}::test_a_store_clock_that_is_set_in_mid_work_changes_nothing"

INBOX: Final[dict[str, Cell]] = {
    "kill-before-claim": Cell("nothing is left behind; the next delivery runs", (DIES, KILLED, STORM)),
    "kill-after-claim": Cell("the database rolls back when the connection ends", (DIES, STORM)),
    "kill-in-handler": Cell("rolled back", (DIES, STORM)),
    "kill-after-effect": Cell("rolled back, then applied once",
        (DIES, STORM, f"{BASIC}::test_rolled_back_both_are_gone")),
    "kill-on-the-wire": Cell("the next delivery finds out whether it was committed", (CUT, STORM, CUTS)),
    "kill-after-complete": Cell("replayed; nothing runs",
        (DIES, KILLED, f"{BASIC}::test_a_message_is_accepted_once")),
    "store-down-at-claim": Cell("an error; nothing runs",
        (f"{STORE}::test_a_store_that_is_gone_before_the_claim_runs_nothing", SESSIONS)),
    "store-down-at-complete": Cell("the transaction is lost; no effect", (GONE, SESSIONS)),
    "store-refuses": Cell("an error and no effect; counted as an attempt",
        (f"{FAILS}::test_a_result_that_the_database_refuses_is_an_error_and_no_effect",)),
    "store-slow": Cell("a time-out and no effect",
        (f"{STORE}::test_a_store_that_does_not_answer_in_time_runs_nothing",
         f"{TIME}::test_the_wait_for_a_key_is_bounded")),
    "store-restart": Cell("record and effect are both there, or neither",
        (f"{K}test_inbox.py::test_a_server_that_is_killed_and_restarted",)),
    "failover": Cell("record and effect are lost together; delivered again, applied once",
        (f"{STORE}::test_a_failover_loses_effect_and_record_together",
         f"{STORE}::test_an_older_copy_of_a_file_has_effect_and_record_or_neither")),
    "partition": Cell("aborted; the next delivery finds out whether it was committed", (GONE, CUT, SESSIONS, CUTS)),
    "disk-full": Cell("aborted; no effect",
        (f"{STORE}::test_a_full_disk_takes_effect_and_record_or_neither",)),
    "read-only": Cell("refused; nothing runs", (f"{STORE}::test_a_read_only_transaction_runs_nothing",)),
    "cut-reply": Cell("no extra effect", (CUT, CUTS)),
    "late-request": Cell("refused by the unique key",
        (WAITS, f"{BASIC}::test_twice_in_one_transaction_is_once",
         f"{BASIC}::test_a_message_is_accepted_once")),
    "evicted": NONE,
    "lease-ends": Cell("there is no lease: the other delivery waits, or the first COMMIT fails", (WAITS, GONE)),
    "worker-clock": Cell("nothing changes (on SQLite it is the store's clock)",
        (f"{TIME}::test_a_workers_clock_is_not_asked",)),
    "store-clock": Cell("nothing changes for running work", (CLOCK,)),
    "retention-ends": Cell("cannot happen: retention starts at completion", (CLOCK,)),
    "sweep-race": Cell("a claim is won with a record, or the result is replayed; fences increase",
        (f"{TIME}::test_a_sweep_beside_deliveries_leaves_no_bare_win",
         f"{MEET}::test_fences_never_restart_after_a_sweep",
         f"{ROOM}test_layouts.py::test_generations_hold_what_a_transaction_writes")),
    "storm": Cell("one effect and one answer; the wait is limited",
        (f"{TIME}::test_a_crowd_on_one_key_has_one_effect_and_one_answer",
         f"{TIME}::test_the_wait_for_a_key_is_bounded", TOLD)),
    "other-payload": Cell("refused as a mismatch; it never runs",
        (f"{TIME}::test_other_content_that_comes_at_once_is_refused",
         f"{BASIC}::test_the_same_id_with_other_content_is_refused")),
    "retryable-error": Cell("rolled back; the attempt counts",
        (f"{BASIC}::test_a_failed_handler_leaves_nothing",
         f"{FAILS}::test_attempts_are_counted_outside_and_the_poison_is_parked")),
    "final-error": Cell("stored in a separate transaction",
        (f"{FAILS}::test_a_failure_that_is_the_answer_is_kept_in_a_transaction_of_its_own",
         f"{FAILS}::test_a_success_between_failures_is_not_overwritten")),
    "poison": Cell("failures are counted in a separate transaction, then the key is parked; a consumer counts killed processes too, from the second delivery on",
        (f"{FAILS}::test_attempts_are_counted_outside_and_the_poison_is_parked", KILLED,
         "tests/consumers/test_transaction_mode.py::test_a_message_that_kills_its_process_does_not_loop_for_ever")),
    "bad-result": Cell("refused before COMMIT, so everything is rolled back",
        (f"{FAILS}::test_a_result_that_cannot_be_stored_is_refused_before_the_commit",)),
    "cancelled": Cell("rolled back; no attempt is counted",
        (f"{FAILS}::test_cancelled_in_the_handler_nothing_is_left",
         f"{TIME}::test_an_interrupt_in_the_handler_leaves_nothing")),
    "thread-timeout": Cell("an inbox has no time-out and refuses the setting; a session that is ended has no effect",
        (f"{ROOM}test_settings.py::test_a_setting_that_says_nothing_here_is_refused", GONE)),
    "own-commit": Cell("AtomicityBrokenError; not recorded as done",
        (f"{ATOMIC}::test_a_handler_that_ends_the_transaction_is_found_out",
         f"{ATOMIC}::test_a_change_of_the_schema_commits_on_mysql",
         f"{ATOMIC}::test_an_error_that_the_handler_swallowed_is_no_success")),
    "fork": Cell("parent and child continue, each with its own connections",
        (f"{LIFE}::test_parent_and_child_go_on_after_a_fork",)),
    "other-loop": Cell("works; connections are never shared between loops",
        (f"{TIME}::test_one_inbox_on_one_loop_after_another",)),
    "sigterm": Cell("rolled back; the next delivery runs at once",
        (f"{LIFE}::test_a_process_that_is_terminated_in_mid_work_leaves_nothing",)),
    "redelivery": Cell("waits, then is skipped; or gets an error and is redelivered", (WAITS, TOLD)),
    "rebalance": Cell("the new consumer waits for the first one; one of them commits, and only then acknowledges",
        (WAITS, LATER)),
    "relay-killed": NONE,
    "two-relays": NONE,
    "late-commit": NONE,
    "versions": Cell("a newer schema is refused; both work on the older one",
        (f"{STORE}::test_a_newer_schema_is_refused", "lab/field/rolling.py")),
}  # fmt: skip
