"""The rules of one policy, compiled. A request passes them in this order:

    concerns(method, fields)  False: the layer ignores it; costs only a look at the field names
    look(request)             None: the layer ignores it; otherwise read the body, then `admit`
    admit(request, looked)    the key and the fingerprint; None: the layer ignores it
    kept_names                the fields of a response that `ResponseRecording` keeps
    replay(request, stored)   the response to a repeat
    refuse(request, problem)  the response to a refused request

`look` and `admit` raise `RequestRefused`. `look` refuses everything that can be refused without the body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from hashlib import sha256 as _sha256
from itertools import islice

import msgspec

from ..._values.context import scope_of_context
from ..._values.hidden_keys import HiddenKeys
from ..._values.keys import MAX_KEY_BYTES, MAX_SCOPE_PARTS, Key, as_key
from ..._values.signed_key import SignatureCheck
from ...errors import ConfigurationError, TwicesafeError, UntrustedKeyError
from .fingerprint import http_fingerprint
from .key_field import BadKey, credentials, parse_key, require_key
from .key_sources import place_of, reads_body
from .message import Fields, HttpRequest, StoredResponse
from .policy import HttpPolicy
from .problems import Problem, RequestRefused, problem_of, problem_response
from .routes import Routes
from .stored_response import OF_ONE_PASSAGE, kept_names, replay_fields

__all__ = ["Admission", "HttpRules", "Looked"]

_NO_SCOPE = (bytes, bytearray, AbstractSet, Mapping)
"""Types that are not text, or have no order that is the same in every process."""


class Looked(msgspec.Struct, frozen=True):
    """What `look` found in a request without its body."""

    key: str | None
    """None: the key may be in the body."""
    length: int = 0
    """The announced length of the body; 0 if it is unknown."""


class Admission(msgspec.Struct, frozen=True):
    """A request that is protected: its key, and the fingerprint that its repeats must have."""

    key: Key
    fingerprint: bytes | None
    may_retry: bool
    """A retry may run after an unknown outcome."""


class HttpRules:
    """An `HttpPolicy`, ready to be applied to requests."""

    def __init__(
        self,
        policy: HttpPolicy,
        scope: tuple[str, ...] = (),
        hidden_keys: HiddenKeys | None = None,
    ) -> None:
        self.policy = policy
        self.methods = policy.methods
        self.max_body = policy.max_body
        self.names = frozenset(name.lower().encode() for name in policy.key_fields)
        """The names of the key field, in lower case."""
        self.hidden = frozenset() if policy.forward_key else self.names
        """Fields that the handler does not get."""
        self._place = policy.header or " or ".join(map(place_of, policy.key_from))
        self._outer_scope, self._hidden_keys = scope, hidden_keys
        self._scope_room = MAX_SCOPE_PARTS - len(scope) - 1 - policy.per_operation
        """The most parts that the scope of the policy may have."""
        if self._scope_room < 1:
            raise ConfigurationError(
                f"the receiver's scope has {len(scope)} parts, which leaves none for the caller: a scope "
                f"has at most {MAX_SCOPE_PARTS} parts"
            )
        self._include = Routes(policy.include, "include")
        self._exclude = Routes(policy.exclude, "exclude")
        self._ignores_some = bool(self._include or self._exclude)
        self._retry = Routes(policy.retry, "retry")
        self._retries_all, self._retries_some = policy.takeover == "retry", bool(self._retry)
        required = policy.required
        self._required = Routes(() if isinstance(required, bool) else required, "required")
        self.by_name = not (policy.key_from or required)
        """Only requests with a key field concern the layer."""
        self._reads_body = any(reads_body(source) for source in policy.key_from)
        marker = policy.replay_header
        dropped = policy.drop_headers if marker is None else (*policy.drop_headers, marker)
        self.kept_names = kept_names(
            cookies=policy.replay_cookies, more=policy.keep_headers, without=dropped
        )
        self._marker = None if marker is None else marker.lower().encode()
        self._exposed = () if marker is None else (marker.encode(), b"Retry-After", b"Link")
        self.statuses = {
            "key-reused": policy.mismatch_status,
            "in-progress": policy.in_flight_status,
            "result-not-kept": policy.not_kept_status,
            "outcome-unknown": policy.unknown_status,
        }
        """Statuses of problem cases that the policy sets."""

    def requires_key(self, method: str, path: str) -> bool | None:
        """For documentation: is a key required here? None: the layer ignores this route."""
        if method not in self.methods or self._is_ignored(method, path):
            return None
        return self.policy.required is True or self._required.match(method, path)

    def _is_ignored(self, method: str, path: str, mount: str = "") -> bool:
        if self._exclude.match(method, path, mount):
            return True
        return bool(self._include) and not self._include.match(method, path, mount)

    def _matches(self, routes: Routes, request: HttpRequest) -> bool:
        return routes.match(request.method, request.path, request.mount)

    # -- before the body ----------------------------------------------------------------------

    def concerns(self, method: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Can this request have a key? The names of `headers` are in lower case.

        HTTP methods are case-sensitive, but most frameworks treat `post` as POST.
        """
        if method.upper() not in self.methods:
            return False
        if not self.by_name:
            return True
        names = self.names
        for name, _ in headers:  # noqa: SIM110 - a generator would cost more than the look
            if name in names:
                return True
        return False

    def look(self, request: HttpRequest) -> Looked | None:
        """Check a request without its body. None: the layer ignores it."""
        if self._ignores_some and self._is_ignored(request.method, request.path, request.mount):
            return None
        names, lines, length = self.names, [], 0
        for line in request.headers:
            if line[0] in names:
                lines.append(line)
            elif line[0] == b"content-length" and line[1].isdigit():
                length = int(line[1][:19])
        found = None
        if lines or not self._reads_body:
            found = self._key(request, lines)
            if found is None:
                self._require_key(request)
                return None
        if length > self.max_body:
            raise self.too_large()
        return Looked(found, length)

    def require_size(self, size: int) -> None:
        """Raise `RequestRefused` if a body of this size is too large."""
        if size > self.max_body:
            raise self.too_large()

    def too_large(self) -> RequestRefused:
        limit = f"The limit is {self.max_body} bytes."
        return RequestRefused(Problem("request-too-large", detail=limit))

    # -- with the body ------------------------------------------------------------------------

    def admit(self, request: HttpRequest, looked: Looked) -> Admission | None:
        """The key and the fingerprint. Refuses a body that is shorter than announced.

        Not every server reports that an upload was cut: Granian ends one over HTTP/2 as if it were whole.
        With a content coding, a layer outside may have decoded the body.
        """
        if len(request.body) < looked.length and not request.has(b"content-encoding"):
            raise RequestRefused(Problem("request-incomplete"))
        found = self._key(request, []) if looked.key is None else looked.key
        if found is None:
            self._require_key(request)
            return None
        policy, hidden = self.policy, self._hidden_keys
        scope = (*scope_of_context(), *self._outer_scope, *self.scope(request))
        full = as_key(found, scope)
        return Admission(
            full if hidden is None else hidden.key(full),
            http_fingerprint(request, policy.fingerprint, policy.fingerprint_headers),
            self._retries_all or (self._retries_some and self._matches(self._retry, request)),
        )

    def scope(self, request: HttpRequest) -> tuple[str, ...]:
        """Who the key belongs to. Credentials are hashed; requests without any share one scope."""
        how = self.policy.scope
        if callable(how):
            parts = self._named(how(request))
        else:
            parts = (credentials(request, how, self.policy.scope_secret),)
        if self.policy.per_operation:
            place = _sha256(request.target).hexdigest()
            parts = (*parts, f"{request.method[:32]} {place}")
        return ("http", *parts)

    def _named(self, named: object) -> tuple[str, ...]:
        """Check what a scope function returned."""
        if isinstance(named, str):
            named = (named,)
        elif not isinstance(named, Iterable) or isinstance(named, _NO_SCOPE):
            raise self._bad_scope(f"returned {_kind(named)}")
        parts = tuple(islice(named, self._scope_room + 1))
        if not 1 <= len(parts) <= self._scope_room:
            raise self._bad_scope(f"returned {'no text' if not parts else 'too many texts'}")
        for part in parts:
            if not isinstance(part, str):
                raise self._bad_scope(f"returned {_kind(part)} as a part")
            try:
                size = len(part.encode())
            except UnicodeEncodeError:
                raise self._bad_scope("returned text with a lone surrogate") from None
            if not 1 <= size <= MAX_KEY_BYTES:
                raise self._bad_scope(f"returned a text of {size} bytes")
        return parts

    def _bad_scope(self, what: str) -> ConfigurationError:
        return ConfigurationError(
            f"scope=: the function {what}, so nothing was run. Return who the key belongs to: a text, or "
            f"up to {self._scope_room} texts, of 1 to {MAX_KEY_BYTES} bytes each (hash a longer one); for "
            "requests of unknown callers, another text"
        )

    def _key(self, request: HttpRequest, lines: Fields) -> str | None:
        """The key in the lines of its field. Without any: the key in another place."""
        policy = self.policy
        try:
            if len(lines) == 1:
                key = parse_key([lines[0][1]], strict=policy.strict, most=policy.max_key)
            elif lines:
                key = self._given(lines)
            else:
                asked = (source(request) for source in policy.key_from)
                other = next((text for text in asked if text is not None), None)
                if other is None:
                    return None
                if not isinstance(other, str):
                    raise ConfigurationError(
                        f"key_from=: a source returned {_kind(other)}, so nothing was run. Return the "
                        "key as text, or None"
                    )
                key = require_key(other, policy.max_key)
            wish = policy.check_key(key) if policy.check_key is not None else None
            if wish is not None:
                raise BadKey(f"a key looks like this: {wish}")
        except BadKey as bad:
            detail = f"{self._place}: {bad}."
            raise RequestRefused(Problem("key-invalid", detail=detail)) from None
        if policy.signatures is not None:
            self._require_signature(policy.signatures, request, key)
        return key

    def _given(self, lines: Fields) -> str:
        """The key in several lines. Each name of the field may be there once, with the same key."""
        policy = self.policy
        values: dict[bytes, list[bytes]] = {}
        for name, value in lines:
            values.setdefault(name, []).append(value)
        first, *others = [
            parse_key(each, strict=policy.strict, most=policy.max_key) for each in values.values()
        ]
        if any(other != first for other in others):
            raise BadKey("its names hold different keys")
        return first

    def _require_signature(self, check: SignatureCheck, request: HttpRequest, key: str) -> None:
        """Refuse a key that no trusted party signed: before the body is read, and without the store."""
        lines = request.values(self.policy.signature_header.lower())
        name = self.policy.signature_header
        if len(lines) != 1:
            wrong = "is missing" if not lines else "was sent more than once"
            raise RequestRefused(Problem("key-untrusted", detail=f"{name} {wrong}."))
        try:
            check.verify(key, lines[0].decode("latin-1").strip(" \t"))
        except UntrustedKeyError as error:
            raise RequestRefused(
                Problem("key-untrusted", detail=f"{name}: {error.message}.")
            ) from None

    def _require_key(self, request: HttpRequest) -> None:
        required = self.policy.required
        if required is True or self._matches(self._required, request):
            raise RequestRefused(Problem("key-missing", detail=f"Its place: {self._place}."))

    # -- responses ----------------------------------------------------------------------------

    def replay(self, request: HttpRequest, stored: StoredResponse) -> StoredResponse:
        marker = self._marker
        if self.policy.on_replay is not None:
            stored = self.policy.on_replay(request, stored)
            if not isinstance(stored, StoredResponse):
                raise ConfigurationError(
                    f"on_replay=: the function returned {_kind(stored)}; return a StoredResponse"
                )
            if stored.status in (401, 403):  # never stored, so this is a refusal of the hook
                marker = None
            # It may come from a client of the service, with the fields of that transfer.
            lines = tuple(line for line in stored.headers if line[0].lower() not in OF_ONE_PASSAGE)
            stored = StoredResponse(stored.status, lines, stored.body)
        exposed = self._exposed if request.has(b"origin") else ()
        fields = replay_fields(stored, marker, exposed)
        return StoredResponse(stored.status, tuple(fields), stored.body)

    def refuse(self, request: HttpRequest, problem: Problem) -> StoredResponse:
        return problem_response(
            problem,
            statuses=self.statuses,
            base=self.policy.problem_base,
            documentation=self.policy.documentation,
            exposes=request.has(b"origin"),
        )

    def refuse_error(self, request: HttpRequest, error: TwicesafeError) -> StoredResponse:
        return self.refuse(request, problem_of(error))


def _kind(value: object) -> str:
    """The type of a value, for errors. The value may be a secret."""
    return "None" if value is None else f"a value of type {type(value).__name__}"
