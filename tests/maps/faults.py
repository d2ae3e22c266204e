"""The fault matrix: every fault, what must happen then in lease mode, and the tests that check it.

`inbox` has what must happen in the caller's own transaction, `outbox` what must happen to messages. A cell names
its tests. `NONE` means that the fault cannot occur there. `cells` returns all three modes of a fault.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MODES: Final = {"L": "lease mode", "T": "same transaction", "S": "outbox, steps"}


class Cell(NamedTuple):
    outcome: str
    held_by: tuple[str, ...] = ()


class Fault(NamedTuple):
    group: str
    name: str
    L: Cell


NONE: Final = Cell("–")


def cells(row: str) -> dict[str, Cell]:
    """What must happen after this fault, in each mode."""
    from tests.maps.inbox import INBOX
    from tests.maps.outbox import OUTBOX

    return {"L": FAULTS[row].L, "T": INBOX[row], "S": OUTBOX[row]}


R, K, C, S = "tests/receiver/", "tests/kill/", "tests/crash/", "tests/stores/"
SWEEP = f"{C}test_sweep.py::test_first_delivery"
KILLS = f"{K}test_sigkill.py::test_nothing_is_lost_or_doubled_without_a_cause"
UNKNOWN = f"{R}test_unknown_outcomes.py"
FAILS = f"{R}test_failures.py"
CANCEL = f"{R}test_cancellation.py"
INTERRUPT = f"{R}test_interrupts.py"
CONSUMERS = "tests/consumers/"

FAULTS: Final[dict[str, Fault]] = {
    # -- kill -9 ---------------------------------------------------------------------------------
    "kill-before-claim": Fault("kill -9", "before the claim",
        Cell("nothing is left behind; the next delivery runs", (SWEEP, KILLS))),
    "kill-after-claim": Fault("kill -9", "after the claim, before the handler",
        Cell("taken over when the lease expires, with a higher fence and a recorded cause",
             (SWEEP, f"{C}test_sweep.py::test_takeover", KILLS))),
    "kill-in-handler": Fault("kill -9", "in the handler, before its effect",
        Cell("taken over when the lease expires", (SWEEP, KILLS))),
    "kill-after-effect": Fault("kill -9", "after the effect, before the record",
        Cell("with retry it may repeat, with a recorded cause; with hold it never runs again; a resource that checks fences applies it once",
             (SWEEP, f"{C}test_sweep.py::test_hold", KILLS,
              f"{K}test_sigkill.py::test_hold_never_doubles",
              f"{K}test_sigkill.py::test_a_resource_that_knows_fences_is_charged_once"))),
    "kill-on-the-wire": Fault("kill -9", "while the result is being recorded",
        Cell("if it was recorded, it is replayed; otherwise as in the row above",
             (SWEEP, f"{UNKNOWN}::test_one_run_and_replay", "lab/field/cuts.py"))),
    "kill-after-complete": Fault("kill -9", "after the record, before the reply or ack",
        Cell("replayed; nothing runs", (SWEEP, f"{C}test_sweep.py::test_duplicate", KILLS))),
    # -- store -----------------------------------------------------------------------------------
    "store-down-at-claim": Fault("store", "unreachable when a key is claimed",
        Cell("StoreUnavailableError, 503; nothing runs",
             (f"{UNKNOWN}::test_a_store_that_is_down_refuses_and_starts_nothing",
              f"{R}test_batch.py::test_an_unreachable_store_fails_every_item_and_starts_none",
              "tests/http/test_outcomes.py::test_a_store_that_is_away_runs_nothing"))),
    "store-down-at-complete": Fault("store", "unreachable when a result is recorded",
        Cell("retried while the claim lasts, then an error; the handler does not run again because of it",
             (f"{UNKNOWN}::test_a_complete_that_never_arrived_is_retried_while_the_claim_lasts",
              f"{UNKNOWN}::test_a_complete_that_is_never_answered_is_unknown_not_lost"))),
    "store-refuses": Fault("store", "refuses this result, or never receives it",
        Cell("soon recorded as done without its result; never runs again; the rest of its batch is not affected",
             (f"{R}test_refused_payloads.py::test_done_without_its_result_soon_and_never_again",
              f"{R}test_refused_payloads.py::test_one_of_a_batch_never_sinks_the_others",
              f"{R}test_refused_payloads.py::test_an_outage_drops_nothing",
              "rule:test_a_refused_payload_changes_nothing_and_the_claim_can_complete",
              "lab/field/refusals.py"))),
    "store-slow": Fault("store", "slower than the lease",
        Cell("a late answer to a claim starts nothing; the worker sees `lost` before the store releases the key",
             (f"{UNKNOWN}::test_a_late_claim_answer_starts_nothing",
              f"{UNKNOWN}::test_late_claims_of_a_batch_start_nothing",
              f"{FAILS}::test_lost_turns_true_before_the_store_lets_go"))),
    "store-restart": Fault("store", "killed and restarted",
        Cell("no recorded result is lost, if the store writes to disk before it answers",
             (f"{S}test_postgresql_faults.py::test_restarts_lose_no_recorded_result",
              f"{S}test_mysql_restarts.py::test_threads_survive_restarts",
              f"{S}test_redis_restart.py::test_restarts_lose_no_recorded_result",
              "lab/field/restarts.py", "lab/field/slow_disk.py"))),
    "failover": Fault("store", "failover that loses acknowledged writes",
        Cell("the work may run again; the page of each store says so",
             (f"{S}test_redis_restart.py::test_an_open_receiver_follows_a_failover",
              f"{S}test_redis.py::test_wait_replicas", "lab/field/restarts.py"))),
    "partition": Fault("store", "network partition between worker and store",
        Cell("as with a slow store; a late result is refused",
             (f"{S}test_postgresql_faults.py::test_a_frozen_server_is_not_waited_for_for_ever",
              f"{S}test_redis.py::test_a_paused_server_is_unavailable_in_time",
              f"{FAILS}::test_a_zombie_cannot_record_and_the_newer_result_stays"))),
    "disk-full": Fault("store", "disk or memory full",
        Cell("claims are refused; no record is half written",
             (f"{S}test_sqlite_full.py::test_a_full_disk_refuses_claims_and_keeps_what_it_has",
              f"{S}test_sqlite_full.py::test_a_disk_that_fills_up_under_a_handler",
              f"{S}test_redis.py::test_a_full_server_takes_results_and_no_claims"))),
    "read-only": Fault("store", "read-only, replica or demoted primary",
        Cell("refused, like a store that is down; never used to answer",
             (f"{S}test_postgresql_opening.py::test_a_read_only_server_is_refused",
              f"{S}test_postgresql_opening.py::test_a_standby_is_refused_and_a_promoted_one_serves",
              f"{S}test_mysql_opening.py::test_a_read_only_server_is_refused",
              f"{S}test_redis.py::test_the_doctor_on_a_replica",
              f"{S}test_redis_failover.py::test_an_idle_worker_does_not_write_to_the_primary_that_wakes",
              f"{S}test_redis_failover.py::test_an_answer_of_a_primary_that_was_replaced_meanwhile_does_not_count",
              f"{S}test_sql_beliefs.py::test_mariadb_a_demoted_server_costs_one_call",
              "lab/field/silence.py"))),
    "cut-reply": Fault("store", "connection cut in the middle of a reply",
        Cell("the worker asks again and gets the same fence; nothing runs twice, and no caller waits for a lease",
             (f"{UNKNOWN}::test_one_run_and_replay",
              f"{R}test_batch.py::test_lost_replies_are_asked_again_with_the_same_owner",
              f"{S}test_redis.py::test_a_cut_connection_is_not_noticed",
              f"{S}test_mysql.py::test_a_killed_connection_is_replaced_unseen",
              f"{S}test_postgresql_faults.py::test_every_backend_shot_again_and_again",
              "lab/field/cuts.py"))),
    "late-request": Fault("store", "a request that arrives twice, or late",
        Cell("nothing runs twice; a claim that arrives late blocks its key for one lease at most",
             ("rule:test_a_retry_of_the_claim_gets_the_same_answer",
              f"{UNKNOWN}::test_a_claim_whose_answer_was_lost_ends_with_its_lease",
              "tests/lab/test_simulation.py::test_no_schedule_breaks_an_invariant"))),
    "evicted": Fault("store", "records evicted, flushed or deleted by hand",
        Cell("the owner gets an error, and the record is not created again; `doctor` refuses eviction policies",
             ("rule:test_a_missing_row_is_not_created",
              f"{FAILS}::test_a_record_that_vanished_is_not_created_anew",
              f"{S}test_redis.py::test_the_doctor"))),
    # -- time ------------------------------------------------------------------------------------
    "lease-ends": Fault("time", "the lease expires while the handler runs",
        Cell("taken over; the late worker can neither renew, record nor release",
             ("rule:test_after_a_takeover_the_old_owner_can_do_nothing",
              f"{FAILS}::test_a_zombie_cannot_record_and_the_newer_result_stays",
              f"{FAILS}::test_a_zombie_that_fails_does_not_free_the_new_owner",
              f"{CANCEL}::test_a_blocked_event_loop_keeps_its_claim",
              "tests/unit/test_runtime_parts.py::test_stops_at_max_lease",
              "lab/field/zombies.py"))),
    "worker-clock": Fault("time", "a worker's clock is changed",
        Cell("nothing changes",
             ("tests/unit/test_runtime_parts.py::test_the_workers_clock_does_not_go_back",
              "tests/lab/test_simulation.py::test_no_schedule_breaks_an_invariant",
              "lab/field/clocks.py"))),
    "store-clock": Fault("time", "the store's clock is changed",
        Cell("taken over early or late; never two results",
             ("tests/lab/test_simulation.py::test_no_schedule_breaks_an_invariant",
              f"{S}test_mysql.py::test_leases_end_by_the_servers_clock", "lab/field/clocks.py"))),
    "retention-ends": Fault("time", "retention ends during work",
        Cell("cannot happen: only finished records expire",
             ("rule:test_unfinished_work_never_expires",
              "rule:test_work_in_progress_remains_after_a_year",
              "rule:test_retention_counts_from_completion"))),
    "sweep-race": Fault("time", "a sweep runs at the same time as claims and completions",
        Cell("a claim is won with a record, or the result is replayed",
             ("rule:test_a_sweep_never_takes_the_row_from_under_a_claim",
              "tests/conformance/test_sqlite.py::test_a_sweep_between_the_two_looks_of_a_claim_leaves_no_bare_win",
              f"{S}test_postgresql_sweep.py::test_claims_that_race_with_sweeps_win_with_a_record_behind_them",
              f"{S}test_mysql_rivals.py::test_fences_rise_under_sweeps_and_claims_at_once"))),
    # -- load ------------------------------------------------------------------------------------
    "storm": Fault("load", "a thousand callers with one key",
        Cell("one runs; the others wait and get the same answer; the number of waiters is limited",
             (f"{K}test_crowd.py::test_a_thousand_callers_of_one_key",
              f"{S}test_postgresql_faults.py::test_a_thousand_callers_of_one_key_by_asyncpg",
              "rule:test_a_storm_of_claims_has_one_winner",
              f"{R}test_waiting.py::test_waiters_are_bounded"))),
    "other-payload": Fault("load", "the same key with another payload, at once",
        Cell("refused as a mismatch; it never runs",
             (f"{R}test_fingerprints.py::test_refused_while_the_first_is_still_running",
              "rule:test_another_fingerprint_is_a_mismatch_in_every_state",
              "tests/http/test_fingerprints.py::test_another_payload_during_execution_is_neither_run_nor_queued"))),
    # -- handler ---------------------------------------------------------------------------------
    "retryable-error": Fault("handler", "fails, and may be retried",
        Cell("released at once, with a back-off; the attempt counts",
             (f"{FAILS}::test_a_failed_key_is_released_at_once",
              f"{FAILS}::test_the_back_off_is_respected", f"{C}test_sweep.py::test_failing_handler"))),
    "final-error": Fault("handler", "fails permanently (`remember`)",
        Cell("stored as data; repeats get the same failure",
             (f"{FAILS}::test_remembered_failures_are_answers",
              f"{C}test_sweep.py::test_remembered_failure"))),
    "poison": Fault("handler", "kills its process every time",
        Cell("attempts are counted at the claim, so the key is parked and does not run again",
             (f"{K}test_sigkill.py::test_a_handler_that_kills_its_process_is_parked",
              f"{FAILS}::test_attempts_are_counted_at_the_claim",
              "rule:test_an_attempt_is_counted_when_it_starts"))),
    "bad-result": Fault("handler", "returns a result that is too large or cannot be stored",
        Cell("recorded as done without a result; duplicates get an error that says so; never runs again",
             (f"{FAILS}::test_a_result_that_cannot_be_kept_never_runs_again",
              f"{FAILS}::test_a_codec_that_breaks_is_a_result_not_kept",
              f"{R}test_peers.py::test_03_falsy_and_unstorable_results"))),
    "cancelled": Fault("handler", "is cancelled, times out or is interrupted",
        Cell("released or held within a second; a recording in progress is finished",
             (f"{CANCEL}::test_cancelled_in_the_handler_is_released_at_once",
              f"{CANCEL}::test_cancelled_in_the_handler_is_held_if_at_most_once",
              f"{CANCEL}::test_cancelled_during_complete_is_still_recorded",
              f"{INTERRUPT}::test_interrupts_propagate_and_release_at_once",
              f"{R}test_interrupted_recordings.py::test_a_result_is_recorded_before_the_interrupt_is_raised",
              "tests/kill/test_ctrl_c.py::test_ctrl_c_at_any_moment",
              f"{R}test_release_timeout.py::test_a_store_that_hangs_delays_a_cancellation_by_a_second_at_most",
              "tests/http/test_outcomes.py::test_a_client_that_goes_away_loses_nothing"))),
    "thread-timeout": Fault("handler", "times out in a thread that cannot be stopped",
        Cell("the caller gets an error; the claim is kept until the thread ends",
             (f"{INTERRUPT}::test_a_thread_that_cannot_be_stopped_keeps_its_claim",))),
    "own-commit": Fault("handler", "commits, rolls back or runs DDL itself",
        NONE),
    # -- process ---------------------------------------------------------------------------------
    "fork": Fault("process", "forks after connecting",
        Cell("the child has its own connections and owner tokens; the claim stays with the parent",
             (f"{K}test_processes.py::test_parent_and_child_go_on_after_a_fork",
              f"{K}test_processes.py::test_a_child_can_neither_complete_nor_release_its_parents_claim",
              f"{R}test_process_life.py::test_a_fork_inside_a_handler_leaves_the_claim_to_the_parent",
              f"{S}test_mysql.py::test_a_forked_child_uses_its_own_connections",
              f"{S}test_redis.py::test_a_forked_child_has_its_own_connections"))),
    "other-loop": Fault("process", "another event loop, or a closed one",
        Cell("works, or raises a clear error; connections are never shared between loops",
             (f"{CANCEL}::test_one_receiver_on_one_loop_after_another",
              f"{CANCEL}::test_one_receiver_on_two_loops_at_once",
              f"{CANCEL}::test_a_loop_that_died_in_mid_work_leaves_no_caller_stuck",
              f"{S}test_postgresql_faults.py::test_a_second_event_loop_gets_connections_of_its_own",
              f"{S}test_redis.py::test_a_store_serves_several_loops"))),
    "sigterm": Fault("process", "SIGTERM",
        Cell("if the program handles the signal, its claim is released at once; otherwise the lease expires",
             (f"{K}test_sigterm.py::test_a_program_that_exits_on_sigterm_gives_its_claim_back",
              f"{K}test_sigterm.py::test_one_that_says_nothing_leaves_its_lease"))),
    # -- broker ----------------------------------------------------------------------------------
    "redelivery": Fault("broker", "redelivers while the first delivery runs",
        Cell("rejected as in progress, or replayed; not counted as a failure",
             (f"{R}test_message_handlers.py::test_a_redelivery_is_replayed",
              f"{R}test_waiting.py::test_a_duplicate_in_another_process_waits_and_replays",
              f"{R}test_waiting.py::test_reject_answers_at_once"))),
    "rebalance": Fault("broker", "rebalances while a handler runs",
        Cell("the result is recorded unless another worker took over; a consumer starts nothing more of a revoked partition, and commits nothing for it",
             (f"{FAILS}::test_completing_late_is_accepted_if_there_was_no_takeover",
              f"{CONSUMERS}test_consumer.py::test_a_revoked_partition_starts_nothing_more",
              f"{CONSUMERS}test_kafka_source.py::test_lost_partitions_are_reported_and_not_committed"))),
    "relay-killed": Fault("broker", "the relay is killed after publishing, before it deletes the rows",
        NONE),
    "two-relays": Fault("broker", "two relays at once",
        NONE),
    "late-commit": Fault("broker", "a long transaction commits late, with a lower row number",
        NONE),
    # -- deploy ----------------------------------------------------------------------------------
    "versions": Fault("deploy", "two versions run at once, one is rolled back",
        Cell("a newer schema or record is refused, never overwritten",
             (f"{K}test_processes.py::test_a_newer_schema_is_refused",
              f"{S}test_postgresql_opening.py::test_a_newer_schema_is_refused",
              f"{S}test_mysql_opening.py::test_a_newer_schema_is_refused",
              "rule:test_a_damaged_record_is_an_error_and_never_a_new_start"))),
}  # fmt: skip
