"""HttpPolicy: the settings of the HTTP layer, checked when a policy is made, and ready profiles.

    HttpPolicy()                          the IETF draft (default)
    HttpPolicy.stripe(), .paypal()        what clients of these APIs expect
    HttpPolicy.webhook("github")          receive events by their ids
    HttpPolicy().replace(required=True)   a variant

An invalid setting raises `ConfigurationError`, which names it and how to fix it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, Self, TypeAlias

from ..._values.codecs import Codec
from ..._values.policy import Backoff, Policy
from ..._values.settings import Duration, expect, is_whole, seconds, suggesting
from ..._values.signed_key import SIGNATURE_HEADER, SignatureCheck
from ...errors import ConfigurationError
from .fingerprint import FingerprintHow
from .key_sources import WEBHOOKS, KeySource
from .message import HttpRequest, StoredResponse
from .routes import Routes
from .stored_response import COOKIES, OF_ONE_PASSAGE, RESPONSE_CODEC

__all__ = ["DEFAULT_SCOPE", "NOT_EXECUTED", "HttpPolicy", "Scope"]

NOT_EXECUTED: Final = frozenset({401, 403, 407, 408, 409, 421, 423, 425, 426, 428, 429, 503})
"""Statuses that mean that the handler did nothing: the key is released."""

Scope: TypeAlias = tuple[str, ...] | Callable[[HttpRequest], str | Iterable[str]]

_AUTHORIZATION: Final = "Authorization"
DEFAULT_SCOPE: Final = (_AUTHORIZATION,)
"""Compared by identity, to tell the default from an equal setting. A literal could be shared."""

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"})
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]++")
_HEADERS_ROOM: Final = 65536
"""Room for the header fields of a stored response."""


HTTP_DURATIONS: Final = ("wait", "linger", "lease", "max_lease", "retention")


@suggesting("HTTP setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPolicy:
    """Settings of the HTTP layer. Immutable; `replace` makes variants."""

    header: str | None = "Idempotency-Key"
    """The header field of the key. None: no field; only `key_from` is used."""
    aliases: tuple[str, ...] = ()
    """Other names of the field. A request with several of them must have the same key in each."""
    strict: bool = False
    """Accept only the quoted form of the draft."""
    max_key: int = 255
    """Maximum length of a key, in characters."""
    check_key: Callable[[str], str | None] | None = None
    """Checks a key: returns None if it is valid, otherwise the expected format, for the client."""
    signatures: SignatureCheck | None = None
    """A check such as `KeyVerifier`: every key must be signed by a trusted party. None: as in the
    receiver's policy."""
    signature_header: str = SIGNATURE_HEADER
    """The header field of the signature."""
    key_from: tuple[KeySource, ...] = ()
    """Other places for the key if its header is absent: query, JSON member, body hash."""
    methods: frozenset[str] = frozenset({"POST", "PATCH"})
    """Methods that are protected. Others pass through unchanged."""
    required: bool | tuple[str, ...] = False
    """Refuse requests without a key: True for all, or a tuple of routes."""
    include: tuple[str, ...] = ()
    """Protect only these routes. Empty: all."""
    exclude: tuple[str, ...] = ()
    """Do not protect these routes."""
    scope: Scope = DEFAULT_SCOPE
    """Who a key belongs to: header names (or ``"cookie:NAME"``), or a callable of the request."""
    scope_secret: bytes = b""
    """Secret for the hash of `scope`, so that a reader of the store cannot test guesses."""
    per_operation: bool = False
    """The same key on another method or path is a new key, not a mismatch."""
    fingerprint: FingerprintHow = "canonical"
    """How a repeat is compared: "canonical" (also True), "octets", a callable, or False: not at all."""
    fingerprint_headers: tuple[str, ...] = ()
    """Header fields that are compared too."""
    max_body: int = 1_048_576
    """Maximum size of a request body with a key, in bytes. Larger ones get 413. With a `key_from` that reads
    the body, this applies to requests without a key header, too: `exclude` the routes of large uploads."""
    max_result_bytes: int = 1_048_576
    """Maximum size of a stored response body, in bytes. Larger ones are delivered but not kept."""
    mismatch_status: int = 422
    """Status for a known key with a different request."""
    in_flight_status: int = 409
    """Status for a repeat while the first request is running."""
    not_kept_status: int = 410
    """Status for a repeat whose response was not kept."""
    unknown_status: int = 500
    """Status if the outcome is unknown. The proxy uses 502."""
    wait: Duration = 0
    """How long a repeat waits for the first request before it gets `in_flight_status`."""
    release: frozenset[int] = NOT_EXECUTED
    """Statuses that mean "not executed": the key is released and a retry runs."""
    takeover: Literal["retry", "hold"] = "hold"
    """After a crash or an exception: let a retry run, or hold the key for an operator."""
    retry: tuple[str, ...] = ()
    """Routes where `takeover` is "retry": transactional or naturally idempotent ones."""
    replay_header: str | None = "Idempotent-Replayed"
    """The header field that marks a replay. None: no field."""
    replay_cookies: bool = False
    """Keep and replay Set-Cookie."""
    keep_headers: tuple[str, ...] = ()
    """Additional response fields to store and replay."""
    drop_headers: tuple[str, ...] = ()
    """Standard response fields that are not stored."""
    forward_key: bool = True
    """Pass the header of the key to the handler."""
    redact: Callable[[StoredResponse], StoredResponse] | None = None
    """Changes a response before it is stored, to remove secrets."""
    on_replay: Callable[[HttpRequest, StoredResponse], StoredResponse] | None = None
    """Changes a replay, for APIs that return the current state."""
    problem_base: str = "urn:twicesafe:problem:"
    """Prefix of the `type` of problem documents, such as the address of your documentation."""
    documentation: str = (
        "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/"
    )
    """Link of problem documents (`describedby`). Empty: no link."""
    outage: Literal["refuse", "run"] = "refuse"
    """Store unreachable: refuse with 503 (fail closed), or run unprotected (counted and logged)."""
    linger: Duration = 60
    """How long a streaming response is still recorded after its client has disconnected. After that the
    key is done, and a repeat gets `not_kept_status`."""
    lease: Duration = 30
    """How long a claim lasts after its process has died."""
    max_lease: Duration = 3600
    """Maximum duration of a request."""
    retention: Duration = 86400
    """How long a response is kept after it has ended."""
    max_waiters: int = 100
    """With `wait`: how many requests per process may wait for one key."""
    codec: Codec = RESPONSE_CODEC
    """Encodes stored responses. The `encryption` of the receiver's policy encrypts what it makes."""

    def __post_init__(self) -> None:
        for name in HTTP_DURATIONS:
            object.__setattr__(self, name, seconds(getattr(self, name), name))
        for name in ("methods", "release"):
            object.__setattr__(self, name, frozenset(_several(self, name)))
        for name in ("aliases", "key_from", "include", "exclude", "retry", "keep_headers",
                     "drop_headers", "fingerprint_headers"):  # fmt: skip
            object.__setattr__(self, name, tuple(_several(self, name)))
        _check(self)

    @property
    def key_fields(self) -> tuple[str, ...]:
        """All names of the key field; empty without a field."""
        return () if self.header is None else (self.header, *self.aliases)

    @property
    def sent_as(self) -> str:
        """The field in which a client sends the key."""
        if self.header is None:
            raise ConfigurationError(
                "header=None: this policy only receives keys; use one with a header to send them"
            )
        return self.header

    # -- profiles -----------------------------------------------------------------------------

    @classmethod
    def draft(cls, **changes: Any) -> Self:
        """draft-ietf-httpapi-idempotency-key-header; keys without quotes are accepted too."""
        return cls().replace(**changes)

    @classmethod
    def stripe(cls, **changes: Any) -> Self:
        """POST only; a known key with a different request gets 400; 503 is kept like any 5xx."""
        settings: dict[str, Any] = {
            "methods": {"POST"},
            "mismatch_status": 400,
            "release": NOT_EXECUTED - {503},
        }
        return cls().replace(**{**settings, **changes})

    @classmethod
    def paypal(cls, **changes: Any) -> Self:
        """`PayPal-Request-Id` on POST. PayPal's APIs differ: 108 characters is the limit of its orders
        (kept for 6 hours there), 45 days is how long its payments are kept."""
        settings: dict[str, Any] = {
            "header": "PayPal-Request-Id",
            "methods": {"POST"},
            "max_key": 108,
            "retention": 45 * 86400,
        }
        return cls().replace(**{**settings, **changes})

    @classmethod
    def webhook(cls, sender: str, **changes: Any) -> Self:
        """Deduplicates webhook events by id ("stripe", "github", "shopify").

        Only 2xx responses are kept, so a request with a bad signature cannot use up the id of an
        event. The body is not compared, because senders change it between deliveries. An
        `Idempotency-Key` field is ignored: the id of the event is the key. Responses are kept for 30
        days. Stripe retries for three days, and its events can be resent by hand for 30."""
        source = WEBHOOKS.get(sender)
        if source is None:
            raise ConfigurationError(
                f"there is no webhook profile {sender!r}; known: {', '.join(WEBHOOKS)}; for others "
                "say key_from=(…,)"
            )
        settings: dict[str, Any] = {
            "header": None,
            "key_from": (source,),
            "required": True,
            "methods": {"POST"},
            "fingerprint": lambda _: b"",
            "release": range(300, 600),
            "retention": 30 * 86400,
        }
        return cls().replace(**{**settings, **changes})

    def replace(self, **changes: Any) -> Self:
        """This policy with some settings changed."""
        return replace(self, **changes)

    def receiver_policy(self, *, takeover: Literal["retry", "hold"] | None = None) -> Policy:
        """These settings as a `Policy`. `takeover` replaces this policy's, as for a route of `retry`."""
        wait = seconds(self.wait)
        return Policy(
            lease=self.lease,
            max_lease=self.max_lease,
            retention=self.retention,
            in_flight="wait" if wait else "reject",
            wait=wait,
            max_waiters=self.max_waiters,
            takeover=takeover or self.takeover,
            max_attempts=1_000_000,  # clients decide how often they retry: no key is parked
            backoff=Backoff(first=0, jitter=0),
            max_result_bytes=self.max_result_bytes + _HEADERS_ROOM,
            codec=self.codec,
            signatures=self.signatures,
        )


def _several(policy: HttpPolicy, name: str) -> Iterable[Any]:
    value = getattr(policy, name)
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise ConfigurationError(f"{name}={value!r} is not valid: use a tuple, ({value!r},)")
    return value


def _is_token(value: object) -> bool:
    return isinstance(value, str) and _TOKEN.fullmatch(value) is not None


def _check(policy: HttpPolicy) -> None:
    names = [("aliases", name) for name in policy.aliases]
    names += [("keep_headers", name) for name in policy.keep_headers]
    names += [("drop_headers", name) for name in policy.drop_headers]
    if policy.header is not None:
        names.append(("header", policy.header))
    else:
        _check_without_field(policy)
    names.append(("signature_header", policy.signature_header))
    names += [("fingerprint_headers", name) for name in policy.fingerprint_headers]
    if policy.replay_header is not None:
        names.append(("replay_header", policy.replay_header))
    for name, value in names:
        expect(_is_token(value), name, value, "use the name of an HTTP field")
    for value in policy.keep_headers:
        named = value.lower().encode()
        once = named not in OF_ONE_PASSAGE
        expect(once, "keep_headers", value, "it belongs to one transfer and is never kept")
        expect(named not in COOKIES, "keep_headers", value, "say replay_cookies=True")
    for method in policy.methods:
        known = _is_token(method) and method == method.upper()
        expect(known, "methods", method, "use methods in upper case, like 'POST'")
        expect(method not in _SAFE, "methods", method, "safe methods need no key: leave it out")
    expect(policy.methods, "methods", set(), "name at least one")
    if not isinstance(policy.required, bool):
        Routes(_several(policy, "required"), "required")
        object.__setattr__(policy, "required", tuple(policy.required))
    for name in ("include", "exclude", "retry"):
        Routes(getattr(policy, name), name)
    _check_numbers(policy)
    _check_hooks(policy)
    policy.receiver_policy()  # lease, max_lease, retention, codec: checked there


def _check_without_field(policy: HttpPolicy) -> None:
    expect(policy.key_from, "header", None, "name another place for the key in key_from=")
    for name, default in (("aliases", ()), ("strict", False), ("forward_key", True)):
        value = getattr(policy, name)
        expect(value == default, name, value, "it has no effect without header=: leave it out")


def _check_numbers(policy: HttpPolicy) -> None:
    for name, least, most in (
        ("max_key", 1, 255),
        ("max_body", 0, 1 << 32),
        ("max_result_bytes", 0, 1 << 32),
        ("mismatch_status", 400, 599),
        ("not_kept_status", 400, 599),
        ("in_flight_status", 400, 599),
        ("unknown_status", 500, 599),
    ):
        value = getattr(policy, name)
        remedy = f"use a whole number from {least} to {most}"
        expect(is_whole(value, least, most), name, value, remedy)
    for status in policy.release:
        expect(is_whole(status, 300, 599), "release", status, "use statuses from 300 to 599")
    for name in ("wait", "linger"):
        value = getattr(policy, name)
        expect(seconds(value) >= 0, name, value, "use 0 or more seconds")


def _check_hooks(policy: HttpPolicy) -> None:
    for name in ("check_key", "redact", "on_replay"):
        value = getattr(policy, name)
        expect(value is None or callable(value), name, value, "use None or a callable")
    for source in policy.key_from:
        expect(callable(source), "key_from", source, "use sources like QueryParameter('id')")
    how: object = policy.fingerprint
    named = how is None or isinstance(how, bool) or how in ("canonical", "octets") or callable(how)
    remedy = "use 'canonical' (or True), 'octets', False (no check) or a callable"
    expect(named, "fingerprint", how, remedy)
    scope: object = policy.scope
    if not callable(scope):
        fine = isinstance(scope, tuple) and scope and all(isinstance(n, str) and n for n in scope)
        expect(fine, "scope", scope, "use a tuple of header names, or a callable of the request")
    expect(isinstance(policy.scope_secret, bytes), "scope_secret", "…", "use bytes")
    for name, first, second in (("takeover", "retry", "hold"), ("outage", "refuse", "run")):
        value = getattr(policy, name)
        expect(value in (first, second), name, value, f"use {first!r} or {second!r}")
    for name in ("problem_base", "documentation"):
        value = getattr(policy, name)
        clean = isinstance(value, str) and re.fullmatch(r"[\x21\x23-\x3b\x3d\x3f-\x7e]*+", value)
        expect(clean, name, value, "use a URI")
    for name in ("strict", "per_operation", "replay_cookies", "forward_key"):
        value = getattr(policy, name)
        expect(isinstance(value, bool), name, value, "use True or False")
