"""What the adapters of agent frameworks share: a receiver with rules, and the performer of the flow.

A `ToolGuard` makes the `ToolCall` of a call and runs its flow (`_core.tool_calls.flow`), blocking or
async. Each adapter says how its framework names a principal and a run, what of a result is kept, and how
an `ToolAnswer` reaches the model.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Generic, TypeVar

import msgspec

from .._core.driving import drive, drive_async
from .._core.tool_calls.answers import META, ToolAnswer, answer_to
from .._core.tool_calls.flow import (
    APPROVAL,
    BY,
    REFUSED,
    Approval,
    Ask,
    AskAgain,
    LookUp,
    Now,
    Open,
    Ran,
    ReleaseHeld,
    ResolveHeld,
    RunTool,
    ToolFlow,
    Withdraw,
    call_tool,
)
from .._core.tool_calls.identity import (
    check_names,
    key_of_call,
    normalised,
    print_of_call,
)
from .._core.tool_calls.rule import ToolCall, ToolRule, check_rules
from .._core.tool_calls.statements import Statement
from .._values.clocks import wall_clock
from .._values.keys import Key
from .._values.signed_key import SignedKey, require_signature
from ..errors import ConfigurationError, TwicesafeError, UntrustedKeyError
from ..receiver import AsyncReceiver, Receiver
from ..receiver._edge_claim import AsyncEdgeClaim, EdgeClaim
from ..receiver._steps import AsyncSteps, Steps
from .http_guard import perform as perform_on_claim

__all__ = ["Invocation", "ToolGuard", "Unstorable"]

_log = logging.getLogger("twicesafe")

R = TypeVar("R", Receiver, AsyncReceiver)

MOST_SCOPE: Final = 4
"""Parts of a receiver's scope: a call adds up to four, and a key has eight."""


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a tool, as a framework has it."""

    tool: str
    arguments: Mapping[str, Any]
    schema: Mapping[str, Any]
    """The JSON schema of the tool's arguments."""
    key: str | None = None
    """The caller's own key; a `SignedKey` if it came with a signature."""
    principal: str | None = None
    run: str | None = None


class Unstorable:
    """In place of a result that has no plain form: the call is recorded as done, without a result."""


class ToolGuard(Generic[R]):
    """One receiver and the rules of some tools.

    ``keep`` turns a framework's result into what is recorded of it. ``is_final``: False if the result
    says that nothing was done. ``states_not_done``: True if an error of the framework says so.
    ``wrappers``: the packages of the framework, if they wrap what a tool raises.
    """

    def __init__(
        self,
        receiver: R,
        rules: Mapping[str, ToolRule],
        *,
        keep: Callable[[Any], Any],
        is_final: Callable[[Any], bool] = lambda _: True,
        states_not_done: Statement = lambda _: False,
        wrappers: tuple[str, ...] = (),
    ) -> None:
        self.rules = check_rules(rules)
        self.is_blocking = isinstance(receiver, Receiver)
        if len(receiver.scope) > MOST_SCOPE:
            raise ConfigurationError(
                f"the receiver's scope has {len(receiver.scope)} parts; for tools use at most "
                f"{MOST_SCOPE}, because tool, principal and run are added"
            )
        for name, rule in self.rules.items():
            if self.is_blocking and inspect.iscoroutinefunction(rule.probe):
                raise ConfigurationError(
                    f"the probe of {name!r} is async, and the receiver is blocking; use a plain "
                    "function, or an AsyncReceiver"
                )
        self._receivers: dict[str, Any] = {
            name: receiver.options(policy=rule.policy(receiver.policy), fingerprint=False)
            for name, rule in self.rules.items()
        }
        self._approvals = {
            name: _approvals(self._receivers[name], name)
            for name, rule in self.rules.items()
            if rule.approval
        }
        self._keep, self._is_final, self._states = keep, is_final, states_not_done
        self._wrappers = wrappers
        self._claim_type = EdgeClaim if self.is_blocking else AsyncEdgeClaim
        self._checked: set[str] = set()
        self._missed: set[str] = set()
        """Rules without a tool, of which a warning has told."""

    def look_for_tools(self, names: Iterable[str]) -> None:
        """Warn of each rule without a tool, once: if its name is misspelt, the tool is not protected."""
        listed = list(names)
        for name in self.rules:
            if name not in listed and name not in self._missed:
                self._missed.add(name)
                there = ", ".join(listed) or "none"
                _log.warning(
                    "a rule protects nothing: no tool is named %r; there are %s", name, there
                )

    def guards(self, tool: str) -> bool:
        return tool in self.rules

    def check(self, tool: str, schema: Mapping[str, Any]) -> None:
        """Refuse a rule that does not fit the tool; once per tool."""
        if tool not in self._checked:
            check_names(tool, self.rules[tool], schema)
            self._checked.add(tool)

    def call(self, run: Callable[[], Any], given: Invocation) -> ToolAnswer:
        """Call the tool, or answer in its place. Raises what the tool raised, if nothing was done."""
        exchange = self._exchange(run, given)
        if isinstance(exchange, ToolAnswer):
            return exchange
        try:
            return drive(exchange.flow(), exchange.perform)
        finally:
            for claim in exchange.claims:
                claim.leave(CallInterrupted())

    async def call_async(self, run: Callable[[], Awaitable[Any]], given: Invocation) -> ToolAnswer:
        """Async version of `call`."""
        exchange = self._exchange(run, given)
        if isinstance(exchange, ToolAnswer):
            return exchange
        try:
            return await drive_async(exchange.flow(), exchange.perform)
        finally:
            for claim in exchange.claims:
                await claim.leave(CallInterrupted())

    def _exchange(self, run: Callable[[], Any], given: Invocation) -> _Exchange | ToolAnswer:
        """What performs the flow of this call; or the answer, if it has no usable key."""
        tool, rule = given.tool, self.rules[given.tool]
        self.check(tool, given.schema)
        try:
            arguments = normalised(given.arguments, given.schema)
        except RecursionError:
            return ToolAnswer(
                state="not_done", tool=tool, reason="its arguments are nested too deeply"
            )
        except TwicesafeError as error:
            return answer_to(error, tool)
        who: dict[str, Any] = {"principal": given.principal, "run": given.run}
        try:
            self._require_signature(given)
            found = key_of_call(tool, rule, arguments, given=given.key, **who)
            key = self._receivers[tool].key(found)
        except ConfigurationError:
            raise
        except TwicesafeError as error:
            return answer_to(error, tool)
        return _Exchange(self, ToolCall(tool=tool, arguments=arguments, key=key, **who), run)

    def _require_signature(self, given: Invocation) -> None:
        """As for any sender's key. A key that we make from the identity needs no signature."""
        check = self._receivers[given.tool].policy.signatures
        if check is None or given.key is None:
            return
        if not isinstance(given.key, SignedKey):
            raise UntrustedKeyError(
                f"the key of the call has no signature, and this receiver requires signed keys; send it in _meta "
                f"as {META}key-signature"
            )
        require_signature(check, given.key)


def _approvals(receiver: Any, tool: str) -> Any:
    """The approvals of one tool: durable runs, each of which waits for one signal. Only calls run them."""
    durable = receiver.durable(
        key=lambda key, asked, whole: key,
        name=f"approval of {tool}",
        scope=(),
        fingerprint=lambda key, asked, whole: whole,
        policy=receiver.policy.replace(takeover="retry", outage="refuse"),
        complete=False,
    )

    def approve(steps: Steps, key: Key, asked: str, whole: bytes) -> Any:
        steps.capture(asked, bool)
        said = steps.wait(APPROVAL)
        if said is not True:
            steps.capture(REFUSED, bool)
        return said

    async def approve_async(steps: AsyncSteps, key: Key, asked: str, whole: bytes) -> Any:
        await steps.capture(asked, bool)
        said = await steps.wait(APPROVAL)
        if said is not True:
            await steps.capture(REFUSED, bool)
        return said

    return durable(approve if isinstance(receiver, Receiver) else approve_async)


class CallInterrupted(BaseException):
    """The call was cancelled or interrupted: if its claim is still open, the outcome is unknown."""


class _Exchange:
    """One call: performs the commands of its flow."""

    def __init__(self, guard: ToolGuard[Any], call: ToolCall, run: Callable[[], Any]) -> None:
        self._guard, self._call, self._tool = guard, call, run
        self._rule = guard.rules[call.tool]
        self._receiver = guard._receivers[call.tool]
        self.claims: list[Any] = []

    def flow(self) -> ToolFlow[ToolAnswer]:
        remember, guard = self._receiver.policy.remember, self._guard
        return call_tool(self._rule, self._call, guard._states, remember, guard._wrappers)

    def perform(self, command: Any) -> Any:
        kind = type(command)
        if kind is Open:
            return self._open()
        if kind is Approval:
            approve = self._guard._approvals[self._call.tool]
            whole = print_of_call(self._rule, self._call.arguments, whole=True)
            return approve(command.key, command.asked, whole)
        if kind is AskAgain:
            why = "the approval has expired"
            return self._receiver.restart(
                command.key, by=BY, why=why, force=True, fence=command.fence
            )
        if kind is RunTool:
            return self._run() if self._guard.is_blocking else self._run_async()
        if kind is Withdraw:
            return command.claim.withdraw()
        if kind is Now:
            return datetime.fromtimestamp(wall_clock() / 1000, UTC)
        if kind is LookUp:
            return self._receiver.record(command.key)
        if kind is Ask:
            return self._ask(command.call)
        if kind is ResolveHeld:
            return self._receiver.resolve(
                command.key, command.value, by=command.by, fence=command.fence
            )
        if kind is ReleaseHeld:
            return self._receiver.release(
                command.key,
                by=command.by,
                why=command.why,
                fence=command.fence,
            )
        return perform_on_claim(command)

    def _open(self) -> Any:
        call = self._call
        claim = self._guard._claim_type(
            self._receiver,
            call.key,
            print_of_call(self._rule, call.arguments),
            lambda: tuple(call.arguments),
            Any,
        )
        self.claims.append(claim)
        return claim

    def _run(self) -> Ran:
        return self._ran(self._tool())

    async def _run_async(self) -> Ran:
        return self._ran(await self._tool())

    def _ran(self, result: Any) -> Ran:
        """From here on the effect has happened, so nothing may raise."""
        if not self._guard._is_final(result):
            return Ran(result, None, is_final=False)
        try:
            return Ran(result, self._guard._keep(result))
        except Exception:
            return Ran(result, Unstorable())

    def _ask(self, call: ToolCall) -> Any:
        probe = self._rule.probe
        assert probe is not None
        if self._guard.is_blocking or inspect.iscoroutinefunction(probe):
            return probe(call)
        return _coroutine(functools.partial(asyncio.to_thread, probe, call))


async def _coroutine(ask: Callable[[], Awaitable[Any]]) -> Any:
    """A probe may also be a plain function that returns an awaitable."""
    found = await ask()
    return await found if inspect.isawaitable(found) else found
