"""The login of ``twicesafe dashboard``: a token from a file or a variable, then a session of this browser.

A dashboard that is mounted in your application has your own login instead: `resolve_access`.
Sessions are kept in memory and end with the process, after `LASTS` seconds, or with a log-out.
Guessing is slowed down per address and in all; tokens are compared in constant time.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import threading
from collections import OrderedDict
from typing import Final

from .._values.clocks import WorkerClock, since_boot
from ..errors import ConfigurationError
from ._access import FORBIDDEN, Access
from ._security import new_token

__all__ = ["SESSION_COOKIE", "Login", "Throttle", "check_token"]

SESSION_COOKIE: Final = "twicesafe_session"
SHORTEST: Final = 16
"""Characters of a token, at least."""
LASTS: Final = 12 * 3600.0
"""Seconds of a session."""
MOST: Final = 1000
"""Sessions at once; the oldest end first."""


class Login:
    """Tokens, each with the access that it gives, and the sessions that came of them."""

    def __init__(self, tokens: dict[str, Access], clock: WorkerClock = since_boot) -> None:
        if not tokens:
            raise ConfigurationError("a login needs a token")
        for token in tokens:
            check_token(token)
        self._accesses = [(_digest(token), access) for token, access in tokens.items()]
        self._clock = clock
        self._sessions: OrderedDict[bytes, tuple[float, Access]] = OrderedDict()
        self._lock = threading.Lock()
        self.throttle = Throttle(clock)

    def enter(self, token: str, address: str) -> str | None:
        """A new session's cookie, or None: the token is wrong. Ask `throttle.wait` first."""
        given, found = _digest(token), None
        for digest, access in self._accesses:  # all of them, so that the time says nothing
            if hmac.compare_digest(digest, given):
                found = access
        if found is None:
            self.throttle.failed(address)
            return None
        cookie = new_token()
        with self._lock:
            self._sessions[_digest(cookie)] = (self._clock() + LASTS, found)
            while len(self._sessions) > MOST:
                self._sessions.popitem(last=False)
        return cookie

    def access(self, cookie: str | None) -> Access:
        """What the owner of this cookie may do."""
        if not cookie:
            return FORBIDDEN
        name = _digest(cookie)  # looked up by its hash, so the time tells nothing about the cookie
        with self._lock:
            until, access = self._sessions.get(name, (0.0, FORBIDDEN))
            if until <= self._clock():
                self._sessions.pop(name, None)
                return FORBIDDEN
        return access

    def leave(self, cookie: str | None) -> None:
        with self._lock:
            self._sessions.pop(_digest(cookie or ""), None)


def check_token(token: str) -> None:
    if len(token) < SHORTEST:
        raise ConfigurationError(
            f"the token of the dashboard has {len(token)} characters: use at least {SHORTEST}, like "
            "the output of `openssl rand -base64 32`"
        )


class Throttle:
    """Wrong tokens cost time: five are free, then each doubles the wait, up to five minutes.

    It counts per address (per /64 network of IPv6), and in all: `IN_ALL` wrong ones in a minute stop every
    login until the minute is over. Sessions that exist are not affected.
    """

    FREE: Final = 5
    LONGEST: Final = 300.0
    IN_ALL: Final = 60
    ADDRESSES: Final = 4096

    def __init__(self, clock: WorkerClock = since_boot) -> None:
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """Per address: how many, and until when it has to wait."""
        self._minute, self._in_minute = 0.0, 0
        self._lock = threading.Lock()

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0: now."""
        now = self._clock()
        with self._lock:
            _, until = self._failures.get(_network(address), (0, 0.0))
            if now - self._minute < 60 and self._in_minute >= self.IN_ALL:
                until = max(until, self._minute + 60)
        return max(0.0, until - now)

    def failed(self, address: str) -> None:
        now, network = self._clock(), _network(address)
        with self._lock:
            if now - self._minute >= 60:
                self._minute, self._in_minute = now, 0
            self._in_minute += 1
            count, until = self._failures.pop(network, (0, 0.0))
            if now - until > 2 * self.LONGEST and count:
                count = 0  # it was quiet for long
            count += 1
            more = min(
                count - self.FREE, 9
            )  # 512 s: beyond the longest pause, far below an overflow
            pause = 0.0 if more < 0 else min(self.LONGEST, 2.0**more)
            self._failures[network] = count, now + pause
            while len(self._failures) > self.ADDRESSES:
                self._failures.popitem(last=False)


def _network(address: str) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return "unknown"
    if isinstance(found, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
