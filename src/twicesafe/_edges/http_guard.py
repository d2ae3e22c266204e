"""What the HTTP edges share: a receiver with an `HttpPolicy`, and the performer of the flow's commands.

A `HttpGuard` starts the flow of a request (`_core.http.flow`). Its policy decides whether an unknown outcome
holds the claim or lets a retry run. `perform` executes the flow's commands, for a blocking or an async
claim. Each edge reads requests and sends responses in its own way.

`admit_fast` and `settle_fast` run the usual request on an event loop by plain calls, without a
generator. They make the flow's decisions, in the same order and with the same functions. If the
receiver refuses the claim, or the store does not record the response, they continue in the flow.

Without an `HttpPolicy`, the settings that both policies have (`lease`, `max_lease`, `retention`,
`max_waiters`) come from the receiver's `Policy`. Its other settings do not apply to requests: a warning
names them and the HTTP setting to use instead. An unused codec is an error, because it may be the one that
encrypts the records. The receiver's `encryption` always applies, and so do its
`signatures` unless the `HttpPolicy` has its own.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import fields
from functools import partial
from typing import Any, Final

from .._core.driving import drive_async
from .._core.http.flow import (
    CompleteClaim,
    EnterClaim,
    Exchange,
    HoldClaim,
    IdentifiedRequest,
    LeaveClaim,
    Log,
    PassThrough,
    ReadBody,
    ReleaseClaim,
    Respond,
    RunHandler,
    admit,
    claimed,
    identify,
    not_claimed,
)
from .._core.http.message import HttpRequest, StoredResponse
from .._core.http.policy import HttpPolicy
from .._core.http.problems import RequestRefused
from .._core.http.rules import Admission, HttpRules
from .._core.http.stored_response import RESPONSE_CODEC
from .._values.policy import Policy
from ..errors import ConfigurationError, TwicesafeError
from ..receiver import AsyncReceiver, Receiver
from ..receiver._edge_claim import AsyncEdgeClaim, EdgeClaim

__all__ = ["HttpGuard", "admit_fast", "perform", "settle_fast"]

_log = logging.getLogger("twicesafe")

_SHARED: Final = ("lease", "max_lease", "retention", "max_waiters")
"""Settings that an edge without an `HttpPolicy` takes from the receiver's `Policy`."""
_HTTP_NAMES: Final = {
    **{field.name: field.name for field in fields(HttpPolicy)},
    "in_flight": "wait",
}
"""Settings of a `Policy` that an `HttpPolicy` has too, and their names there."""


def _tell_unused(given: Policy, policy: HttpPolicy) -> None:
    """Warn about settings of the receiver's policy that do not apply to requests."""
    if given.codec is not None and policy.codec is RESPONSE_CODEC:
        raise ConfigurationError(
            "the receiver's Policy has a codec, which is not used for responses: they would be "
            "stored without it; say HttpPolicy(codec=…), or give the middleware a receiver without one"
        )
    used, default = policy.receiver_policy(), Policy()
    used = used.replace(
        outage=policy.outage,
        encryption=given.encryption,
        signatures=given.signatures,
    )
    unused = [
        f"{name} (say HttpPolicy({_HTTP_NAMES[name]}=…))" if name in _HTTP_NAMES else name
        for name in (field.name for field in fields(Policy))
        if name != "codec"
        and getattr(given, name) not in (getattr(default, name), getattr(used, name))
    ]
    if unused:
        _log.warning(
            "settings of the receiver's Policy are not used for requests: %s", ", ".join(unused)
        )


class HttpGuard:
    """One receiver and one policy, for one edge in front of one application."""

    __slots__ = ("_claim_type", "_holding", "_retrying", "admit", "policy", "rules")

    def __init__(
        self,
        receiver: Receiver | AsyncReceiver,
        policy: HttpPolicy | None,
        *,
        is_test: bool = False,
    ) -> None:
        if policy is not None and not isinstance(policy, HttpPolicy):
            raise ConfigurationError(f"policy={policy!r} is not valid: use an HttpPolicy(…)")
        self.policy = policy or HttpPolicy(
            **{name: getattr(receiver.policy, name) for name in _SHARED}
        )
        if self.policy.signatures is None and receiver.policy.signatures is not None:
            self.policy = self.policy.replace(signatures=receiver.policy.signatures)
        _tell_unused(receiver.policy, self.policy)
        self.rules = HttpRules(self.policy, receiver.scope, receiver.store.hidden_keys)
        self.admit = partial(admit, self.rules, self.claim)
        """Starts the flow of a request: ``admit(request, read)``."""
        self._claim_type = EdgeClaim if isinstance(receiver, Receiver) else AsyncEdgeClaim
        self._holding, self._retrying = (
            receiver.options(
                policy=policy.replace(encryption=receiver.policy.encryption), fingerprint=False
            )
            for policy in (
                self.policy.receiver_policy(takeover="hold"),
                self.policy.receiver_policy(takeover="retry"),
            )
        )
        if not receiver.store.capabilities.shared and not is_test:
            _log.warning(
                "the store %s is not shared between processes: each process has its own keys",
                receiver.store.url,
            )

    def claim(self, admission: Admission) -> EdgeClaim | AsyncEdgeClaim:
        """The claim of an admitted request, before it is entered."""
        receiver = self._retrying if admission.may_retry else self._holding
        return self._claim_type(
            receiver, admission.key, admission.fingerprint, None, StoredResponse
        )


def perform(command: Any) -> Any:
    """Execute a command of the flow. With an async claim it may return a coroutine to await."""
    kind = type(command)
    if kind is ReadBody:
        return command.read()
    if kind is Log:
        return getattr(_log, command.level)("%s", command.text, exc_info=command.error)
    claim = command.claim
    if kind is EnterClaim:
        return claim.enter()
    if kind is CompleteClaim:
        return claim.complete(command.result)
    if kind is LeaveClaim:
        return claim.leave(command.error)
    if kind is ReleaseClaim:
        return claim.release()
    assert kind is HoldClaim
    return claim.hold(command.why)


# --- the usual request, on an event loop -------------------------------------------------------


async def admit_fast(
    guard: HttpGuard,
    request: HttpRequest,
    read: Callable[..., Awaitable[bytes | None]],
    *words: Any,
) -> PassThrough | Respond | RunHandler | None:
    """`drive_async(guard.admit(request, read), perform)`, in less time. `read` gets `words`."""
    rules = guard.rules
    try:
        looked = rules.look(request)
        if looked is None:
            return PassThrough()
        body = await read(*words)
        asks = identify(rules, guard.claim, request, looked, body)
    except RequestRefused as refused:
        return Respond(rules.refuse(request, refused.problem))
    if not isinstance(asks, IdentifiedRequest):
        return asks
    try:
        await asks.claim.enter()
    except TwicesafeError as error:
        return await drive_async(not_claimed(rules, asks, error), perform)
    return claimed(rules, asks)


async def settle_fast(exchange: Exchange) -> None:
    """`drive_async(exchange.settle(), perform)`, in less time."""
    command = exchange.ending()
    exchange.settled = True
    try:
        if type(command) is CompleteClaim:
            await command.claim.complete(command.result)
        else:
            await perform(command)
    except TwicesafeError as error:
        await drive_async(exchange.told(error), perform)
    else:
        if exchange.recording.redact_error is not None:
            await drive_async(exchange.told(None), perform)
