"""Sends calls to the members of a cluster: one at a time, the next one after an outage.

A program yields a `EtcdCall` and receives the reply. `Router.route` turns it into a program that
yields an `MemberAttempt` (one call of one member) or a `EtcdPause`, so the blocking and the async
store share it. Any member can answer every request: it forwards what its leader must decide. So a
call stays with its member until that one fails, hangs or has no leader.

A call that may be repeated is repeated within the time-out. All writes compare the revision of
their record, and a worker's request that was already carried out is answered as it was. An
operator's action is repeated only if it was surely not carried out.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

import msgspec

from ...errors import StoreUnavailableError
from ...stores._base import Program
from .error_messages import explain, may_have_acted, wants_login
from .messages import message
from .settings import Settings

__all__ = ["NEEDS", "EtcdCall", "EtcdPause", "Grant", "MemberAttempt", "Router"]

T = TypeVar("T")

NEEDS: Final = (("hasleader", "true"),)
"""The metadata of a call without a token."""
PAUSE: Final = 0.05
LOGINS: Final = 2
"""New logins in one call. A second one is for users that changed meanwhile."""


class EtcdCall(msgspec.Struct):
    name: str
    request: Any
    once: bool = False
    """Do not repeat it if it may have been carried out."""
    member: int | None = None
    """Ask this member and no other."""


class Grant(msgspec.Struct):
    """Ask for a new lease; requests that need one at the same time share it."""

    ms: int
    seconds: int


class MemberAttempt(msgspec.Struct):
    member: int
    call: EtcdCall
    seconds: float
    metadata: tuple[tuple[str, str], ...]


class EtcdPause(msgspec.Struct):
    seconds: float


class Router:
    """Which member to ask, and with which token. Shared by all threads and event loops of a store."""

    def __init__(self, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self.member = 0
        """The index of the member that is asked first."""
        self._clock = clock
        self._token = ""
        self._cluster = 0
        """The cluster that answered first."""
        self.tap: Callable[[str, EtcdCall], None] | None = None
        """Tests only: called before and after every call."""

    def route(self, program: Program[T]) -> Program[T]:
        """The same program, with attempts in place of its calls. A `Grant` is for the store to perform."""
        try:
            call = program.send(None)
            while True:
                try:
                    tap = self.tap if type(call) is EtcdCall else None
                    if tap is not None:
                        tap("before", call)
                    reply = yield from (
                        self.send(call) if type(call) is EtcdCall else _passed(call)
                    )
                    if tap is not None:
                        tap("after", call)
                except Exception as error:
                    call = program.throw(error)
                else:
                    call = program.send(reply)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    def send(self, call: EtcdCall) -> Program[Any]:
        settings, clock = self.settings, self._clock
        until = clock() + settings.timeout
        failures = logins = 0
        seconds = settings.share
        while True:
            member = self.member if call.member is None else call.member
            try:
                if settings.user and not self._token:
                    self._token = yield from self._login(member, until)
                    seconds = max(0.001, min(seconds, until - clock()))
                reply = yield MemberAttempt(member, call, seconds, self.metadata())
                return self._of_our_cluster(member, reply)
            except StoreUnavailableError:
                raise
            except Exception as error:
                if wants_login(error) and logins < LOGINS:
                    self._token, logins = "", logins + 1
                    continue
                ours = explain(error, settings.url)
                if type(ours) is not StoreUnavailableError:
                    raise ours from error
                failures += 1
                self.leave(member)
                if call.member is not None or (call.once and may_have_acted(error)):
                    raise ours from error
                if clock() >= until:
                    raise ours from error
            if failures >= len(settings.members):
                yield EtcdPause(min(PAUSE * failures, 0.25, max(0.0, until - clock())))
            seconds = max(0.001, min(settings.share, until - clock()))

    def _of_our_cluster(self, member: int, reply: Any) -> Any:
        """One process asks one cluster: in another one its claims would be unknown, and its keys new."""
        cluster = reply.header.cluster_id
        if cluster and cluster != self._cluster:  # etcd 3.4 lists its alarms without one
            if self._cluster:
                address = self.settings.members[member]
                ids = f"{cluster:x}, not {self._cluster:x}"
                raise ConnectionError(f"{address} belongs to another cluster: {ids}")
            self._cluster = cluster
        return reply

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """A member without a leader answers at once, instead of letting us wait for one."""
        return (*NEEDS, ("token", self._token)) if self._token else NEEDS

    def leave(self, member: int) -> None:
        """Ask another member from now on, unless another thread decided so already."""
        if self.member == member:
            self.member = (member + 1) % len(self.settings.members)

    def _login(self, member: int, until: float) -> Program[str]:
        request = message("AuthenticateRequest")(
            name=self.settings.user, password=self.settings.password
        )
        seconds = max(0.001, min(self.settings.share, until - self._clock()))
        reply = yield MemberAttempt(member, EtcdCall("Authenticate", request), seconds, ())
        token: str = reply.token
        return token


def _passed(command: Any) -> Program[Any]:
    return (yield command)
