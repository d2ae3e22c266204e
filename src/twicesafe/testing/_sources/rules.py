"""The rules: what a source fetches, how it settles, and where its dead letters go."""

from __future__ import annotations

import threading
import time
import uuid

import pytest
from msgspec.structs import replace

from ..._core.consuming.message import Received, key_of
from ..._core.outbox.requests import Message
from .bench import SourceBench

__all__ = ["SettlingRules"]


class SettlingRules(SourceBench):
    # -- messages -----------------------------------------------------------------------------------

    def test_a_message_of_the_outbox_comes_as_it_was_sent(self) -> None:
        headers = {"idempotency-key": '"k"', "content-type": "text/plain", "x-name": "Zoë 100%"}
        with self.member() as member:
            (sent,) = self.send(key="Zoë 7%", headers=headers)
            (got,) = self.gather(member, sent.id).values()
            message = got.message
            assert (message.id, message.body, message.key) == (sent.id, sent.body, sent.key)
            # On some brokers the id is a header like any other.
            assert {**message.headers, "id": sent.id} == {**headers, "id": sent.id}
            assert message.topic == sent.topic
            assert message.deliveries in ((1,) if self.counts else (1, None))
            assert key_of(message) == "k"
            member.acknowledge([got.receipt])

    def test_a_message_without_a_key_has_none(self) -> None:
        with self.member() as member:
            (sent,) = self.send()
            (got,) = self.gather(member, sent.id).values()
            assert got.message.key is None
            member.acknowledge([got.receipt])

    # -- how far behind it is ---------------------------------------------------------------------

    def test_standing_counts_what_waits_and_takes_nothing(self) -> None:
        with self.member() as member:
            if not hasattr(member.source, "status"):
                pytest.skip("this source does not say how far behind it is")
            (first,) = self.send()  # the broker knows the consumer once it has settled something
            (got,) = self.gather(member, first.id).values()
            member.acknowledge([got.receipt])
        sent = self.send(3)
        with self.member() as asking:
            until = time.monotonic() + self.seconds
            while (found := asking.status()).waiting != len(sent):
                assert time.monotonic() < until, f"three messages wait, and the broker says {found}"
                time.sleep(0.05)
        with self.member() as member:
            again = self.gather(member, *(one.id for one in sent)).values()
            assert {one.message.deliveries for one in again} <= {1, None}
            member.acknowledge([one.receipt for one in again])

    # -- fetching -----------------------------------------------------------------------------------

    def test_fetch_returns_none_when_nothing_comes(self) -> None:
        with self.member() as member:
            member.fetch(1, 0)  # connects
            begun = time.monotonic()
            assert list(member.fetch(10, 0.4)) == []
            assert time.monotonic() - begun >= 0.35
            assert list(member.fetch(10, 0)) == []

    def test_fetch_waits_for_a_message_that_comes_later(self) -> None:
        with self.member() as member:
            member.fetch(1, 0)
            found: list[Received] = []
            waiting = threading.Thread(target=lambda: found.extend(member.fetch(10, self.seconds)))
            waiting.start()
            (sent,) = self.send()
            waiting.join(self.seconds)
            assert [one.message.id for one in found] == [sent.id]
            member.acknowledge([found[0].receipt])

    def test_fetch_returns_at_most_as_many_as_asked(self) -> None:
        with self.member() as member:
            ids = {message.id for message in self.send(7)}
            until = time.monotonic() + self.seconds
            while ids:
                assert time.monotonic() < until
                got = member.fetch(3, 0.5)
                assert len(got) <= 3
                ids -= {one.message.id for one in got}
                member.acknowledge([one.receipt for one in got])
            self.assert_empty(member)

    # -- settling -----------------------------------------------------------------------------------

    def test_an_acknowledged_message_never_comes_again(self) -> None:
        with self.member() as member:
            ids = [message.id for message in self.send(5)]
            got = self.gather(member, *ids)
            member.acknowledge([one.receipt for one in got.values()])
            member.acknowledge([one.receipt for one in got.values()])  # they are void: no error
            member.give_back([one.receipt for one in got.values()], 0)
            member.extend([one.receipt for one in got.values()])
        with self.member() as another:
            self.assert_empty(another)

    def test_a_message_of_a_lost_consumer_comes_to_another(self) -> None:
        with self.members(2) as (lost, other):
            ids = [message.id for message in self.send(3)]
            first = self.gather(lost, *ids)
            self.lose(lost.source)
            again = self.gather(other, *ids)
            for id_ in ids:
                message, earlier = again[id_].message, first[id_].message
                assert (message.body, message.headers) == (earlier.body, earlier.headers)
                assert message.position == earlier.position
                assert message.deliveries == self.redelivered()
            other.acknowledge([one.receipt for one in again.values()])
            self.assert_empty(other)

    def test_a_message_that_is_given_back_comes_again(self) -> None:
        with self.members(2) as (giver, other):
            (sent,) = self.send()
            (got,) = self.gather(giver, sent.id).values()
            giver.give_back([got.receipt], 0)
            giver.acknowledge([got.receipt])  # void
            (again,) = self.gather(giver, sent.id).values()
            assert again.message.deliveries == self.redelivered()
            giver.give_back([again.receipt], 0)
            self.lose(giver.source)
            (again,) = self.gather(other, sent.id).values()
            other.acknowledge([again.receipt])
            self.assert_empty(other)

    def test_a_delay_is_kept(self) -> None:
        with self.member() as member:
            if not member.source.can_delay:
                pytest.skip("this broker cannot delay")
            (sent,) = self.send()
            (got,) = self.gather(member, sent.id).values()
            begun = time.monotonic()
            member.give_back([got.receipt], 0.7)
            (again,) = self.gather(member, sent.id).values()
            assert time.monotonic() - begun >= 0.65
            member.acknowledge([again.receipt])
            self.assert_empty(member)

    def test_a_message_that_is_extended_goes_to_no_other(self) -> None:
        """If the machine was so slow that an extension came too late, the round is repeated."""
        with self.members(2) as (holder, other):
            ids = [message.id for message in self.send(2)]
            got = self.gather(holder, *ids).values()
            ack_wait = holder.source.ack_wait
            for _ in range(10):
                begun = last = time.monotonic()
                slowest, stolen = 0.0, False
                while time.monotonic() - begun < max(1.0, 2.5 * ack_wait) and not stolen:
                    holder.extend([one.receipt for one in got])
                    now = time.monotonic()
                    slowest, last = max(slowest, now - last), now
                    taken = self.fetch(other, 10, ack_wait / 8)
                    other.give_back([one.receipt for one in taken], 0)
                    stolen = bool(taken)
                if not stolen:
                    break
                assert slowest > ack_wait / 2, "another consumer got a message that is extended"
                got = self.gather(holder, *ids).values()
            holder.acknowledge([one.receipt for one in got])
            self.assert_empty(other)

    def test_the_receipt_of_a_lost_delivery_is_void(self) -> None:
        """The message is another consumer's now: the first one must not settle it for the other."""
        with self.members(3) as (first, second, third):
            if not first.source.ack_wait and not self.breaks:
                pytest.skip("this broker takes no message away while its consumer is connected")
            (sent,) = self.send()
            (lost,) = self.gather(first, sent.id).values()
            if not first.source.ack_wait:
                self.hang_up()
            (got,) = self.gather(second, sent.id).values()
            first.acknowledge([lost.receipt])
            first.extend([lost.receipt])
            first.give_back([lost.receipt], 0)
            begun = time.monotonic()
            second.extend([got.receipt])
            taken = self.fetch(third, 10, 0.2)
            if taken:  # only right if the machine was slow
                assert time.monotonic() - begun > second.source.ack_wait / 2 > 0
            third.give_back([one.receipt for one in taken], 0)
            second.give_back([got.receipt], 0)  # it is still there to be given back
            ((again, by),) = self.gather_by([second, third], sent.id).values()
            by.acknowledge([again.receipt])
            self.assert_empty(third)

    def test_two_consumers_share(self) -> None:
        with self.members(2) as members:
            for member in members:
                member.fetch(1, 0)
            ids: set[str] = set()
            got: list[list[str]] = [[], []]
            until = time.monotonic() + self.seconds
            while len(got[0]) + len(got[1]) < len(ids) or not all(got):
                assert time.monotonic() < until, f"one consumer got nothing: {[*map(len, got)]}"
                if len(got[0]) + len(got[1]) == len(ids):
                    # All went to one consumer: the broker was still dividing the work.
                    ids |= {message.id for message in self.send(60)}
                for member, mine in zip(members, got, strict=True):
                    some = member.fetch(5, 0.1)
                    member.acknowledge([one.receipt for one in some])
                    mine += [one.message.id for one in some]
            assert sorted(got[0] + got[1]) == sorted(ids)
            self.assert_empty(members[0])

    # -- dead letters and settings ------------------------------------------------------------------

    def test_dead_letters_have_a_place(self) -> None:
        with self.member() as member:
            member.prepare_dead_letters()
            member.prepare_dead_letters()
            dead = Message(str(uuid.uuid4()), member.dead_topic(self.topic()), b"dead")
            # Two groups may give up on the same message, and one may give up on it again.
            for _ in range(2):
                self.publish(member.source.dead_url, [dead])
            assert self.dead_letters() == [dead.id, dead.id]
            assert list(member.fetch(10, 0.3)) == [], "a dead letter came back to its consumer"

    def test_a_replay_comes_back_under_its_key(self) -> None:
        with self.member() as member:
            (sent,) = self.send(key="customer 7")
            (got,) = self.gather(member, sent.id).values()
            member.acknowledge([got.receipt])
            source, first = member.source, got.message
            again = replace(sent, topic=source.origin(first.topic))
            self.publish(source.replay_url(source.place), [again])
            (replayed,) = self.gather(member, sent.id).values()
            second = replayed.message
            assert (second.body, second.key) == (sent.body, sent.key)
            assert second.headers == first.headers
            assert key_of(second) == key_of(first)
            assert source.scope(second.topic) == source.scope(first.topic)
            member.acknowledge([replayed.receipt])
            self.assert_empty(member)

    def test_ordinary_settings_pass_the_check(self) -> None:
        with self.member() as member:
            assert list(member.check(self.consumer_settings())) == []
