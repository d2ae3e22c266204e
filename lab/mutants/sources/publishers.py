"""Source mutants of the publishers: what they call published, refused and away."""

from __future__ import annotations

from .registry import break_source

TESTS = "tests/outbox/test_publishers.py"
SUITE = "tests/outbox/test_publisher_conformance.py"
LINES = "tests/outbox/test_outages.py::test_any_text_can_be_a_header_line"
SILENCE = "test_silence_is_not_taken_for_published"

break_source(
    "NATS: a time-out counts as published",
    bug="a message that the stream did not confirm is deleted from the outbox",
    file="outbox/publishers/_connection.py",
    old="            if isinstance(error, TimeoutError):\n",
    new="            if isinstance(error, TimeoutError):\n                return\n",
    tests=[f"{SUITE}::TestJetStream::{SILENCE}"],
)
break_source(
    "RabbitMQ: a time-out counts as published",
    bug="a message that the broker did not confirm is deleted from the outbox",
    file="outbox/publishers/_connection.py",
    old="            if isinstance(error, TimeoutError):\n",
    new="            if isinstance(error, TimeoutError):\n                return\n",
    tests=[f"{SUITE}::TestRabbit::{SILENCE}"],
)
break_source(
    "Redis: a lost connection counts as published",
    bug="messages whose transaction got no answer are deleted from the outbox",
    file="outbox/publishers/redis.py",
    old="            return [error] * len(messages)",
    new="            return [None] * len(messages)",
    tests=[f"{TESTS}::test_redis_away"],
)
break_source(
    "Kafka: a time-out counts as published",
    bug="a message that was not delivered in time is deleted from the outbox",
    file="outbox/publishers/kafka.py",
    old="None if report is None else",
    new='None if report is None or report.name() == "_MSG_TIMED_OUT" else',
    tests=[f"{TESTS}::test_kafka_away"],
)
break_source(
    "web hook: silence counts as published",
    bug="a message that the web hook did not answer is deleted from the outbox",
    file="outbox/publishers/webhook.py",
    old='            raise BrokerUnavailableError(\n                f"the webhook did not answer',
    new='            return\n            raise BrokerUnavailableError(\n                f"the webhook did not answer',
    tests=[f"{SUITE}::TestWebhook::{SILENCE}"],
)
break_source(
    "web hook: redirects count as published",
    bug="a message that was answered with an error below 500 is deleted from the outbox",
    file="outbox/publishers/webhook.py",
    old="if not answer.is_success:",
    new="if answer.is_server_error:",
    tests=[f"{TESTS}::test_a_web_hook_that_refuses_a_message"],
)
break_source(
    "web hook: too many requests is a refusal",
    bug="a web hook that asks for patience is taken to refuse the message",
    file="outbox/publishers/webhook.py",
    old="{425, 429, 503}",
    new="{425, 503}",
    tests=[f"{TESTS}::test_a_web_hook_that_is_away_counts_nothing"],
)
break_source(
    "web hook: what httpx refuses is an outage",
    bug="a message that cannot be written as a request stops the whole relay",
    file="outbox/publishers/webhook.py",
    old="            raise  # httpx refused this message",
    new='            raise BrokerUnavailableError("away")',
    tests=[f"{TESTS}::test_what_httpx_refuses_is_that_messages_failure"],
)
break_source(
    "web hook: a message sets Content-Length",
    bug="a message's own Content-Length reaches the connection",
    file="outbox/publishers/webhook.py",
    old="        if framing:\n",
    new="        if not headers:\n",
    tests=[f"{TESTS}::test_what_httpx_refuses_is_that_messages_failure"],
)
break_source(
    "header lines with spaces at their ends",
    bug="a key with a space at its end cannot be sent, or arrives without it",
    file="outbox/publishers/_header_lines.py",
    old=" and text == text.strip()",
    new="",
    tests=[LINES],
)
break_source(
    "NATS: any topic is a subject",
    bug="a topic with a space makes the server hang up, one with * is a wild card",
    file="outbox/publishers/nats.py",
    old="if _SUBJECT.fullmatch(subject) is None:",
    new="if not subject:",
    tests=[f"{TESTS}::test_jetstream_refuses_topics_that_are_no_subjects"],
)
break_source(
    "NATS: headers have no weight",
    bug="the server hangs up on a message whose headers bring it above max_payload",
    file="outbox/publishers/nats.py",
    old="size = len(message.body) + _size_of(headers)",
    new="size = len(message.body)",
    tests=[f"{TESTS}::test_jetstream_counts_headers_as_the_server_does"],
)
break_source(
    "NATS: a missing stream is the message's failure",
    bug="messages are parked because their stream was not created yet",
    file="outbox/publishers/nats.py",
    old='raise NotNow(f"no JetStream stream listens to {subject}: create it") from error',
    new="raise",
    tests=[f"{TESTS}::test_jetstream_without_a_stream_says_which_one_is_missing"],
)
break_source(
    "Redis: a refusal is an outage",
    bug="a stream that Redis refuses to write to stops the whole relay",
    file="outbox/publishers/redis.py",
    old='return RuntimeError(f"Redis refused the message: {type(error).__name__}: {_words(error)}")',
    new='return BrokerUnavailableError(f"Redis: {_words(error)}")',
    tests=[f"{SUITE}::TestRedisStreams::test_poison_is_recognised_with_nothing_else_to_send"],
)
break_source(
    "NATS: its driver is imported by the first publish",
    bug="a missing driver is met by the first message, which is counted as refused",
    file="outbox/publishers/nats.py",
    old='        require("nats")\n',
    new="",
    tests=["tests/cli/test_outbox.py::test_relay_without_its_driver_touches_no_lane"],
)
