"""The fault matrix of the outbox and of the steps of durable functions."""

from __future__ import annotations

from typing import Final

from tests.maps.faults import FAULTS as LEASE_MODE
from tests.maps.faults import NONE, Cell

ROOM = "tests/outbox/"
ADD, RELAY, FAULTS = f"{ROOM}test_add.py", f"{ROOM}test_relay.py", f"{ROOM}test_faults.py"
KILLS = f"{ROOM}test_kill.py::test_killed_relays_lose_nothing"
WITH = f"{ADD}::test_a_message_is_there_if_and_only_if_the_transaction_committed"
ENDED = f"{FAULTS}::test_a_session_that_ends_before_its_commit_leaves_no_message"
GONE = f"{FAULTS}::test_a_relay_goes_on_when_its_store_was_gone"
LOST = f"{RELAY}::test_a_relay_that_lost_its_slots_records_nothing"
EARLY = f"{FAULTS}::test_a_clock_that_is_set_hands_slots_over_early_and_loses_nothing"
SHARE = f"{RELAY}::test_a_dead_relays_share_goes_on_after_its_lease"
DIVIDED = f"{RELAY}::test_two_relays_divide_the_lanes"
ONCE = f"{RELAY}::test_everything_once_in_order_per_key"
STEPS = "tests/durable/"

OUTBOX: Final[dict[str, Cell]] = {
    "kill-before-claim": Cell("no message without its transaction", (WITH, ENDED, KILLS)),
    "kill-after-claim": Cell("another relay takes over when the lease expires", (SHARE, KILLS)),
    "kill-in-handler": Cell("published again under the same id", (KILLS,)),
    "kill-after-effect": Cell("published again under the same id", (KILLS,)),
    "kill-on-the-wire": Cell("published again under the same id, or already deleted", (KILLS, GONE)),
    "kill-after-complete": Cell("deleted: not published again", (ONCE, KILLS)),
    "store-down-at-claim": Cell("no message and no effect; the relay waits and continues", (ENDED, GONE)),
    "store-down-at-complete": Cell("published again under the same id; none is lost", (GONE,)),
    "store-refuses": NONE,
    "store-slow": Cell("a relay that lost its slots records nothing about them", (LOST, EARLY)),
    "store-restart": Cell("no message is lost",
        (f"{FAULTS}::test_a_server_that_is_killed_and_restarted_loses_no_message",)),
    "failover": Cell("a message is lost only together with its data",
        (f"{FAULTS}::test_an_older_copy_has_data_and_message_or_neither", WITH)),
    "partition": Cell("the transaction is aborted; the relay continues, under the same ids", (ENDED, GONE, LOST)),
    "disk-full": Cell("data and message are both written, or neither",
        (f"{FAULTS}::test_a_full_disk_takes_data_and_message_or_neither",)),
    "read-only": Cell("refused; no message",
        (f"{FAULTS}::test_a_read_only_transaction_takes_no_message",)),
    "cut-reply": Cell("none is lost; repeats have the same id", (GONE, ENDED)),
    "late-request": Cell("a repeated run sends the same ids",
        (f"{ADD}::test_a_run_that_is_repeated_sends_the_same_ids",)),
    "evicted": Cell("steps: as in lease mode", LEASE_MODE["evicted"].L.held_by),
    "lease-ends": Cell("taken over under the same ids; the late relay records nothing", (LOST, EARLY)),
    "worker-clock": Cell("neither order nor delivery changes",
        (f"{FAULTS}::test_a_workers_clock_changes_neither_order_nor_delivery",)),
    "store-clock": Cell("slots are taken over early or late; no message is lost", (EARLY,)),
    "retention-ends": Cell("steps: cannot happen, because an unfinished run does not expire; after its retention a key starts a new run, without the old steps",
        ("rule:test_unfinished_work_never_expires",
         "rule:test_a_run_after_retention_starts_without_the_old_steps")),
    "sweep-race": Cell("steps: a run that starts while the last one is removed keeps its own",
        (f"{STEPS}test_sql_stores.py::test_a_run_that_starts_while_the_last_one_is_removed_keeps_its_steps",
         f"{STEPS}test_due_index.py::test_a_run_that_starts_while_the_last_one_is_removed_is_kept")),
    "storm": Cell("each lane has one relay", (DIVIDED,)),
    "other-payload": Cell("steps: refused as a mismatch before anything runs",
        (f"{STEPS}test_steps.py::test_other_arguments_under_a_step_name_are_refused_before_anything_runs",
         f"{STEPS}test_steps.py::test_other_arguments_under_the_key_of_a_run_are_refused")),
    "retryable-error": Cell("its lane backs off and is retried",
        (f"{RELAY}::test_a_lane_rests_between_attempts",
         f"{RELAY}::test_what_was_refused_and_then_taken_is_no_trouble_any_more")),
    "final-error": Cell("its own lane is parked; other lanes continue",
        (f"{RELAY}::test_a_poison_message_parks_its_own_lane",
         f"{RELAY}::test_one_bad_message_in_a_batch_is_found")),
    "poison": Cell("steps: crashes count as attempts; then the run is undone, or parked. Outbox: a message that kills its relay is not counted",
        (f"{STEPS}test_sagas.py::test_attempts_that_crashes_used_up_are_undone",
         f"{STEPS}test_sagas.py::test_a_step_in_flight_at_the_last_attempt_parks_the_run")),
    "bad-result": Cell("a message that cannot be sent is refused when it is added",
        (f"{ADD}::test_what_cannot_be_sent_is_reported_at_once",)),
    "cancelled": Cell("running publishes are finished first",
        (f"{RELAY}::test_stop_ends_what_is_under_way_first",)),
    "thread-timeout": Cell("if a publisher hangs past the lease, another relay publishes under the same id",
        (EARLY, LOST)),
    "own-commit": Cell("a message commits or rolls back with its transaction", (WITH,)),
    "fork": Cell("parent and child both add messages, each with its own connections",
        ("tests/kill/test_inbox_life.py::test_parent_and_child_go_on_after_a_fork",)),
    "other-loop": Cell("works; connections are never shared between loops",
        (f"{FAULTS}::test_one_outbox_on_one_loop_after_another",)),
    "sigterm": Cell("a relay finishes running publishes; an open transaction leaves no message",
        ("tests/cli/test_outbox.py::test_a_running_relay_ends_well_on_sigterm",
         "tests/kill/test_inbox_life.py::test_a_process_that_is_terminated_in_mid_work_leaves_nothing")),
    "redelivery": NONE,
    "rebalance": NONE,
    "relay-killed": Cell("published again under the same id; none is lost", (KILLS,)),
    "two-relays": Cell("they lease different slots, so the order of a key is kept; if one dies, the other takes over", (DIVIDED, SHARE, KILLS)),
    "late-commit": Cell("still published", (f"{RELAY}::test_what_commits_late_is_not_skipped", KILLS)),
    "versions": Cell("a newer schema is refused", (f"{FAULTS}::test_a_newer_schema_is_refused",)),
}  # fmt: skip
