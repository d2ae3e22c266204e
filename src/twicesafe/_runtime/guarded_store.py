"""A guarded store: the circuit breaker of a receiver, around its store.

While the store works, the receiver uses it directly, so the breaker costs nothing. The first failed
delivery puts the guard in front of it, and the first answer removes it again.

    a claim          refused while the circuit is open, or sent to the fallback (never for a durable run,
                     whose steps are in the store)
    everything else  sent where its claim was made: what a handler did must be recorded

A claim that the fallback granted is renewed, completed and failed there, also after the store is back.
Meanwhile waiters poll: to be woken they would have to ask the store, which may not even have the key.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from .. import events as ev
from .._core.breaker import Circuit, CircuitState
from .._core.protocol import Abandon, ClaimRequest, Complete, Fail, Verdict
from .._forking import in_child
from .._values.breaker import Breaker
from .._values.clocks import WorkerClock
from .._values.settings import seconds
from ..errors import StoreUnavailableError

__all__ = ["AsyncGuardedStore", "GuardedStore", "StoreGuard"]

_LAST = frozenset({Complete, Fail, Abandon})
"""The requests that end a claim."""


class StoreGuard:
    """The circuit, shared by the guarded store, the lease keeper and the events of failed deliveries."""

    def __init__(
        self,
        settings: Breaker,
        notify: Callable[[ev.Event], None],
        clock: WorkerClock,
        swap: Callable[[bool], None],
    ) -> None:
        rest, longest = seconds(settings.rest), seconds(settings.longest_rest)
        self._circuit = Circuit(settings.failures, rest, longest)
        self._notify, self._clock, self._swap = notify, clock, swap
        self._lock = threading.Lock()
        self.is_in_front = False
        """The receiver asks the guarded store, because a delivery has failed."""
        self.lent: set[bytes] = set()
        """Owners whose claims are in the fallback."""
        in_child(self._renew_lock)

    @property
    def state(self) -> CircuitState:
        return self._circuit.state

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def delivery_failed(self) -> None:
        """From now on every request is counted."""
        if not self.is_in_front:
            self.failed()

    def may_claim(self) -> bool:
        with self._lock:
            return self._circuit.may_claim(self._clock())

    def is_resting(self) -> bool:
        return self._circuit.is_resting(self._clock())

    def failed(self) -> None:
        with self._lock:
            changed = self._circuit.failed(self._clock())
            if not self.is_in_front:
                self.is_in_front = True
                self._swap(True)
        if changed:
            self._tell()

    def answered(self) -> None:
        if not self.is_in_front:
            return
        with self._lock:
            changed = self._circuit.answered()
            if self.is_in_front:
                self.is_in_front = False
                self._swap(False)
        if changed:
            self._tell()

    def judge(self, answer: object) -> None:
        """Count an answer, or the exception in its place. Other errors are answers, too."""
        if isinstance(answer, StoreUnavailableError):
            self.failed()
        else:
            self.answered()

    def refusal(self, request: ClaimRequest) -> StoreUnavailableError:
        left = max(0.0, self._circuit.resting_until - self._clock())
        error = StoreUnavailableError(
            f"the store failed {self._circuit.failed_in_a_row} times in a row and is not asked for "
            f"another {left:.1f} s; the handler was not started; try again later",
            key=request.key,
        )
        error.asked = False
        return error

    def lend(self, requests: Sequence[ClaimRequest]) -> None:
        """These claims go to the fallback. Known before it answers: an interrupted claim is given back there."""
        self.lent.update(request.owner for request in requests)

    def fell_back(self, request: ClaimRequest, answer: Any) -> Any:
        """The fallback's answer, or the exception in its place."""
        if getattr(answer, "verdict", None) is Verdict.WON:
            self._notify(ev.FellBack(request.key))
        else:
            self.lent.discard(request.owner)
        return answer

    def is_lent(self, request: Any) -> bool:
        """True: its claim is in the fallback. A request that ends the claim takes it back."""
        owner = getattr(request, "owner", None)
        return owner in self.lent

    def ended(self, request: Any) -> None:
        if type(request) in _LAST:
            self.lent.discard(request.owner)

    def _tell(self) -> None:
        circuit = self._circuit
        self._notify(
            ev.BreakerChanged(circuit.state.value, circuit.failed_in_a_row, circuit.next_rest)
        )


class _Guarded:
    def __init__(self, store: Any, fallback: Any, guard: StoreGuard) -> None:
        self._store, self._fallback, self._guard = store, fallback, guard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @property
    def capabilities(self) -> Any:
        found = self._store.capabilities
        return replace(found, wake=False) if self._guard.is_in_front else found

    def _parts(self, requests: Sequence[Any]) -> tuple[list[int], list[int]]:
        """Where each request of a batch goes: the places for the store and for the fallback.

        A batch of claims goes to one of them as a whole. What goes to neither is refused.
        """
        everything = list(range(len(requests)))
        if requests and type(requests[0]) is ClaimRequest:
            if self._guard.may_claim():
                return everything, []
            if self._fallback is None:
                return [], []
            self._guard.lend(requests)
            return [], everything
        lent = [place for place in everything if self._guard.is_lent(requests[place])]
        return [place for place in everything if place not in lent], lent

    def _gathered(
        self,
        requests: Sequence[Any],
        mine: tuple[list[int], list[Any]],
        lent: tuple[list[int], list[Any]],
    ) -> list[Any]:
        answers: dict[int, Any] = dict(zip(*mine, strict=True))
        for answer in mine[1]:
            self._guard.judge(answer)
        for place, answer in zip(*lent, strict=True):
            answers[place] = self._settled(requests[place], answer)
        return [
            answers[place] if place in answers else self._guard.refusal(request)
            for place, request in enumerate(requests)
        ]

    def _settled(self, request: Any, answer: Any) -> Any:
        """What the fallback answered."""
        if type(request) is ClaimRequest:
            return self._guard.fell_back(request, answer)
        if not isinstance(answer, Exception):
            self._guard.ended(request)
        return answer


class GuardedStore(_Guarded):
    def _lent(self, request: ClaimRequest) -> Any:
        """A claim from the fallback."""
        self._guard.lend([request])
        try:
            answer = self._fallback.perform(request)
        except Exception as error:
            self._guard.fell_back(request, error)
            raise
        return self._guard.fell_back(request, answer)

    def perform(self, request: Any) -> Any:
        guard = self._guard
        if isinstance(request, ClaimRequest) and not guard.may_claim():
            if self._fallback is None or type(request) is not ClaimRequest:
                raise guard.refusal(request)
            return self._lent(request)
        if guard.is_lent(request):
            return self._settled(request, self._fallback.perform(request))
        try:
            answer = self._store.perform(request)
        except Exception as error:
            guard.judge(error)
            raise
        guard.answered()
        return answer

    def perform_many(self, requests: Sequence[Any]) -> list[Any]:
        here, there = self._parts(requests)
        # First the fallback: the store is the one that failed, and may fail slowly.
        lent = self._fallback.perform_many([requests[place] for place in there]) if there else []
        mine = self._store.perform_many([requests[place] for place in here]) if here else []
        return self._gathered(requests, (here, mine), (there, lent))


class AsyncGuardedStore(_Guarded):
    async def _lent(self, request: ClaimRequest) -> Any:
        self._guard.lend([request])
        try:
            answer = await self._fallback.perform(request)
        except Exception as error:
            self._guard.fell_back(request, error)
            raise
        return self._guard.fell_back(request, answer)

    async def perform(self, request: Any) -> Any:
        guard = self._guard
        if isinstance(request, ClaimRequest) and not guard.may_claim():
            if self._fallback is None or type(request) is not ClaimRequest:
                raise guard.refusal(request)
            return await self._lent(request)
        if guard.is_lent(request):
            return self._settled(request, await self._fallback.perform(request))
        try:
            answer = await self._store.perform(request)
        except Exception as error:
            guard.judge(error)
            raise
        guard.answered()
        return answer

    async def perform_many(self, requests: Sequence[Any]) -> list[Any]:
        here, there = self._parts(requests)
        lent = (  # first, as above
            await self._fallback.perform_many([requests[place] for place in there]) if there else []
        )
        mine = await self._store.perform_many([requests[place] for place in here]) if here else []
        return self._gathered(requests, (here, mine), (there, lent))

    def submit(self, request: Any) -> Any:
        """The answer stays what it is: a future that no cancellation stops."""
        lent = self._guard.is_lent(request)
        answer = (self._fallback if lent else self._store).submit(request)

        def ended(done: Any) -> None:
            if done.cancelled():
                return
            found = done.exception() or done.result()
            if lent:
                self._settled(request, found)
            else:
                self._guard.judge(found)

        answer.add_done_callback(ended)
        return answer
