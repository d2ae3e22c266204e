"""One running request: turns what Django reports into the end of the key, for WSGI and ASGI."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

from django.core.signals import got_request_exception

from ..._core.http.flow import Exchange, ExchangeEnded, HttpFlow, ResponseCut
from ._messages import lines_of

__all__ = ["DjangoExchange"]

_LEFT = (GeneratorExit, asyncio.CancelledError)
"""How a stream ends after its client has disconnected."""


class DjangoExchange:
    def __init__(self, exchange: Exchange, request: Any) -> None:
        self._exchange = exchange
        self.claim, self.recording = exchange.claim, exchange.recording
        self.failure: BaseException | None = None
        self.stream: Any = None
        """Under ASGI, the streaming body."""
        self.has_lingered: Callable[[], bool] = lambda: False
        """True: the stream continued after the disconnect for longer than `linger`."""
        self._passed = self._streams = False
        request._twicesafe = self  # the signal handler gets only the request

    @property
    def settled(self) -> bool:
        return self._exchange.settled

    @property
    def is_not_kept(self) -> bool:
        return self._exchange.is_not_kept(lingered=self.has_lingered())

    def noticed(self, error: BaseException | None) -> None:
        """The view or its stream failed."""
        self.failure = (
            self.failure or error or ResponseCut("an exception that Django did not pass on")
        )

    def begin(self, response: Any) -> bool:
        """The view has returned a response. True: its body is a stream and comes later."""
        if self.failure is not None:
            return False
        self.recording.start(response.status_code, lines_of(response))
        if response.streaming:
            response.file_to_stream = None  # the server would send the file unrecorded
            self._streams = True
            return True
        self.recording.feed(response.content)
        self._passed = True
        return False

    def feed(self, part: bytes) -> bool:
        """Record a part of a stream. True: it is the last part, and the key must be settled now."""
        self._passed = self.recording.feed(part) or self._passed
        return self._passed and not self.settled

    def left(self) -> None:
        """The view has ended, after its client had disconnected."""
        if self.stream is not None:
            self.stream.close()

    def passed(self) -> None:
        """The stream is complete."""
        self._passed = True

    def ending(self) -> HttpFlow[ExchangeEnded]:
        """The view and its response have ended, complete or not."""
        exchange, failure = self._exchange, self.failure
        if exchange.settled:
            return ExchangeEnded()
        if failure is None and self._passed:
            yield from exchange.settle()
        elif failure is None or (self._streams and isinstance(failure, _LEFT)):
            yield from exchange.client_left(lingered=self.has_lingered())
        else:
            return (yield from exchange.ended(failure))
        return ExchangeEnded()


def _noticed(sender: object, request: Any = None, **_: Any) -> None:
    exchange = getattr(request, "_twicesafe", None)
    if exchange is not None:
        exchange.noticed(sys.exc_info()[1])


got_request_exception.connect(_noticed, dispatch_uid="twicesafe")
