"""The rules: what the members of a group share, and that what a member holds is never lost."""

from __future__ import annotations

import threading
import time
from collections import Counter

import pytest

from .bench import BlockingSource, SourceBench

__all__ = ["SharingRules"]


class SharingRules(SourceBench):
    def test_what_a_closed_consumer_held_comes_to_another(self) -> None:
        """It was fetched, and not acknowledged: a consumer that stops in the middle loses no message."""
        with self.member() as leaving:
            ids = [message.id for message in self.send(3)]
            self.gather(leaving, *ids)
        with self.member() as other:
            again = self.gather(other, *ids)
            other.acknowledge([one.receipt for one in again.values()])
            self.assert_empty(other)

    def test_several_messages_are_given_back_at_once(self) -> None:
        with self.member() as member:
            ids = {message.id for message in self.send(3)}
            held = [one.receipt for one in self.gather(member, *ids).values()]
            member.give_back(held, 0)
            until = time.monotonic() + self.seconds
            while ids:
                assert time.monotonic() < until, f"{len(ids)} of 3 never came again"
                member.extend(held)  # void for those given back; the others stay held
                for one in self.fetch(member, 10, 0.2):
                    ids.discard(str(one.message.id))
                    member.acknowledge([one.receipt])
            self.assert_empty(member)

    def test_messages_of_a_key_come_in_their_order(self) -> None:
        if not self.ordered:
            pytest.skip("this broker does not keep the order of messages")
        with self.member() as member:
            ids = [self.send(key="customer 7")[0].id for _ in range(20)]
            came: dict[str, None] = {}
            until = time.monotonic() + self.seconds
            while len(came) < len(ids):
                assert time.monotonic() < until, f"{len(ids) - len(came)} never came"
                for one in self.fetch(member, 7, 0.5):
                    came[str(one.message.id)] = None
                    member.acknowledge([one.receipt])
            assert list(came) == ids
            self.assert_empty(member)

    def test_a_message_has_one_first_delivery(self) -> None:
        """Of two members that fetch at once, one gets it: it is taken in one step."""
        if not self.counts:
            pytest.skip("this broker does not count deliveries")
        with self.members(2) as members:
            for member in members:
                member.fetch(1, 0)  # connects
            missing = {message.id for message in self.send(60)}
            first: list[str] = []
            until = time.monotonic() + self.seconds

            def work(member: BlockingSource) -> None:
                while missing and time.monotonic() < until:
                    for one in self.fetch(member, 5, 0.1):
                        if one.message.deliveries == 1:
                            first.append(str(one.message.id))
                        missing.discard(str(one.message.id))
                        member.acknowledge([one.receipt])

            working = [threading.Thread(target=work, args=(member,)) for member in members]
            for thread in working:
                thread.start()
            for thread in working:
                thread.join()
            assert not missing, f"{len(missing)} never came"
            twice = [id_ for id_, times in Counter(first).items() if times > 1]
            assert not twice, f"two members got the first delivery of {len(twice)} messages"

    def test_the_members_of_a_group_have_one_scope(self) -> None:
        """It is part of each key: with another scope, a redelivery to another member would run again."""
        with self.members(2) as (one, other):
            scope = one.source.scope(self.topic())
            assert scope == other.source.scope(self.topic())
            assert scope, (
                "without a scope, two groups on one store take each other's messages for repeats"
            )
            assert all(isinstance(part, str) and part for part in scope)
