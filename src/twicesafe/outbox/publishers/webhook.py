"""Webhooks: one signed POST per message, with its id as ``Idempotency-Key``.

    https://example.com/hook?secret_env=HOOK_SECRET

The receiver answers 2xx once it has stored the message. 425, 429, 503 and no connection mean that the
receiver is unavailable: no attempt is counted. A timeout, a broken connection, 408, 502 and 504 mean
the same, unless they repeat for one message while others are accepted. Any other status is a failure
of this message.

With a secret each delivery is signed, and `verify_signature` checks it. The secret is read from the
environment variable named by ``secret_env=``, so that it appears in no URL and no process list.
During rotation, ``secret_env=NEW,OLD`` signs with both.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

from ..._core.outbox.publisher import Answer
from ..._core.outbox.requests import Message
from ..._forking import RenewedLock
from ..._values.drivers import require
from ...errors import BrokerUnavailableError, ConfigurationError
from ._function import CallablePublisher
from ._header_lines import line_of
from ._signature import Secrets, as_secrets, sign, verify_signature
from ._urls import driver_url

__all__ = ["WebhookPublisher", "verify_signature"]

OPTIONS: Final = {"secret_env": "", "timeout": 10.0, "concurrency": 16}

BUSY: Final = frozenset({425, 429, 503})
"""The receiver itself says that it accepts nothing now."""
AWAY: Final = frozenset({408, 502, 504})
"""A server behind it did not answer, either to this message or to any."""

SKIPPED: Final = 65_536
"""Bytes of an answer's body that are read."""

FRAMING: Final = frozenset(
    {"connection", "content-length", "expect", "host", "keep-alive", "te", "trailer",
     "transfer-encoding", "upgrade"}
)  # fmt: skip
"""Header fields that control the connection: a message must not set them."""


class WebhookPublisher(CallablePublisher):
    """Blocking, with httpx or httpx2. One message per call, many calls at once, one at a time per key."""

    def __init__(
        self,
        url: str,
        *,
        secret: Secrets | None = None,
        timeout: float = 10.0,
        concurrency: int = 16,
        client: Any = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(self._post, batch=1, concurrency=concurrency)
        self._url = url
        self._secrets = () if secret is None else as_secrets(secret)
        self._timeout = timeout
        self._client = client
        self._making = RenewedLock()
        self._clock = clock

    @classmethod
    def open(cls, url: str) -> Self:
        _library(None)
        theirs, options = driver_url(url, OPTIONS)
        secrets = []
        for name in filter(None, options.pop("secret_env").split(",")):
            secrets.append(os.environ.get(name, ""))
            if not secrets[-1]:
                raise ConfigurationError(
                    f"secret_env={name}: this environment variable is not set or empty; set it"
                )
        return cls(theirs, secret=secrets or None, **options)

    def _post(self, message: Message) -> None:
        with self._making.now:  # many threads call this: make only one client
            library = _library(self._client)
            if self._client is None:
                self._client = library.Client(timeout=self._timeout)
        headers = self._headers(message)
        try:
            with self._client.stream(
                "POST", self._url, content=message.body, headers=headers
            ) as answer:
                self._skip_body(answer, library)
        except library.LocalProtocolError:
            raise  # httpx refused this message
        except (library.ConnectError, library.ConnectTimeout, library.PoolTimeout) as error:
            raise BrokerUnavailableError(
                f"the webhook cannot be reached: {type(error).__name__}", blames="none"
            ) from error
        except library.HTTPError as error:
            raise BrokerUnavailableError(
                f"the webhook did not answer: {type(error).__name__}"
            ) from error
        unavailable = f"the webhook is unavailable: it answered {answer.status_code}"
        if answer.status_code in BUSY:
            raise BrokerUnavailableError(unavailable, blames="none")
        if answer.status_code in AWAY:
            raise BrokerUnavailableError(unavailable)
        if not answer.is_success:
            raise RuntimeError(f"the webhook answered {answer.status_code}")

    def _skip_body(self, answer: Any, library: Any) -> None:
        """The status is the answer. A short body is read, so that the connection can be used again;
        a long one, or one that does not come, ends the connection.
        """
        size, until = 0, time.monotonic() + self._timeout
        with contextlib.suppress(library.HTTPError):
            for chunk in answer.iter_raw():
                size += len(chunk)
                if size > SKIPPED or time.monotonic() > until:
                    return

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {name.lower(): line_of(value) for name, value in message.headers.items()}
        framing = FRAMING & headers.keys()
        if framing:
            raise ValueError(f"a webhook must not send the header {min(framing)}")
        headers.setdefault("idempotency-key", message.id)
        headers["twicesafe-id"] = message.id
        headers["twicesafe-topic"] = line_of(message.topic)
        if message.key is not None:
            headers["twicesafe-key"] = line_of(message.key)
        if self._secrets:
            at, key = int(self._clock()), headers["idempotency-key"]
            headers["twicesafe-signature"] = sign(self._secrets, at, key, message.body)
        return headers

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        return super().publish(messages)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _library(client: object) -> Any:
    """httpx or httpx2: the one that the client is from; without a client, the first that is installed."""
    for name in ("httpx", "httpx2"):
        with contextlib.suppress(ImportError):
            library = importlib.import_module(name)
            if client is None or isinstance(client, library.Client):
                return library
    require("httpx")
    return importlib.import_module("httpx")
