"""What every HTTP edge does about a key, blocking or async: ASGI, WSGI, Django.

A `Guard` joins a receiver with an `HttpPolicy`: the rules that read requests, the claim that an admitted
one makes (held on an unknown outcome, or run again where the policy allows it), and what is said when
the claim itself fails. How requests are read and responses recorded is each edge's own.

Policies are taken whole. Where no `HttpPolicy` is given, the receiver's `Policy` decides what both of them
know (`lease`, `max_lease`, `retention`, `max_waiters`). What of it does not count for requests is logged as
a warning when the edge is made, with the name of the HTTP setting; a codec that would be left out is an error,
because it may be what encrypts the records.
"""

from __future__ import annotations

import logging
from dataclasses import fields
from typing import Any, Final

from .. import events
from .._core.http.message import HttpRequest, StoredResponse
from .._core.http.policy import HttpPolicy
from .._core.http.rules import Admission, Rules
from .._core.http.stored import RESPONSE_CODEC
from .._values.policy import Policy
from ..errors import ConfigurationError, CorruptRecordError, StoreUnavailableError, TwicesafeError
from ..receiver import AsyncReceiver, Receiver

__all__ = ["Guard"]

_log = logging.getLogger("twicesafe")

_SHARED: Final = ("lease", "max_lease", "retention", "max_waiters")
_HTTP_NAMES: Final = {
    **{name: name for name in _SHARED},
    "in_flight": "wait",
    "wait": "wait",
    "takeover": "on_unknown",
    "outage": "fail_open",
    "max_result_bytes": "max_result",
}
"""Settings of a `Policy`, and where `HttpPolicy` says the same."""


def _tell_unused(given: Policy, policy: HttpPolicy) -> None:
    """Which settings of the receiver's policy do not count for requests?"""
    if given.codec is not None and policy.codec is RESPONSE_CODEC:
        raise ConfigurationError(
            "the receiver's Policy has a codec, which is not used for responses: they would be "
            "stored without it; say HttpPolicy(codec=…), or give the middleware a receiver without one"
        )
    used, default = policy.receiver_policy(rerun=policy.on_unknown == "rerun"), Policy()
    used = used.replace(outage="run" if policy.fail_open else "refuse")
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


class Guard:
    """One receiver, one policy, one edge in front of one application."""

    __slots__ = ("_holding", "_rerunning", "policy", "rules")

    def __init__(
        self,
        receiver: Receiver | AsyncReceiver,
        policy: HttpPolicy | None,
        *,
        is_test: bool = False,
    ) -> None:
        if policy is not None and not isinstance(policy, HttpPolicy):
            raise ConfigurationError(f"policy={policy!r} makes no sense: use an HttpPolicy(…)")
        self.policy = policy or HttpPolicy(
            **{name: getattr(receiver.policy, name) for name in _SHARED}
        )
        _tell_unused(receiver.policy, self.policy)
        self.rules = Rules(self.policy, receiver.scope)
        self._holding, self._rerunning = (
            receiver.options(policy=self.policy.receiver_policy(rerun=rerun), fingerprint=None)
            for rerun in (False, True)
        )
        if not receiver.store.capabilities.shared and not is_test:
            _log.warning(
                "the store %s is not shared between processes: each one has keys of its own",
                receiver.store.url,
            )

    def claim(self, admission: Admission) -> Any:
        """Blocking or async, as the receiver is; not entered yet."""
        return self._receiver(admission).claim(
            admission.key, fingerprint=admission.fingerprint, returns=StoredResponse
        )

    def refusal(
        self, request: HttpRequest, admission: Admission, error: TwicesafeError
    ) -> StoredResponse | None:
        """The answer to a claim that failed; None: run unprotected, as the policy wishes."""
        if isinstance(error, StoreUnavailableError) and self.policy.fail_open:
            self._receiver(admission)._notify(events.Unprotected(admission.key))
            return None
        if isinstance(error, CorruptRecordError):
            _log.error("%s", error)
        return self.rules.refuse_error(request, error)

    def _receiver(self, admission: Admission) -> Receiver | AsyncReceiver:
        return self._rerunning if admission.reruns else self._holding
