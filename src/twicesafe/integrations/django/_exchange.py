"""One keyed request: what its view answered, and how its key ends. The same in both colours."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from typing import Any

from django.core.signals import got_request_exception

from ..._core.http.message import HttpRequest
from ..._core.http.problems import Problem
from ..._core.http.recording import Ending
from ..._core.http.rules import Admission, Rules
from ..._core.http.stored import NOT_KEPT
from ._messages import lines_of, response_of

__all__ = ["Exchange"]

_log = logging.getLogger("twicesafe")
_LEFT = (GeneratorExit, asyncio.CancelledError)
"""How a stream ends whose client went away."""


class Exchange:
    def __init__(
        self, rules: Rules, admission: Admission, asked: HttpRequest, request: Any, claim: Any
    ) -> None:
        self._rules, self._reruns, self._asked = rules, admission.reruns, asked
        self.claim = claim
        self.recording = rules.recording()
        self.trouble: BaseException | None = None
        self.settled = False
        self.stream: Any = None
        """Under ASGI, a body that comes in parts."""
        self._passed = False
        request._twicesafe = self  # for the signal, which knows the request only

    def noticed(self, error: BaseException | None) -> None:
        """The view failed, or its response did."""
        self.trouble = self.trouble or error or _Cut("an exception that nobody has seen")

    def begin(self, response: Any) -> bool:
        """The view has answered. True: the body is a stream, which will pass by later."""
        if self.trouble is not None:
            return False
        self.recording.start(response.status_code, lines_of(response))
        if response.streaming:
            response.file_to_stream = None  # a server would send the file itself, unrecorded
            return True
        self.recording.feed(response.content)
        self._passed = True
        return False

    def feed(self, part: bytes) -> bool:
        """A part of a stream passes. True: it is the last one, and the key is to be settled."""
        self._passed = self.recording.feed(part) or self._passed
        return self._passed and not self.settled

    def left(self) -> None:
        """The view has ended, and its client was gone before."""
        if self.stream is not None:
            self.stream.close()

    def passed(self) -> None:
        """The stream has ended by itself."""
        self._passed = True

    def settle(self) -> Callable[[], Any] | None:
        """What the store is to be told; to be called, or awaited, once."""
        self.settled = True
        ending = self._ending()
        if ending is None:
            return lambda: self.claim.complete(NOT_KEPT)
        if ending is Ending.KEEP:
            result = self.recording.result()
            if self.recording.trouble is not None:
                _log.error("redact failed, so nothing was kept", exc_info=self.recording.trouble)
            return lambda: self.claim.complete(result)
        if ending is Ending.RELEASE:
            return self.claim.release  # type: ignore[no-any-return]
        if self._reruns:
            self.noticed(_Cut("the response ended before its announced length"))
            return None  # the claim is left with its failure: see `failure`
        why = "response cut" if self.trouble is None else type(self.trouble).__qualname__
        return lambda: self.claim.hold(why)

    def _ending(self) -> Ending | None:
        """None: done, and more than can be kept."""
        left = self.trouble is None or isinstance(self.trouble, _LEFT)
        if self.recording.overflowed and left and not self._passed:
            return None
        if self.trouble is not None or not self._passed:
            return Ending.UNKNOWN
        return self.recording.end()

    @property
    def failure(self) -> BaseException | None:
        """What the claim is left with: on a `rerun` route an exception lets the next one run."""
        return self.trouble if self._reruns else None

    def answer(self, response: Any) -> Any:
        """The response itself, unless nobody knows what was done."""
        if self.trouble is None or self._reruns:
            return response
        return response_of(self._rules.refuse(self._asked, Problem("outcome-unknown")))


class _Cut(Exception):  # noqa: N818 - the name that is kept as the failure's
    """A response that did not end."""


def _noticed(sender: object, request: Any = None, **_: Any) -> None:
    exchange = getattr(request, "_twicesafe", None)
    if exchange is not None:
        exchange.noticed(sys.exc_info()[1])


got_request_exception.connect(_noticed, dispatch_uid="twicesafe")
