"""The rules: order per key, refusals that affect only their own key, and outages that count no attempt."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from msgspec.structs import replace

from ..._core.outbox.publisher import NOT_TRIED, NotNow, keeps_order
from ..._core.outbox.requests import Message
from ..._runtime.adapting import for_threads
from ..._values.policy import Backoff
from ...errors import BrokerUnavailableError
from ...outbox import Outbox, OutboxRelay
from .hooks import PublisherUnderTest

__all__ = ["PublisherConformance"]

SOON: Final = Backoff(first=0.05, factor=1, jitter=0)
LARGEST: Final = 1 << 30
OUTAGE: Final = "an outage"


class PublisherConformance(PublisherUnderTest):
    """Every rule. Subclass it under a name that pytest collects, and fill in the hooks."""

    # -- what the rules use -----------------------------------------------------------------------

    @contextmanager
    def publisher(self) -> Iterator[_Opened]:
        """The publisher, with blocking methods."""
        opened = _Opened(self.open_publisher())
        try:
            yield opened
        finally:
            opened.close()

    @contextmanager
    def relay(
        self, folder: Path, max_attempts: int = 2
    ) -> Iterator[tuple[Outbox, Callable[..., None]]]:
        """A running relay from an outbox in SQLite to the broker; yields the outbox and `add`."""
        import sqlite3

        url = f"sqlite:///{folder / 'outbox.db'}"
        with Outbox.open(url, max_bytes=LARGEST) as outbox:
            connection = sqlite3.connect(folder / "outbox.db", timeout=30)

            def add(messages: Sequence[Message]) -> None:
                with connection:
                    outbox.add_many(connection, [_fields(message) for message in messages])

            working = OutboxRelay.open(
                url, self.open_publisher(), max_attempts=max_attempts, backoff=SOON
            )
            try:
                with working:
                    yield outbox, add
            finally:
                connection.close()

    def keeps_order(self) -> bool:
        """Whether the publisher accepts several messages of a key in one call."""
        publisher = self.open_publisher()
        opened = _Opened(publisher)
        opened.close()
        return keeps_order(publisher)

    def until(self, condition: Callable[[], object], what: str, pause: float = 0.02) -> None:
        limit = time.monotonic() + self.time_limit
        while not condition():
            assert time.monotonic() < limit, f"it never happened: {what}"
            time.sleep(pause)

    # -- order --------------------------------------------------------------------------------------

    def test_messages_of_a_key_arrive_in_order(self) -> None:
        topic = self.topic("orders")
        sent = [_message(topic, f"k{n % 3}") for n in range(60)]
        sent += [_message(topic, None) for _ in range(6)]
        with self.publisher() as publisher:
            most = publisher.batch if self.keeps_order() else min(publisher.batch, 3)
            for start in range(0, len(sent), most):
                part = sent[start : start + most]
                assert list(publisher.publish(part)) == [None] * len(part)
        taken = self.taken(topic)
        assert sorted(taken) == sorted(message.id for message in sent)
        _assert_in_order(taken, sent)

    def test_a_repeat_has_the_same_id(self) -> None:
        topic = self.topic("repeats")
        sent = [_message(topic, "k")]
        for _ in range(2):
            with self.publisher() as publisher:
                assert list(publisher.publish(sent)) == [None]
        assert set(self.taken(topic)) == {sent[0].id}

    def test_after_a_failed_message_its_key_stops(self) -> None:
        """Only for publishers that keep order, which may get several messages of a key in one call."""
        if not self.keeps_order():
            pytest.skip("this publisher gets one message of a key at a time")
        for poison in self.poison():
            topic = poison.topic
            with self.publisher() as publisher:
                sent = [replace(poison, key="k"), _message(topic, "k"), _message(topic, "k")]
                answers = _answers(publisher, sent[: publisher.batch])
                assert None not in answers, "a message after the poison counts as published"

    def test_a_failed_message_does_not_affect_others(self) -> None:
        """Each message has its own answer: None means durable, and poison never gets None."""
        topic = self.topic("neighbours")
        for poison in self.poison():
            sent = [_message(topic, "a"), replace(poison, key="b"), _message(topic, "c")]
            with self.publisher() as publisher:
                for start in range(0, len(sent), publisher.batch):
                    part = sent[start : start + publisher.batch]
                    answers = _answers(publisher, part)
                    assert len(answers) == len(part)
                    for message, answer in zip(part, answers, strict=True):
                        assert answer is None or isinstance(answer, Exception)
                        assert answer is not None or message is not sent[1], "poison is published"
                        if answer is None:
                            assert message.id in self.taken(topic), (
                                "published, but not on the broker"
                            )
                        elif message is not sent[1]:
                            fine = (BrokerUnavailableError, type(NOT_TRIED))
                            assert isinstance(answer, fine), "a good message is refused"

    # -- refusals -----------------------------------------------------------------------------------

    def test_poison_parks_its_own_lane_and_others_continue(self, tmp_path: Path) -> None:
        """Also if the broker drops the connection because of the poison, which looks like an outage."""
        topic = self.topic("others")
        poisons = [
            replace(poison, key=f"poison {number}") for number, poison in enumerate(self.poison())
        ]
        good = [_message(topic, f"k{n % 4}") for n in range(20)]
        behind = [_message(topic, poison.key) for poison in poisons]
        with self.relay(tmp_path) as (outbox, add):
            add([*good[:10], *poisons, *behind, *good[10:]])

            def all_parked() -> bool:
                good.append(_message(topic, "k0"))  # messages to compare with keep coming
                add(good[-1:])
                return len(outbox.parked()) == len(poisons)

            self.until(all_parked, "all poison is parked", pause=0.2)
            self.until(lambda: set(self.taken(topic)) >= _ids(good), "the others are taken")
            assert {lane.message_id for lane in outbox.parked()} == _ids(poisons)
            taken = self.taken(topic)
            assert not set(taken) & _ids(behind)
            _assert_in_order(taken, good)
            for lane in outbox.parked():
                outbox.skip(lane.lane, by="suite", why="poison")
            self.until(
                lambda: set(self.taken(topic)) >= _ids(behind), "the messages after it are taken"
            )

    def test_poison_that_was_alone_at_first_does_not_stop_later_messages(
        self, tmp_path: Path
    ) -> None:
        """The relay has tried it several times before there is another message to compare it with."""
        topic = self.topic("later")
        for number, poison in enumerate(self.poison()):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            good: list[Message] = []
            with self.relay(folder) as (outbox, add):
                add([replace(poison, key="poison")])
                time.sleep(0.5)  # so that the relay tries it; a quick machine tries several times

                def is_parked() -> bool:
                    good.append(_message(topic, "k"))  # noqa: B023 - called in this turn only
                    add(good[-1:])  # noqa: B023
                    return bool(outbox.parked())

                self.until(is_parked, f"poison {number} is parked", pause=0.2)
                self.until(lambda: set(self.taken(topic)) >= _ids(good), "the others are taken")  # noqa: B023

    def test_poison_is_recognised_with_nothing_else_to_send(self, tmp_path: Path) -> None:
        """There is no other message to compare with: the publisher must recognise it, or check the broker."""
        for number, poison in enumerate(self.lone_poison()):
            folder = tmp_path / f"{number}"
            folder.mkdir()
            with self.relay(folder) as (outbox, add):
                add([replace(poison, key="k")])
                self.until(outbox.parked, f"poison {number} is parked")

    def test_a_key_with_poison_in_the_middle_keeps_its_order(self, tmp_path: Path) -> None:
        """Its messages have several topics, and the broker would accept those after the poison."""
        topic = self.topic("middle")
        poison = replace(self.poison()[0], key="k")
        before, behind = ([_message(topic, "k") for _ in range(3)] for _ in range(2))
        with self.relay(tmp_path, max_attempts=1) as (outbox, add):
            add([*before, poison, *behind])
            self.until(outbox.parked, "the poison is parked")
            assert set(self.taken(topic)) == _ids(before)
            outbox.skip(outbox.parked()[0].lane, by="suite", why="poison")
            self.until(
                lambda: set(self.taken(topic)) >= _ids(behind), "the messages after it are taken"
            )
        _assert_in_order(self.taken(topic), [*before, *behind])

    def test_a_missing_destination_is_not_the_messages_fault(self, tmp_path: Path) -> None:
        if self.makes_topics:
            pytest.skip("this broker creates missing topics, or needs none")
        topic, missing = self.topic("there"), _message(self.missing_topic(), "missing")
        with self.publisher() as publisher:
            (answer,) = publisher.publish([missing])
            assert isinstance(answer, NotNow), answer
        others = [_message(topic, "k") for _ in range(3)]
        with self.relay(tmp_path, max_attempts=1) as (outbox, add):
            add([missing, *others])
            self.until(lambda: set(self.taken(topic)) == _ids(others), "the others are taken")
            self.until(lambda: outbox.depth().resting_lanes == 1, "its lane rests")
            assert outbox.parked() == []

    # -- outages ------------------------------------------------------------------------------------

    def test_an_outage_counts_no_attempt(self, tmp_path: Path) -> None:
        topic = self.topic("outage")
        sent = [_message(topic, f"k{n % 2}") for n in range(6)]
        with self.relay(tmp_path, max_attempts=1) as (outbox, add):
            with self.outage():
                with self.publisher() as publisher:
                    assert _outage_or_answers(publisher, sent[:1]) == OUTAGE
                add(sent)
                time.sleep(0.5)  # so that the relay tries it; a quick machine tries several times
                assert outbox.parked() == []
                assert outbox.depth().pending == len(sent)
            self.until(lambda: set(self.taken(topic)) >= _ids(sent), "all are taken")
            assert outbox.parked() == []
        _assert_in_order(self.taken(topic), sent)

    def test_a_publisher_reconnects_after_a_disconnect(self, tmp_path: Path) -> None:
        if not self.hangs_up:
            pytest.skip("this broker cannot drop connections")
        topic = self.topic("dropped")
        sent = [_message(topic, "k") for _ in range(3)]
        with self.relay(tmp_path, max_attempts=1) as (outbox, add):
            for number in range(len(sent)):
                add(sent[number : number + 1])
                self.until(lambda: len(set(self.taken(topic))) > number, "it is taken")  # noqa: B023
                self.hang_up()
            assert outbox.parked() == []

    def test_silence_is_not_taken_for_published(self) -> None:
        topic = self.topic("silence")
        first, second = _message(topic, "k"), _message(topic, "k")
        with self.publisher() as publisher:
            assert list(publisher.publish([first])) == [None]
            with self.silence():
                assert _outage_or_answers(publisher, [second]) == OUTAGE
            self.until(
                lambda: _is_published(publisher, second), "it is taken when the broker is back"
            )
        _assert_in_order(self.taken(topic), [first, second])

    # -- closing ------------------------------------------------------------------------------------

    def test_it_can_be_closed_unused_and_during_an_outage(self) -> None:
        with self.publisher():
            pass
        topic = self.topic("closing")
        with self.publisher() as publisher:
            assert list(publisher.publish([_message(topic, "k")])) == [None]
            with self.outage():
                publisher.close()


class _Opened:
    """A publisher, blocking or async, with blocking methods."""

    def __init__(self, publisher: Any) -> None:
        self.batch: int = publisher.batch
        self._blocking = for_threads(publisher, "publish")
        self._closed = False

    def publish(self, messages: Sequence[Message]) -> Sequence[Any]:
        return self._blocking.publish(messages)  # type: ignore[no-any-return]

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._blocking.close()


def _message(topic: str, key: str | None) -> Message:
    id_ = str(uuid.uuid4())
    return Message(id_, topic, b"body of " + id_.encode(), key, {"idempotency-key": id_})


def _fields(message: Message) -> dict[str, Any]:
    return {
        "topic": message.topic,
        "body": message.body,
        "key": message.key,
        "headers": message.headers,
        "id": message.id,
    }


def _ids(messages: Sequence[Message]) -> set[str]:
    return {message.id for message in messages}


def _assert_in_order(taken: Sequence[str], sent: Sequence[Message]) -> None:
    """For every key: its messages were first delivered in the order in which they were sent."""
    for key in {message.key for message in sent} - {None}:
        mine = [message.id for message in sent if message.key == key]
        assert list(dict.fromkeys(id_ for id_ in taken if id_ in set(mine))) == mine


def _outage_or_answers(publisher: _Opened, messages: Sequence[Message]) -> object:
    try:
        answers = publisher.publish(messages)
    except BrokerUnavailableError:
        return OUTAGE
    away = all(isinstance(answer, BrokerUnavailableError) for answer in answers)
    return OUTAGE if away else list(answers)


def _answers(publisher: _Opened, messages: Sequence[Message]) -> list[Any]:
    """One for each message, also if the call raises."""
    try:
        return list(publisher.publish(messages))
    except BrokerUnavailableError as error:
        return [error] * len(messages)


def _is_published(publisher: _Opened, message: Message) -> bool:
    try:
        return list(publisher.publish([message])) == [None]
    except BrokerUnavailableError:
        return False
