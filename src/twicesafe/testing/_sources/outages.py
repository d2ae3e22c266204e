"""The rules for outages: cut connections, lost replies, and a broker that restarts lose no message."""

from __future__ import annotations

import time

import pytest

from ...errors import BrokerUnavailableError
from .bench import SourceBench

__all__ = ["OutageRules"]


class OutageRules(SourceBench):
    def _needs_breaks(self) -> None:
        if not self.breaks:
            pytest.skip("connections to this broker cannot be interrupted here")

    def test_an_outage_is_an_outage_and_ends(self) -> None:
        self._needs_breaks()
        with self.member() as member:
            (sent,) = self.send()
            (got,) = self.gather(member, sent.id).values()
            with self.outage():
                with pytest.raises(BrokerUnavailableError):
                    member.fetch(10, self.seconds)
                with pytest.raises(BrokerUnavailableError):
                    member.check(self.consumer_settings())
            (later,) = self.send()
            found = self.gather(member, later.id)
            member.acknowledge([one.receipt for one in found.values()])
            self.settle(member, [got], [sent.id])

    def test_a_broken_connection_is_replaced(self) -> None:
        self._needs_breaks()
        with self.member() as member:
            ids = []
            for _ in range(4):
                (sent,) = self.send()
                ids.append(sent.id)
                (got,) = [
                    one for id_, one in self.gather(member, sent.id).items() if id_ == sent.id
                ]
                self.hang_up()
                try:
                    member.acknowledge([got.receipt])
                except BrokerUnavailableError:
                    member.acknowledge([got.receipt])
            self.settle(member, [], ids)

    @pytest.mark.parametrize("after", [0, 1, 30, 200, 900])
    def test_a_lost_reply_loses_no_message(self, after: int) -> None:
        """The broker has handed them out, and we have not seen them."""
        self._needs_breaks()
        with self.member() as member:
            member.fetch(1, 0)
            ids = [message.id for message in self.send(4)]
            self.fault_in_reply(after)
            got = self.gather(member, *ids)
            self.settle(member, list(got.values()), ids)

    def test_nothing_is_lost_when_connections_break_all_the_time(self) -> None:
        self._needs_breaks()
        done: set[str] = set()
        with self.members(2) as members:
            ids = {message.id for message in self.send(120)}
            until, cuts = time.monotonic() + self.seconds, 0
            while not done >= ids:
                assert time.monotonic() < until, f"{len(ids - done)} never came"
                for member in members:
                    got = self.fetch(member, 7, 0.2)
                    done |= {one.message.id for one in got if one.message.id is not None}
                    if len(done) // 15 > cuts:
                        cuts += 1
                        self.hang_up()
                    try:
                        member.acknowledge([one.receipt for one in got])
                    except BrokerUnavailableError:
                        continue  # they come again
            assert done == ids
            assert cuts >= 3
            self.settle(members[0], [], list(ids))

    def test_a_restart_of_the_broker_loses_nothing(self) -> None:
        if not self.restarts:
            pytest.skip("this broker cannot be restarted here")
        restart = self.own_broker()
        with self.members(2) as members:
            ids = [message.id for message in self.send(6)]
            got = self.gather(members[0], *ids[:2])
            members[0].acknowledge([got[id_].receipt for id_ in ids[:2]])
            restart()
            rest = self.gather_by(members, *(set(ids) - got.keys()))
            for one, by in rest.values():
                by.acknowledge([one.receipt])
            self.settle(members[0], [], ids)
