"""What every HTTP edge does about a key, whatever its protocol and colour: ASGI, WSGI, Django.

A `Guard` joins a receiver with an `HttpPolicy`: the rules that read requests, the claim that an admitted
one makes (held on an unknown outcome, or run again where the policy allows it), and what is said when
the claim itself fails. How requests are read and responses recorded is each edge's own.
"""

from __future__ import annotations

import logging
from typing import Any

from . import events
from .core.http.message import HttpRequest, StoredResponse
from .core.http.policy import HttpPolicy
from .core.http.rules import Admission, Rules
from .errors import ConfigurationError, CorruptRecordError, StoreUnavailableError, TwicesafeError
from .receiver import AsyncReceiver, Receiver

__all__ = ["Guard"]

_log = logging.getLogger("twicesafe")


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
        self.policy = policy or HttpPolicy()
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
        """Of the receiver's colour, and not entered yet."""
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
