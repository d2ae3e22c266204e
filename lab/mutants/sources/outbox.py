"""Source mutants of the outbox: its SQL, the relay's publishing flow, and what `add` lets in."""

from __future__ import annotations

from .registry import break_source

LANES = "tests/outbox/test_lanes.py"
OUTAGES = "tests/outbox/test_outages.py"
RELAY = "tests/outbox/test_relay.py"
ADD = "tests/outbox/test_add.py"
SUITE = "tests/outbox/test_publisher_conformance.py"

# --- SQL -------------------------------------------------------------------------------------------

break_source(
    "the outbox reads its clock for each row",
    bug="time is another one for each row of a statement: a rest may end in the middle of a lane",
    file="_engines/sql/outbox_dialect.py",
    old='return f"(SELECT {self.now})"',
    new="return self.now",
    tests=[f"{LANES}::test_the_clock_is_read_once_for_all_rows"],
)
break_source(
    "a lane in trouble sends all that it has",
    bug="rows behind the refused one are fetched with it, though earlier ones may be aside",
    file="_engines/sql/outbox_dialect.py",
    old="AND o.n <= t.n AND t.not_before",
    new="AND t.not_before",
    tests=[f"{LANES}::test_what_another_relay_published_keeps_no_lane_waiting[sqlite-sync]"],
)
break_source(
    "a lane whose message is gone waits for ever",
    bug="a trouble whose message another relay published is never ended, and what is aside stays there",
    file="_engines/sql/outbox_relay_programs.py",
    old="        if any_outdated:\n",
    new="        if any_outdated is None:\n",
    tests=[f"{LANES}::test_what_another_relay_published_keeps_no_lane_waiting[sqlite-sync]"],
)
break_source(
    "depth forgets what is aside",
    bug="messages of a resting lane that were set aside are not counted as pending",
    file="_engines/sql/outbox_programs.py",
    old="pending = there + aside - parked",
    new="pending = there",
    tests=[f"{LANES}::test_what_another_relay_published_keeps_no_lane_waiting[sqlite-sync]"],
)
break_source(
    "an early skip",
    bug="a message that an operator skipped comes back with the others",
    file="_engines/sql/outbox_statements.py",
    old="_parked WHERE lane = ? AND skipped_at = 0",
    new="_parked WHERE lane = ?",
    tests=[f"{RELAY}::test_skip_goes_on_behind_it_and_keeps_it[sqlite-sync]"],
)
break_source(
    "refusals are noted by strangers",
    bug="a relay that has lost its slot notes a refusal",
    file="_engines/sql/outbox_statements.py",
    old="WHERE slot = ? AND owner = ? AND fence = ?",
    new="WHERE slot = ? AND (owner = ? OR fence <> ?)",
    tests=[f"{RELAY}::test_a_relay_that_lost_its_slots_records_nothing[sqlite-sync]"],
)
break_source(
    "a late refusal counts again",
    bug="a refusal that was said before, or is about an earlier attempt, is noted again",
    file="_engines/sql/outbox_relay_programs.py",
    old="if it.attempts != (found[0][0] if found else 0) + it.counts:",
    new="if False:",
    tests=[
        "tests/outbox/test_holding.py::test_a_refusal_that_was_counted_before_counts_nothing_back[sqlite]"
    ],
)

# --- the publishing flow -----------------------------------------------------------------------------------

break_source(
    "two topics of a key in one call",
    bug="a key's messages of several topics go in one call, where one may be taken without the other",
    file="_core/outbox/relay_publish.py",
    old="row.message.topic == topic",
    new="row.message.topic",
    tests=[f"{OUTAGES}::test_a_call_has_one_topic_of_a_key"],
)
break_source(
    "the first outage is blamed",
    bug="a message is blamed for an outage at once, if another was taken before it",
    file="_core/outbox/relay_answers.py",
    old='if error.blames == "none" or not self.suspects[row.lane]:',
    new='if error.blames == "none":',
    tests=[
        f"{OUTAGES}::test_the_first_outage_of_a_message_is_not_its_fault_though_others_were_taken"
    ],
)
break_source(
    "a busy broker is blamed on messages",
    bug="an outage that the broker itself reports counts as a failure of the message it met",
    file="_core/outbox/relay_answers.py",
    old='if error.blames == "none" or not self.suspects[row.lane]:',
    new="if not self.suspects[row.lane]:",
    tests=[f"{OUTAGES}::test_what_fails_alone_again_while_others_are_taken_is_to_blame"],
)
break_source(
    "a slow broker is blamed on messages",
    bug="a time-out is blamed on the message, because the broker answers a check",
    file="_core/outbox/relay_answers.py",
    old='self.answered and error.blames == "alone"',
    new="self.answered",
    tests=[
        f"{OUTAGES}::test_a_broker_that_answers_a_check_but_no_message_is_slow_and_no_message_is_blamed"
    ],
)
break_source(
    "poison is never found out",
    bug="a message that the broker hangs up on is taken for an outage for ever",
    file="_core/outbox/relay_answers.py",
    old='return self.took or (self.answered and error.blames == "alone")',
    new="return False",
    tests=[f"{OUTAGES}::test_one_outage_is_not_enough_to_blame_a_message"],
)
break_source(
    "nobody asks the broker",
    bug="after an outage the publisher's check is not asked",
    file="_core/outbox/relay_publish.py",
    old="if self.doubt and state.checks:",
    new="if self.doubt and not state.checks:",
    tests=[f"{OUTAGES}::test_one_outage_is_not_enough_to_blame_a_message"],
)
break_source(
    "a failed check goes unheard",
    bug="a check that fails is taken for an answer of the broker",
    file="_core/outbox/relay_answers.py",
    old="        if error is None:\n            self.doubt",
    new="        if True:\n            self.doubt",
    tests=[f"{OUTAGES}::test_a_check_that_fails_is_an_outage"],
)
break_source(
    "a missing stream is counted",
    bug="a message whose stream does not exist is counted as refused, and parks its lane",
    file="_core/outbox/relay_answers.py",
    old="counts=not isinstance(answer, NotNow)",
    new="counts=True",
    tests=[f"{OUTAGES}::test_a_missing_stream_blames_no_message[sync-sqlite]"],
)
break_source(
    "drain does not tell what is missing",
    bug="drain and relay --once end as if all were well, though messages wait for their stream",
    file="outbox/_relay_base.py",
    old="failure = self._state.outage or self._state.not_now",
    new="failure = self._state.outage",
    tests=[f"{OUTAGES}::test_a_missing_stream_blames_no_message[sync-sqlite]"],
)
break_source(
    "a key goes on behind its failure",
    bug="a call has several messages of a key, though the publisher does not keep their order",
    file="_core/outbox/relay_publish.py",
    old="            if self.state.keeps_order:\n",
    new="            if self.state:\n",
    tests=[f"{OUTAGES}::test_a_call_has_one_message_of_a_key"],
)
break_source(
    "an outage of all is no outage",
    bug="when the broker took nothing, the answers are read as if they were about single messages",
    file="_core/outbox/relay_answers.py",
    old="        if _nothing_sent(answers):\n",
    new="        if not answers:\n",
    tests=[f"{OUTAGES}::test_a_publisher_that_never_tries_is_asked_again_after_a_rest"],
)
break_source(
    "a function goes on behind a failure",
    bug="behind a message that failed, a function gets the later ones of its key",
    file="outbox/publishers/_function.py",
    old="                answers[place] = error\n                break\n",
    new="                answers[place] = error\n                continue\n",
    tests=[
        "tests/outbox/test_relay.py::test_a_function_gets_nothing_behind_its_failure[sync-sqlite]"
    ],
)
break_source(
    "Kafka: a key goes on behind what was not produced",
    bug="behind a message that the producer refuses, later ones of its key are produced",
    file="outbox/publishers/kafka.py",
    old="                break  # what is not produced cannot overtake it\n",
    new="                continue\n",
    tests=[f"{SUITE}::TestKafka::test_after_a_failed_message_its_key_stops"],
)
break_source(
    "outbox: a retry has no entry",
    bug="who retried a parked lane, and why, is not in the audit",
    file="_engines/sql/outbox_programs.py",
    old="            return False\n        yield Change(",
    new="            return False\n        if ask.skip:\n            yield Change(",
    tests=["tests/outbox/test_audit.py::test_who_retried_or_skipped_a_lane_and_why[sqlite]"],
)

# --- add -------------------------------------------------------------------------------------------

break_source(
    "a message may set Content-Length",
    bug="header names that belong to a connection are refused in lower case only",
    file="outbox/_message.py",
    old="if name.lower() in _FRAMING:",
    new="if name in _FRAMING:",
    tests=[f"{ADD}::test_what_cannot_be_sent_is_reported_at_once"],
)
break_source(
    "header values with spaces at their ends",
    bug="a header value that a receiver would read differently is let in",
    file="outbox/_message.py",
    old="if value != value.strip():",
    new="if not value.isprintable():",
    tests=[f"{ADD}::test_what_cannot_be_sent_is_reported_at_once"],
)
