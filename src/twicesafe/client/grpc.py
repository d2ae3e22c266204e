"""gRPC: sends keys in the metadata of calls, and reads them on the server.

    channel = grpc.intercept_channel(grpc.insecure_channel(address), KeyInterceptor())
    channel = grpc.aio.insecure_channel(address, interceptors=async_interceptors())

    def Charge(self, request, context):
        key = extract(context.invocation_metadata())

Each call gets an `idempotency-key`: derived from the current key while a handler runs (see
`twicesafe.propagation`), otherwise new; a key in the call's metadata is kept. The channel does the
retries: a `retryPolicy` in its service config sends the same metadata, and so the same key, again.
To name the step, inject it: ``stub.Charge(request, metadata=inject([], step="charge-card"))``.

With signed keys, ``KeyInterceptor(signer=…)`` signs, and ``SignedKeysRequired(verifier)`` among the
`interceptors` of a server refuses what no trusted party signed, before the handler is called.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from .._core.http.policy import HttpPolicy
from .._values.drivers import driver
from .._values.signed_key import SignatureCheck
from ..errors import ConfigurationError, InvalidKeyError, UntrustedKeyError
from ..propagation import extract, inject, numbered
from ..signing import KeySigner

with driver("grpc"):
    import grpc
    import grpc.aio

__all__ = [
    "AsyncSignedKeysRequired",
    "KeyInterceptor",
    "SignedKeysRequired",
    "async_interceptors",
]


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Keys:
    """Chooses the calls that get a key, and makes the key."""

    def __init__(
        self,
        methods: Collection[str] | None,
        policy: HttpPolicy | None,
        signer: KeySigner | None = None,
    ) -> None:
        if isinstance(methods, str):
            raise ConfigurationError(f"methods={methods!r} is not valid: use ({methods!r},)")
        self._methods = None if methods is None else frozenset(methods)
        self._policy = policy or HttpPolicy()
        self._signer = signer
        self._signed_in = self._policy.signature_header.lower()

    def concern(self, method: str | bytes) -> bool:
        name = method.decode() if isinstance(method, bytes) else method
        return self._methods is None or name in self._methods

    def metadata(self, method: str | bytes, given: Any) -> Any:
        if not self.concern(method):
            return given
        name = method.decode() if isinstance(method, bytes) else method
        pairs = [(key, value) for key, value in given or ()]
        sent = inject(pairs, step=numbered(f"grpc {name}"), policy=self._policy)
        if self._signer is not None and not any(key == self._signed_in for key, _ in sent):
            key = extract(sent, policy=self._policy)
            assert key is not None
            sent.append((self._signed_in, self._signer.sign(key)))
        return sent

    def problem(self, check: SignatureCheck, method: str, metadata: Any) -> str:
        """Why this call is refused; empty: it is not. A call without a key is not protected by one."""
        if not self.concern(method):
            return ""
        pairs = [(key, value) for key, value in metadata or ()]
        try:
            key = extract(pairs, policy=self._policy)
            if key is None:
                return ""
            signatures = [value for name, value in pairs if name == self._signed_in]
            if len(signatures) != 1:
                wrong = "is missing" if not signatures else "was sent more than once"
                return f"{self._signed_in} {wrong}"
            check.verify(key, str(signatures[0]))
        except (UntrustedKeyError, InvalidKeyError) as error:
            return error.message
        return ""


class KeyInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """For `grpc.intercept_channel`. `methods`: only these ("/shop.Bank/Charge") get a key; `signer` signs it."""

    def __init__(
        self,
        methods: Collection[str] | None = None,
        *,
        policy: HttpPolicy | None = None,
        signer: KeySigner | None = None,
    ) -> None:
        self._keys = _Keys(methods, policy, signer)

    def _intercept(self, continuation: Callable[..., Any], details: Any, request: Any) -> Any:
        keyed = _Details(
            details.method,
            details.timeout,
            self._keys.metadata(details.method, details.metadata),
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )
        return continuation(keyed, request)

    intercept_unary_unary = _intercept
    intercept_unary_stream = _intercept
    intercept_stream_unary = _intercept
    intercept_stream_stream = _intercept


def async_interceptors(
    methods: Collection[str] | None = None,
    *,
    policy: HttpPolicy | None = None,
    signer: KeySigner | None = None,
) -> list[Any]:
    """For the `interceptors` of a `grpc.aio` channel, which needs one per kind of call."""
    keys = _Keys(methods, policy, signer)

    async def intercept(_: Any, continuation: Any, details: Any, request: Any) -> Any:
        keyed = grpc.aio.ClientCallDetails(
            details.method,
            details.timeout,
            grpc.aio.Metadata(*keys.metadata(details.method, details.metadata) or ()),
            details.credentials,
            details.wait_for_ready,
        )
        return await continuation(keyed, request)

    kinds = ("UnaryUnary", "UnaryStream", "StreamUnary", "StreamStream")
    names = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    return [
        type(f"Async{kind}", (getattr(grpc.aio, f"{kind}ClientInterceptor"),), {f"intercept_{name}": intercept})()
        for kind, name in zip(kinds, names, strict=True)
    ]  # fmt: skip


class _Required:
    """Refuses calls whose key no trusted party signed, before their handler is called."""

    def __init__(
        self,
        signatures: SignatureCheck,
        methods: Collection[str] | None = None,
        *,
        policy: HttpPolicy | None = None,
    ) -> None:
        if not isinstance(signatures, SignatureCheck):
            raise ConfigurationError("signatures must be a KeyVerifier(…)")
        self._check = signatures
        self._keys = _Keys(methods, policy)

    def _chosen(self, handler: Any, details: Any, refuse: Callable[[str], Any]) -> Any:
        """The handler of the call, or one of the same kind that refuses."""
        problem = self._keys.problem(self._check, details.method, details.invocation_metadata)
        if handler is None or not problem:
            return handler
        asked = "stream" if handler.request_streaming else "unary"
        answered = "stream" if handler.response_streaming else "unary"
        make = getattr(grpc, f"{asked}_{answered}_rpc_method_handler")
        return make(refuse(problem), handler.request_deserializer, handler.response_serializer)


class SignedKeysRequired(_Required, grpc.ServerInterceptor):  # type: ignore[misc]
    """For the `interceptors` of a `grpc.server`. A key without a valid signature is PERMISSION_DENIED.

    `methods`: only these are checked. A call without a key passes: your handler decides about it.
    """

    def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        def refuse(problem: str) -> Any:
            return lambda _, context: context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)

        return self._chosen(continuation(details), details, refuse)


class AsyncSignedKeysRequired(_Required, grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The same for a `grpc.aio.server`."""

    async def intercept_service(self, continuation: Callable[..., Any], details: Any) -> Any:
        def refuse(problem: str) -> Any:
            async def refused(_: Any, context: Any) -> None:
                await context.abort(grpc.StatusCode.PERMISSION_DENIED, problem)

            return refused

        return self._chosen(await continuation(details), details, refuse)
