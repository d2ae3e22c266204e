"""A web hook: one signed POST per message, with its id as ``Idempotency-Key``.

    https://example.com/hook?secret_env=HOOK_SECRET

The receiver answers 2xx when it has kept the message. 429, 503 and silence mean that it is away:
nothing is counted. Any other answer is this message's failure.

With a secret each delivery is signed (`signature`), and `verify_signature` checks it. The secret is read from
the environment variable that ``secret_env=`` names, so that no URL and no process list has it; while it is
replaced, ``secret_env=NEW,OLD`` signs with both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self
from urllib.parse import quote

from ..core.outbox import Message
from ..core.publishing import Answer
from ..errors import BrokerUnavailableError, ConfigurationError
from .callable_ import CallablePublisher
from .signature import Secrets, as_secrets, sign, verify_signature
from .urls import driver_url

__all__ = ["WebhookPublisher", "verify_signature"]

OPTIONS: Final = {"secret_env": "", "timeout": 10.0, "concurrency": 16}

AWAY: Final = frozenset({408, 425, 429, 502, 503, 504})


class WebhookPublisher(CallablePublisher):
    """Blocking, by httpx. One message per call, many calls at once; a key has one under way."""

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
        self._clock = clock

    @classmethod
    def open(cls, url: str) -> Self:
        theirs, options = driver_url(url, OPTIONS)
        secrets = []
        for name in filter(None, options.pop("secret_env").split(",")):
            secrets.append(os.environ.get(name, ""))
            if not secrets[-1]:
                raise ConfigurationError(
                    f"secret_env={name}: there is no such environment variable, or it is empty"
                )
        return cls(theirs, secret=secrets or None, **options)

    def _post(self, message: Message) -> None:
        import httpx

        if self._client is None:
            self._client = httpx.Client(timeout=self._timeout)
        try:
            answer = self._client.post(
                self._url, content=message.body, headers=self._headers(message)
            )
        except httpx.HTTPError as error:
            raise BrokerUnavailableError(
                f"the web hook cannot be reached: {type(error).__name__}"
            ) from error
        if answer.status_code in AWAY:
            raise BrokerUnavailableError(f"the web hook is away: it answers {answer.status_code}")
        if not answer.is_success:
            raise RuntimeError(f"the web hook answers {answer.status_code}")

    def _headers(self, message: Message) -> dict[str, str]:
        headers = {name.lower(): _ascii(value) for name, value in message.headers.items()}
        headers.setdefault("idempotency-key", message.id)
        headers["twicesafe-id"] = message.id
        headers["twicesafe-topic"] = _ascii(message.topic)
        if message.key is not None:
            headers["twicesafe-key"] = _ascii(message.key)
        if self._secrets:
            at, key = int(self._clock()), headers["idempotency-key"]
            headers["twicesafe-signature"] = sign(self._secrets, at, key, message.body)
        return headers

    def publish(self, messages: Sequence[Message]) -> list[Answer]:
        return super().publish(messages)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def _ascii(text: str) -> str:
    """Header lines are ASCII: what is not goes as %XX."""
    return text if text.isascii() else quote(text, safe=" !#$&'()*+,/:;=?@[]<>{}|^`\"")
