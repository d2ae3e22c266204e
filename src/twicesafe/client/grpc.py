"""gRPC: sends keys in the metadata of calls, and reads them on the server.

    channel = grpc.intercept_channel(grpc.insecure_channel(address), KeyInterceptor())
    channel = grpc.aio.insecure_channel(address, interceptors=async_interceptors())

    def Charge(self, request, context):
        key = extract(context.invocation_metadata())

Each call gets an `idempotency-key`: derived from the current key while a handler runs (see
`twicesafe.propagation`), otherwise new; a key in the call's metadata is kept. The channel does the
retries: a `retryPolicy` in its service config sends the same metadata, and so the same key, again.
To name the step, inject it: ``stub.Charge(request, metadata=inject([], step="charge-card"))``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

from .._core.http.policy import HttpPolicy
from .._values.drivers import driver
from ..errors import ConfigurationError
from ..propagation import inject, numbered

with driver("grpc"):
    import grpc
    import grpc.aio

__all__ = ["KeyInterceptor", "async_interceptors"]


class _Details(NamedTuple):
    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Keys:
    """Chooses the calls that get a key, and makes the key."""

    def __init__(self, methods: Collection[str] | None, policy: HttpPolicy | None) -> None:
        if isinstance(methods, str):
            raise ConfigurationError(f"methods={methods!r} is not valid: use ({methods!r},)")
        self._methods = None if methods is None else frozenset(methods)
        self._policy = policy or HttpPolicy()

    def metadata(self, method: str | bytes, given: Any) -> Any:
        name = method.decode() if isinstance(method, bytes) else method
        pairs = [(key, value) for key, value in given or ()]
        if self._methods is not None and name not in self._methods:
            return given
        return inject(pairs, step=numbered(f"grpc {name}"), policy=self._policy)


class KeyInterceptor(
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc]
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """For `grpc.intercept_channel`. `methods`: only these ("/shop.Bank/Charge") get a key."""

    def __init__(
        self, methods: Collection[str] | None = None, *, policy: HttpPolicy | None = None
    ) -> None:
        self._keys = _Keys(methods, policy)

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
    methods: Collection[str] | None = None, *, policy: HttpPolicy | None = None
) -> list[Any]:
    """For the `interceptors` of a `grpc.aio` channel, which needs one per kind of call."""
    keys = _Keys(methods, policy)

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
