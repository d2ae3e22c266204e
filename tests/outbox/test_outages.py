"""Outage or refusal? A message that the broker hangs up on is found out; an outage counts nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.outbox.stage import AsyncBroker, Broker, RelayMode
from tests.polling import until
from twicesafe import Backoff, BrokerUnavailableError
from twicesafe._core.outbox.publisher import NOT_TRIED, NotNow
from twicesafe._core.outbox.relay_lease import CheckBroker, Collect, Publish, RelayState
from twicesafe._core.outbox.relay_publish import publish_pending
from twicesafe._core.outbox.requests import Fetch, Fetched, Message, Pending, Settle
from twicesafe.events import BrokerFailed, Event, PublishFailed
from twicesafe.outbox import Outbox
from twicesafe.outbox.publishers._header_lines import line_of

Put = Callable[..., list[str]]

AT_ONCE = Backoff(first=0, jitter=0)


class Choking(Broker):
    """Hangs up on a certain body, and takes what stands before it in the call."""

    blames: Any = "compared"

    def publish(self, messages: Sequence[Message]) -> list[Exception | None]:
        for place, message in enumerate(messages):
            if message.body in (b"bad", b"worse"):
                self.tried.append(message.body.decode())
                super().publish(messages[:place])
                raise BrokerUnavailableError("hung up", blames=self.blames)
        return super().publish(messages)


class Checked(Choking):
    blames = "alone"
    checks = 0

    def check(self) -> None:
        self.checks += 1
        if self.away is not None:
            raise self.away


def test_a_message_that_the_broker_hangs_up_on_parks_its_lane(
    mode: RelayMode, outbox: Outbox, put: Put
):
    broker = Choking()
    for number in range(6):
        put("bad" if number == 3 else f"{number}", key=f"k{number}")
    relay = mode.relay(broker, max_attempts=2, backoff=AT_ONCE).start()
    number = 6

    def parked() -> Any:
        nonlocal number
        put(f"{number}", key="others")
        number += 1
        return outbox.parked()

    until(parked, 60)
    until(lambda: len(set(broker.bodies)) == number - 1, 60)  # some were sent twice
    relay.stop()
    assert [lane.key for lane in outbox.parked()] == ["k3"]
    others = [body for body in dict.fromkeys(broker.bodies) if int(body) >= 6]
    assert others == [f"{n}" for n in range(6, number)]


def test_messages_that_come_later_are_sent_and_compared_with_it(
    mode: RelayMode, outbox: Outbox, put: Put
):
    """It was alone at first: the relay fetches others although this one is still to be sent."""
    broker = Choking()
    failures: list[Event] = []
    put("bad", key="k")
    relay = mode.relay(broker, max_attempts=2, backoff=AT_ONCE, observers=[failures.append]).start()
    until(lambda: sum(isinstance(event, BrokerFailed) for event in failures) > 1, 60)
    number = 0

    def parked() -> Any:
        nonlocal number
        put(f"{number}", key="others")
        number += 1
        return outbox.parked()

    until(parked, 60)
    until(lambda: len(set(broker.bodies)) == number, 60)
    relay.stop()
    assert list(dict.fromkeys(broker.bodies)) == [f"{n}" for n in range(number)]


def test_alone_it_is_detected_by_a_check(mode: RelayMode, outbox: Outbox, put: Put):
    broker = Checked()
    put("bad", key="k")
    relay = mode.relay(broker, max_attempts=2, backoff=AT_ONCE).start()
    until(outbox.parked, 60)
    relay.stop()
    assert broker.checks


def test_draining_detects_it_and_continues(mode: RelayMode, outbox: Outbox, put: Put):
    """From cron, the same message would end every run before the others are sent."""
    broker = Checked()
    put("bad", key="k1")
    put("2", "3", key="k2")
    relay = mode.relay(broker, max_attempts=1)
    assert relay.drain() == 2
    assert [lane.key for lane in outbox.parked()] == ["k1"]


@pytest.mark.parametrize("kind", [Choking, Checked])
def test_an_outage_is_never_blamed_on_a_message(
    kind: type[Broker], mode: RelayMode, outbox: Outbox, put: Put
):
    broker = kind()
    broker.away = BrokerUnavailableError("busy", blames="none")
    failures: list[Event] = []
    put("1", key="k1")
    put("2", key="k2")
    relay = mode.relay(broker, max_attempts=1, observers=[failures.append]).start()
    until(lambda: sum(isinstance(event, BrokerFailed) for event in failures) > 3, 60)
    assert outbox.parked() == []
    broker.away = None
    broker.wait_for(2, 60)
    relay.stop()
    assert not any(isinstance(event, PublishFailed) for event in failures)


def test_a_missing_stream_blames_no_message(
    mode: RelayMode, outbox: Outbox, put: Put, broker: Broker
):
    broker.refuses, broker.why = {"bad"}, NotNow("no stream listens to orders: create it")
    put("bad", "behind", key="k1")
    put("other", key="k2")
    relay = mode.relay(broker, max_attempts=1, backoff=Backoff(first=3600))
    with pytest.raises(BrokerUnavailableError, match="create it"):
        relay.drain()  # when all that can go has gone
    assert broker.bodies == ["other"]
    depth = outbox.depth()
    assert (depth.pending, depth.resting_lanes, depth.parked) == (2, 1, 0)


# --- the publishing flow, by hand ----------------------------------------------------------------------------


class PublishingFlow:
    """One relay's flow with these rows, and nothing behind it but this test."""

    def __init__(
        self,
        *rows: tuple[str, str],
        checks: bool = False,
        group: int = 10,
        keeps_order: bool = False,
    ) -> None:
        self.now = 0.0
        self.setbacks: list[Any] = []
        self.state = RelayState(
            lease=5, batch=10, group=group, concurrency=1, max_attempts=3, backoff=AT_ONCE,
            publish_timeout=300, wake=False, clock=lambda: self.now, notify=lambda event: None, checks=checks,
            keeps_order=keeps_order,
        )  # fmt: skip
        self.state.slots, self.state.deadline = {0: 1}, 1e9
        self.rows = [
            Pending(n, key.encode(), 0, 0, False, 0, Message(f"m{n}", topic, b"", key))
            for n, (key, topic) in enumerate(rows, 1)
        ]
        self.flow = publish_pending(self.state)
        self.command: Any = self.flow.send(None)

    def until(self, kind: type, reply: Any = None) -> Any:
        """Answer the command that it waits for, and then all others, until it yields one of these."""
        self.command = self.flow.send(reply)
        for _ in range(50):
            if type(self.command) is Settle:
                self.setbacks += self.command.setbacks
            if type(self.command) is kind:
                return self.command
            self.now += 20
            answers: dict[type, Any] = {
                Fetch: Fetched([]),
                Collect: [],
                Settle: 0,
                CheckBroker: None,
            }
            self.command = self.flow.send(answers[type(self.command)])
        raise AssertionError(f"it never yields {kind.__name__}")


def outage(blames: Any = "compared") -> BrokerUnavailableError:
    return BrokerUnavailableError("gone", blames=blames)


def test_a_call_has_one_message_of_a_key():
    """A broker may take any part of a call: what is behind a message must not be on its way."""
    flow = PublishingFlow(("k", "a"), ("k", "a"), ("k", "a"), ("other", "a"), ("other", "a"))
    first = flow.until(Publish, Fetched(flow.rows))
    assert [message.id for message in first.messages] == ["m1", "m4"]
    flow.until(Collect)
    second = flow.until(Publish, [(first.ticket, [ValueError("no"), None])])
    assert [message.id for message in second.messages] == ["m5"]


def test_a_call_has_many_messages_of_a_key_if_the_publisher_keeps_order():
    flow = PublishingFlow(("k", "a"), ("k", "a"), ("other", "a"), ("other", "a"), keeps_order=True)
    first = flow.until(Publish, Fetched(flow.rows))
    assert [message.id for message in first.messages] == ["m1", "m2", "m3", "m4"]
    flow.until(Collect)
    settled = flow.until(Settle, [(first.ticket, [ValueError("no"), None, None, None])])
    assert [row.n for row in settled.setbacks] == [1]
    assert settled.done == [3, 4]


def test_a_call_has_one_topic_of_a_key():
    """EXEC takes a message although one before it failed, if they are of two streams."""
    rows = (("k", "a"), ("k", "a"), ("k", "b"), ("k", "a"), ("other", "b"))
    flow = PublishingFlow(*rows, keeps_order=True)
    first = flow.until(Publish, Fetched(flow.rows))
    assert [message.id for message in first.messages] == ["m1", "m2", "m5"]
    flow.until(Collect)
    second = flow.until(Publish, [(first.ticket, [None] * 3)])
    assert [message.id for message in second.messages] == ["m3"]


def test_one_outage_is_not_enough_to_blame_a_message():
    flow = PublishingFlow(("k", "a"), checks=True)
    first = flow.until(Publish, Fetched(flow.rows))
    flow.until(Collect)
    check = flow.until(CheckBroker, [(first.ticket, outage("alone"))])
    flow.until(Collect)
    again = flow.until(Publish, [(check.ticket, None)])
    flow.until(Collect)
    settled = flow.until(Settle, [(again.ticket, outage("alone"))])
    assert [setback.attempts for setback in settled.setbacks] == [1]


@pytest.mark.parametrize(
    "before, then, counted",
    [
        ("none", "none", []),
        ("none", "compared", []),
        ("compared", "none", []),
        ("compared", "compared", [1]),
        ("alone", "alone", [1]),
    ],
)
def test_what_fails_alone_again_while_others_are_taken_is_to_blame(
    before: Any, then: Any, counted: list[int]
):
    flow = PublishingFlow(("k", "a"), ("other", "a"), group=1)
    first = flow.until(Publish, Fetched(flow.rows))
    flow.until(Collect)
    second = flow.until(Publish, [(first.ticket, outage(before))])
    assert second.messages[0].id == "m2"
    flow.until(Collect)
    third = flow.until(Publish, [(second.ticket, [None])])
    assert third.messages[0].id == "m1"
    flow.until(Collect)
    flow.until(Fetch if counted else Publish, [(third.ticket, outage(then))])
    assert [setback.attempts for setback in flow.setbacks] == counted


def test_the_first_outage_of_a_message_is_not_its_fault_though_others_were_taken():
    flow = PublishingFlow(("other", "a"), ("k", "a"), group=1)
    first = flow.until(Publish, Fetched(flow.rows))
    flow.until(Collect)
    second = flow.until(Publish, [(first.ticket, [None])])
    flow.until(Collect)
    flow.until(Publish, [(second.ticket, outage("alone"))])
    assert flow.setbacks == []


def test_a_broker_that_answers_a_check_but_no_message_is_slow_and_no_message_is_blamed():
    flow = PublishingFlow(("k", "a"), checks=True)
    command = flow.until(Publish, Fetched(flow.rows))
    for _ in range(5):
        flow.until(Collect)
        check = flow.until(CheckBroker, [(command.ticket, outage("compared"))])
        flow.until(Collect)
        command = flow.until(Publish, [(check.ticket, None)])
    assert flow.state.outage is not None


def test_a_check_that_fails_is_an_outage():
    flow = PublishingFlow(("k", "a"), checks=True)
    first = flow.until(Publish, Fetched(flow.rows))
    flow.until(Collect)
    check = flow.until(CheckBroker, [(first.ticket, outage("alone"))])
    flow.until(Collect)
    assert flow.state.outage is None
    flow.until(CheckBroker, [(check.ticket, OSError("no route"))])
    assert "cannot be checked: OSError" in str(flow.state.outage)


@pytest.mark.parametrize("counts", [{}, {"others": None}], ids=["lists", "one"])
def test_a_call_that_sent_nothing_is_an_outage_of_all_its_messages(counts: Any):
    """Then all of them are sent one by one: any of them may be the one that the broker chokes on."""
    flow = PublishingFlow(("k", "a"), ("k", "a"), ("j", "a"), keeps_order=True)
    call = flow.until(Publish, Fetched(flow.rows))
    for _ in range(2):
        assert len(call.messages) == 3
        flow.until(Collect)
        said = [outage(), NOT_TRIED, outage()] if not counts else outage()
        call = flow.until(Publish, [(call.ticket, said)])
    for id_ in ("m1", "m3", "m2"):
        assert [message.id for message in call.messages] == [id_]
        flow.until(Collect)
        call = flow.until(Publish if id_ != "m2" else Settle, [(call.ticket, [None])])
    assert flow.setbacks == []


def test_a_long_outage_fills_no_memory():
    """Others are fetched to compare with, and the rows behind the suspects are let go for them."""
    flow = PublishingFlow(("k", "a"))
    loop = flow.flow.gi_frame.f_locals["self"]
    held = 0
    command = flow.command
    for n in range(2_000):
        reply: Any = None
        if type(command) is Fetch:
            lane = f"lane {n}".encode()
            rows = [
                Pending(
                    10 * n + place, lane, 0, 0, False, 0, Message(f"{n} {place}", "a", b"", "k")
                )
                for place in range(10)
            ]
            reply = Fetched(rows)
        elif type(command) is Publish:
            ticket = command.ticket
        elif type(command) is Collect:
            flow.now += 20
            reply, ticket = ([(ticket, outage())] if ticket else []), 0
        command = flow.flow.send(reply)
        held = max(held, sum(map(len, loop.lanes.values())))
    assert flow.state.batch < held <= 2 * flow.state.batch + 1


def test_a_publisher_that_never_tries_is_asked_again_after_a_rest():
    flow = PublishingFlow(("k", "a"))
    call = flow.until(Publish, Fetched(flow.rows))
    flow.until(Collect)
    before = flow.now
    flow.until(Publish, [(call.ticket, [NOT_TRIED])])
    assert flow.now > before
    assert flow.setbacks == []


def test_an_async_publisher_is_checked_by_both_relays(mode: RelayMode, outbox: Outbox, put: Put):
    class AsyncChecked(AsyncBroker):
        checks = 0

        async def check(self) -> None:
            self.checks += 1
            self.away = None

    broker = AsyncChecked()
    broker.away = BrokerUnavailableError("gone")
    put("1", key="k")
    relay = mode.relay(broker).start()
    broker.wait_for(1, 60)
    relay.stop()
    assert broker.checks


@pytest.mark.parametrize(
    "text, line",
    [
        ("plain text", "plain text"),
        ("", ""),
        (" both ends ", "%20both ends%20"),
        ("  ", "%20%20"),
        ("ünï", "%C3%BCn%C3%AF"),
        (" ü ", "%20%C3%BC%20"),
        ("a\u00a0", "a%C2%A0"),
    ],
)
def test_any_text_can_be_a_header_line(text: str, line: str):
    assert line_of(text) == line
