"""The fault matrix: every fault, and what must come of it in lease mode, with the tests that hold it.

What must come of it in the caller's own transaction stands in `inbox`, of messages on their way out in
`outbox`. A cell is held by tests; or it is `NONE`, where the fault cannot occur; or it waits for what is
`not_built`, and says so. `cells` has the three together.
"""

from __future__ import annotations

from typing import Final, NamedTuple

MODES: Final = {"L": "lease mode", "T": "same transaction", "S": "outbox (and steps)"}


class Cell(NamedTuple):
    outcome: str
    held_by: tuple[str, ...] = ()
    waits: bool = False
    """For something that is not built yet."""


class Fault(NamedTuple):
    group: str
    name: str
    L: Cell


NONE: Final = Cell("–")


def not_built(outcome: str) -> Cell:
    """Promised for what is not there yet."""
    return Cell(outcome, (), True)


def cells(row: str) -> dict[str, Cell]:
    """What must come of this fault, mode by mode."""
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

FAULTS: Final[dict[str, Fault]] = {
    # -- kill -9 ---------------------------------------------------------------------------------
    "kill-before-claim": Fault("kill -9", "before the claim",
        Cell("no trace; the next delivery runs", (SWEEP, KILLS))),
    "kill-after-claim": Fault("kill -9", "after the claim, before the handler",
        Cell("taken over after the lease, with a higher fence and a cause",
             (SWEEP, f"{C}test_sweep.py::test_takeover", KILLS))),
    "kill-in-handler": Fault("kill -9", "in the handler, before its effect",
        Cell("taken over after the lease", (SWEEP, KILLS))),
    "kill-after-effect": Fault("kill -9", "after the effect, before the record",
        Cell("retry: may repeat, with a cause; hold: never run again; fenced resource: once",
             (SWEEP, f"{C}test_sweep.py::test_hold", KILLS,
              f"{K}test_sigkill.py::test_hold_never_doubles",
              f"{K}test_sigkill.py::test_a_resource_that_knows_fences_is_charged_once"))),
    "kill-on-the-wire": Fault("kill -9", "while the record is on the wire",
        Cell("recorded: replayed; else as after the effect",
             (SWEEP, f"{UNKNOWN}::test_one_run_and_replay", "lab/field/cuts.py"))),
    "kill-after-complete": Fault("kill -9", "after the record, before the reply or ack",
        Cell("replayed, no run", (SWEEP, f"{C}test_sweep.py::test_duplicate", KILLS))),
    # -- store -----------------------------------------------------------------------------------
    "store-down-at-claim": Fault("store", "down at the claim",
        Cell("StoreUnavailableError, 503; nothing runs",
             (f"{UNKNOWN}::test_a_store_that_is_down_refuses_and_starts_nothing",
              f"{R}test_batch.py::test_an_unreachable_store_fails_every_item_and_starts_none",
              "tests/http/test_outcomes.py::test_a_store_that_is_away_runs_nothing"))),
    "store-down-at-complete": Fault("store", "down at the record",
        Cell("sent again while the claim lasts, then an error; never run again for that",
             (f"{UNKNOWN}::test_a_complete_that_never_arrived_is_retried_while_the_claim_lasts",
              f"{UNKNOWN}::test_a_complete_that_is_never_answered_is_unknown_not_lost"))),
    "store-refuses": Fault("store", "says no to this payload, or never gets it",
        Cell("done without a result, soon; never run again; no other of its batch is hit",
             (f"{R}test_refused_payloads.py::test_done_without_its_result_soon_and_never_again",
              f"{R}test_refused_payloads.py::test_one_of_a_batch_never_sinks_the_others",
              f"{R}test_refused_payloads.py::test_an_outage_drops_nothing",
              "rule:test_a_refused_payload_changes_nothing_and_the_claim_is_served",
              "lab/field/refusals.py"))),
    "store-slow": Fault("store", "slower than the lease",
        Cell("a late claim starts nothing; `lost` before the store lets go",
             (f"{UNKNOWN}::test_a_late_claim_answer_starts_nothing",
              f"{UNKNOWN}::test_late_claims_of_a_batch_start_nothing",
              f"{FAILS}::test_lost_turns_true_before_the_store_lets_go"))),
    "store-restart": Fault("store", "killed and started again",
        Cell("no recorded result is lost, if the store writes before it answers",
             (f"{S}test_postgresql_faults.py::test_twenty_restarts_lose_no_recorded_result",
              f"{S}test_mysql_restarts.py::test_threads_survive_twenty_restarts",
              f"{S}test_redis_restart.py::test_twenty_restarts_lose_no_recorded_result",
              "lab/field/restarts.py", "lab/field/slow_disk.py"))),
    "failover": Fault("store", "failover that loses acknowledged writes",
        Cell("may run again; said per store",
             (f"{S}test_redis_restart.py::test_an_open_receiver_follows_a_failover",
              f"{S}test_redis.py::test_wait_replicas", "lab/field/restarts.py"))),
    "partition": Fault("store", "worker and store cut apart",
        Cell("as slow; a stale record is refused",
             (f"{S}test_postgresql_faults.py::test_a_frozen_server_is_not_waited_for_for_ever",
              f"{S}test_redis.py::test_a_paused_server_is_unavailable_in_time",
              f"{FAILS}::test_a_zombie_cannot_record_and_the_newer_result_stays"))),
    "disk-full": Fault("store", "disk or memory full",
        Cell("claims are refused, no half record",
             (f"{S}test_sqlite_full.py::test_a_full_disk_refuses_claims_and_keeps_what_it_has",
              f"{S}test_sqlite_full.py::test_a_disk_that_fills_up_under_a_handler",
              f"{S}test_redis.py::test_a_full_server_takes_results_and_no_claims"))),
    "read-only": Fault("store", "read-only, replica or demoted primary",
        Cell("refused like one that is down; never answered from",
             (f"{S}test_postgresql_opening.py::test_a_read_only_server_is_refused",
              f"{S}test_postgresql_opening.py::test_a_standby_is_refused_and_a_promoted_one_serves",
              f"{S}test_mysql_opening.py::test_a_read_only_server_is_refused",
              f"{S}test_redis.py::test_the_doctor_on_a_replica",
              f"{S}test_redis_failover.py::test_an_idle_worker_does_not_write_to_the_primary_that_wakes",
              f"{S}test_redis_failover.py::test_an_answer_of_a_primary_that_was_replaced_meanwhile_does_not_count",
              f"{S}test_sql_beliefs.py::test_mariadb_a_demoted_server_costs_one_call",
              "lab/field/silence.py"))),
    "cut-reply": Fault("store", "connection cut in the middle of a reply",
        Cell("the same owner gets the same fence; no extra run; no lease is waited for",
             (f"{UNKNOWN}::test_one_run_and_replay",
              f"{R}test_batch.py::test_lost_replies_are_asked_again_with_the_same_owner",
              f"{S}test_redis.py::test_a_cut_connection_is_not_noticed",
              f"{S}test_mysql.py::test_a_killed_connection_is_replaced_unseen",
              f"{S}test_postgresql_faults.py::test_every_backend_shot_again_and_again",
              "lab/field/cuts.py"))),
    "late-request": Fault("store", "a request that arrives twice, or late",
        Cell("no second run; a ghost claim lives one lease at most",
             ("rule:test_a_retry_of_the_claim_gets_the_same_answer",
              f"{UNKNOWN}::test_a_claim_whose_answer_was_lost_ends_with_its_lease",
              "tests/lab/test_simulation.py::test_no_schedule_breaks_an_invariant"))),
    "evicted": Fault("store", "records evicted, flushed or deleted by hand",
        Cell("the owner gets an error; never made anew; `doctor` refuses evicting policies",
             ("rule:test_a_missing_row_is_not_made",
              f"{FAILS}::test_a_record_that_vanished_is_not_created_anew",
              f"{S}test_redis.py::test_the_doctor"))),
    # -- time ------------------------------------------------------------------------------------
    "lease-ends": Fault("time", "the lease ends while the handler runs",
        Cell("taken over; the zombie can neither renew, record nor release",
             ("rule:test_after_a_takeover_the_old_owner_can_do_nothing",
              f"{FAILS}::test_a_zombie_cannot_record_and_the_newer_result_stays",
              f"{FAILS}::test_a_zombie_that_fails_does_not_free_the_new_owner",
              f"{CANCEL}::test_a_blocked_event_loop_keeps_its_claim",
              "tests/unit/test_runtime_parts.py::test_stops_at_max_lease",
              "lab/field/zombies.py"))),
    "worker-clock": Fault("time", "the worker's clock is set",
        Cell("nothing changes",
             ("tests/unit/test_runtime_parts.py::test_the_workers_clock_does_not_go_back",
              "tests/lab/test_simulation.py::test_no_schedule_breaks_an_invariant",
              "lab/field/clocks.py"))),
    "store-clock": Fault("time", "the store's clock is set",
        Cell("taken over early or late; never two results",
             ("tests/lab/test_simulation.py::test_no_schedule_breaks_an_invariant",
              f"{S}test_mysql.py::test_leases_end_by_the_servers_clock", "lab/field/clocks.py"))),
    "retention-ends": Fault("time", "retention ends during work",
        Cell("cannot happen: what is not ended does not expire",
             ("rule:test_what_is_not_ended_never_expires",
              "rule:test_work_in_progress_is_there_after_a_year",
              "rule:test_retention_counts_from_completion"))),
    "sweep-race": Fault("time", "a sweep beside claims and records",
        Cell("won with a row behind it, or replayed",
             ("rule:test_a_sweep_never_takes_the_row_from_under_a_claim",
              "tests/conformance/test_sqlite.py::test_a_sweep_between_the_two_looks_of_a_claim_leaves_no_bare_win",
              f"{S}test_postgresql_sweep.py::test_claims_that_race_with_sweeps_win_with_a_record_behind_them",
              f"{S}test_mysql_rivals.py::test_fences_rise_under_sweeps_and_claims_at_once"))),
    # -- load ------------------------------------------------------------------------------------
    "storm": Fault("load", "a thousand callers of one key",
        Cell("one run; the rest wait and get the same answer; waiters are bounded",
             (f"{K}test_crowd.py::test_a_thousand_callers_of_one_key",
              f"{S}test_postgresql_faults.py::test_a_thousand_callers_of_one_key_by_asyncpg",
              "rule:test_a_storm_of_claims_has_one_winner",
              f"{R}test_waiting.py::test_waiters_are_bounded"))),
    "other-payload": Fault("load", "the same key with another payload, at once",
        Cell("a mismatch, never run",
             (f"{R}test_fingerprints.py::test_refused_while_the_first_is_still_running",
              "rule:test_another_fingerprint_is_a_mismatch_in_every_state",
              "tests/http/test_fingerprints.py::test_another_payload_during_execution_is_neither_run_nor_queued"))),
    # -- handler ---------------------------------------------------------------------------------
    "retryable-error": Fault("handler", "fails, and may be tried again",
        Cell("released at once, with a rest; the attempt counts",
             (f"{FAILS}::test_a_failed_key_is_released_at_once",
              f"{FAILS}::test_the_back_off_is_respected", f"{C}test_sweep.py::test_failing_handler"))),
    "final-error": Fault("handler", "fails for good",
        Cell("stored as data, replayed as the same failure",
             (f"{FAILS}::test_remembered_failures_are_answers",
              f"{C}test_sweep.py::test_remembered_failure"))),
    "poison": Fault("handler", "kills its process every time",
        Cell("attempts count at the claim; parked, visible, no further run",
             (f"{K}test_sigkill.py::test_a_handler_that_kills_its_process_is_parked",
              f"{FAILS}::test_attempts_are_counted_at_the_claim",
              "rule:test_an_attempt_is_counted_when_it_starts"))),
    "bad-result": Fault("handler", "its result is too large, or cannot be stored",
        Cell("done without a result; duplicates get an error that says so; never run again",
             (f"{FAILS}::test_a_result_that_cannot_be_kept_never_runs_again",
              f"{FAILS}::test_a_codec_that_breaks_is_a_result_not_kept",
              f"{R}test_peers.py::test_03_falsy_and_unstorable_results"))),
    "cancelled": Fault("handler", "cancelled, timed out or interrupted",
        Cell("released or held within a second; a record under way is still made",
             (f"{CANCEL}::test_cancelled_in_the_handler_is_released_at_once",
              f"{CANCEL}::test_cancelled_in_the_handler_is_held_if_at_most_once",
              f"{CANCEL}::test_cancelled_during_complete_is_still_recorded",
              f"{INTERRUPT}::test_interrupts_propagate_and_release_at_once",
              f"{R}test_interrupted_recordings.py::test_a_result_is_recorded_before_the_interrupt_is_raised",
              "tests/kill/test_ctrl_c.py::test_ctrl_c_at_any_moment",
              f"{R}test_release_patience.py::test_a_store_that_hangs_delays_a_cancellation_by_a_second_at_most",
              "tests/http/test_outcomes.py::test_a_client_that_goes_away_loses_nothing"))),
    "thread-timeout": Fault("handler", "times out in a thread that cannot be stopped",
        Cell("the caller gets an error; the claim is kept until the thread ends",
             (f"{INTERRUPT}::test_a_thread_that_cannot_be_stopped_keeps_its_claim",))),
    "own-commit": Fault("handler", "commits, rolls back or runs DDL itself",
        NONE),
    # -- process ---------------------------------------------------------------------------------
    "fork": Fault("process", "forks after it connected",
        Cell("the child has its own connections and owners; the claim is its parent's",
             (f"{K}test_processes.py::test_parent_and_child_go_on_after_a_fork",
              f"{K}test_processes.py::test_a_child_can_neither_complete_nor_release_its_parents_claim",
              f"{R}test_process_life.py::test_a_fork_inside_a_handler_leaves_the_claim_to_the_parent",
              f"{S}test_mysql.py::test_a_forked_child_uses_its_own_connections",
              f"{S}test_redis.py::test_a_forked_child_has_its_own_connections"))),
    "other-loop": Fault("process", "another event loop, or a closed one",
        Cell("works, or a clear error; nothing crosses loops",
             (f"{CANCEL}::test_one_receiver_on_one_loop_after_another",
              f"{CANCEL}::test_one_receiver_on_two_loops_at_once",
              f"{CANCEL}::test_a_loop_that_died_in_mid_work_leaves_no_caller_stuck",
              f"{S}test_postgresql_faults.py::test_a_second_event_loop_gets_connections_of_its_own",
              f"{S}test_redis.py::test_a_store_serves_several_loops"))),
    "sigterm": Fault("process", "SIGTERM",
        Cell("ends in mid-work as a program says it: released at once, or left to its lease",
             (f"{K}test_sigterm.py::test_a_program_that_exits_on_sigterm_gives_its_claim_back",
              f"{K}test_sigterm.py::test_one_that_says_nothing_leaves_its_lease"))),
    # -- broker ----------------------------------------------------------------------------------
    "redelivery": Fault("broker", "redelivers while the first runs",
        Cell("in progress, or replayed; not counted as a failure",
             (f"{R}test_message_handlers.py::test_a_redelivery_is_replayed",
              f"{R}test_waiting.py::test_a_duplicate_in_another_process_waits_and_replays",
              f"{R}test_waiting.py::test_reject_answers_at_once"))),
    "rebalance": Fault("broker", "rebalances in mid-handler",
        Cell("the record is accepted while the fence holds (offsets: with the consumers, not built yet)",
             (f"{FAILS}::test_completing_late_is_accepted_if_there_was_no_takeover",))),
    "relay-killed": Fault("broker", "the relay is killed after publishing, before its mark",
        NONE),
    "two-relays": Fault("broker", "two relays at once",
        NONE),
    "late-commit": Fault("broker", "a long transaction commits late with a lower row id",
        NONE),
    # -- deploy ----------------------------------------------------------------------------------
    "versions": Fault("deploy", "two versions at once, one rolled back",
        Cell("a newer schema or record is refused, not run over",
             (f"{K}test_processes.py::test_a_newer_schema_is_refused",
              f"{S}test_postgresql_opening.py::test_a_newer_schema_is_refused",
              f"{S}test_mysql_opening.py::test_a_newer_schema_is_refused",
              "rule:test_a_damaged_record_is_an_error_and_never_a_new_start"))),
}  # fmt: skip
