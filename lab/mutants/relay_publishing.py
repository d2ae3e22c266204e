"""Mutants of the relay's publishing flow: which rows it publishes when, and what their answers cause."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import Any

from msgspec.structs import replace

from twicesafe._core.outbox import relay_publish
from twicesafe._core.outbox.publisher import NOT_TRIED
from twicesafe._core.outbox.relay_lease import Listen, Publish
from twicesafe._core.outbox.relay_publish import _PublishLoop
from twicesafe._core.outbox.requests import Settle
from twicesafe.errors import StoreError, StoreUnavailableError

from .registry import Patch, mutant, tampered
from .relay_slots import STUDY


@mutant("rows that were fetched before a slot was lost are published when it is won back", STUDY)
def rows_of_an_earlier_holding(patch: Patch) -> None:
    patch(relay_publish, "_is_ours", lambda row, usable: row.slot in usable)


@mutant("a lane's next rows are sent before the first ones are answered", STUDY)
def two_groups_of_a_lane(patch: Patch) -> None:
    take_off = _PublishLoop._start_publishing

    def eager(self: Any) -> Any:
        yield from take_off(self)
        flying = {row.n for rows in self.under_way.values() for row in rows}
        for lane, rows in self.lanes.items():
            waiting = [row for row in rows if row.n not in flying]
            if waiting and lane not in self.ready and len(self.under_way) < self.state.concurrency:
                self.tickets += 1
                self.under_way[self.tickets] = waiting[:1]
                self.rows_under_way += 1
                yield Publish(self.tickets, [waiting[0].message])

    patch(_PublishLoop, "_start_publishing", eager)


@mutant(
    "one publish call has several messages of a lane, although its publisher does not keep their order",
    STUDY,
    aside=("one group of a lane",),  # the order itself must tell
)
def several_of_a_lane(patch: Patch) -> None:
    group = _PublishLoop._group

    def all_of_it(self: Any, *how: Any) -> Any:
        self.state.keeps_order = True
        return group(self, *how)

    patch(_PublishLoop, "_group", all_of_it)


@mutant("rows are fetched after the highest number seen: rows that commit late are skipped", STUDY)
def remembers_the_last_number(patch: Patch) -> None:
    sort_in = _PublishLoop._sort_in

    def behind(self: Any, rows: Any, slots: Any) -> None:
        met = self.__dict__.setdefault("met", set())
        new = [row for row in rows if row.n in met or row.n > max(met, default=0)]
        met.update(row.n for row in new)
        sort_in(self, new, slots)

    patch(_PublishLoop, "_sort_in", behind)


@mutant("a refused message is skipped, and its lane goes on without it", STUDY)
def refused_is_passed_over(patch: Patch) -> None:
    refused = _PublishLoop._refused

    def passed(self: Any, row: Any, *how: Any, **settings: Any) -> None:
        rest = deque(list(self.lanes.get(row.lane, ()))[1:])
        refused(self, row, *how, **settings)
        if rest:
            self.lanes[row.lane] = rest

    patch(_PublishLoop, "_refused", passed)


@mutant("a row is settled before it is published, so a crash in between loses it", STUDY)
def settled_before_published(patch: Patch) -> None:
    def handle(flow: Any, command: Any) -> Any:
        if isinstance(command, Publish):
            rows = flow.under_way[command.ticket]
            with contextlib.suppress(StoreUnavailableError):
                yield Settle(flow.state.owner, [row.n for row in rows], {}, [], {})
        return (yield command)

    patch(_PublishLoop, "_start_publishing", tampered(_PublishLoop._start_publishing, handle))


@mutant("the answers for a group of messages are assigned to the wrong ones", STUDY)
def answers_out_of_place(patch: Patch) -> None:
    land = _PublishLoop._handle_answers

    def turned(self: Any, ended: Any) -> None:
        land(
            self,
            [
                (one, a[::-1] if isinstance(a, list) and NOT_TRIED not in a else a)
                for one, a in ended
            ],
        )

    patch(_PublishLoop, "_handle_answers", turned)


@mutant("an unreachable broker counts as a refusal of each message", STUDY)
def outages_count(patch: Patch) -> None:
    failed = _PublishLoop._broker_failed

    def blamed(self: Any, rows: Any, error: Exception) -> None:
        for row in {row.lane: row for row in reversed(rows)}.values():
            self._refused(row, error)
        failed(self, rows, error)

    patch(_PublishLoop, "_broker_failed", blamed)


@mutant(
    "while a message that looks like an outage is retried, no others are fetched to compare it with",
    STUDY,
)
def suspects_block_the_fetch(patch: Patch) -> None:
    patch(_PublishLoop, "_has_enough", lambda self: True)


@mutant("refusals are not counted, so a poison message is retried for ever", STUDY)
def poison_never_parks(patch: Patch) -> None:
    refused = _PublishLoop._refused

    def forgetful(self: Any, row: Any, *how: Any, **settings: Any) -> None:
        self.state.max_attempts = 1_000
        refused(self, row, *how, **settings)

    patch(_PublishLoop, "_refused", forgetful)


@mutant("a failed settlement is dropped, so its rows are fetched and published again", STUDY)
def failed_settlement_is_forgotten(patch: Patch) -> None:
    outage = _PublishLoop._outage

    def forgetful(self: Any, what: str, error: StoreError) -> None:
        if what == "outbox_settle":
            self.todo = Settle(self.state.owner, [], {}, [], {})
        outage(self, what, error)

    patch(_PublishLoop, "_outage", forgetful)


@mutant("a relay goes on publishing while settlements fail: more than a batch is unsettled", STUDY)
def more_than_a_batch(patch: Patch) -> None:
    patch(_PublishLoop, "_room", lambda self: self.state.batch)


@mutant("a stopping relay does not settle what it has published", STUDY)
def stop_settles_nothing(patch: Patch) -> None:
    settle = _PublishLoop._settle

    def unless_stopping(self: Any, repeats: bool = False) -> Any:
        if not self.state.stopping:
            yield from settle(self, repeats)

    patch(_PublishLoop, "_settle", unless_stopping)


@mutant("a stopping relay does not wait for its running publish calls", STUDY)
def stop_drops_calls(patch: Patch) -> None:
    publish_pending = relay_publish.publish_pending

    def hasty(state: Any) -> Any:
        flow = publish_pending(state)
        reply: Any = None
        trouble: Exception | None = None
        while not state.stopping:
            try:
                command = flow.send(reply) if trouble is None else flow.throw(trouble)
            except StopIteration:
                return
            try:
                reply, trouble = (yield command), None
            except Exception as error:
                reply, trouble = None, error
        state.publishing_ended = True

    patch(relay_publish, "publish_pending", hasty)


@mutant("a sleeping relay relies on wake-ups alone: when one is lost, it sleeps on", STUDY)
def trusts_its_wakeups(patch: Patch) -> None:
    def handle(state: Any, command: Any) -> Any:
        return (yield replace(command, seconds=1e6) if type(command) is Listen else command)

    patch(relay_publish, "publish_pending", tampered(relay_publish.publish_pending, handle))
