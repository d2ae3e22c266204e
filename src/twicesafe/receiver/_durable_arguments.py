"""The arguments of a durable function: how a call is checked, stored, and rebuilt by the completer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, get_type_hints

import msgspec

from .._core.handler_call import name_of
from .._values.codecs import Codec
from ..errors import (
    ConfigurationError,
    CorruptRecordError,
    TwicesafeError,
    UsageError,
    text_of,
)

__all__ = ["DurableArguments"]


class DurableArguments:
    """The parameters of a durable function after its steps: how a call is checked, stored and rebuilt."""

    def __init__(self, function: Callable[..., Any]) -> None:
        signature = inspect.signature(function)
        parameters = list(signature.parameters.values())
        if not parameters or parameters[0].kind not in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
        ):
            raise ConfigurationError(
                f"{name_of(function)} must take its steps first: def {name_of(function)}(steps, …)"
            )
        self._name = name_of(function)
        self._signature = signature.replace(parameters=parameters[1:])
        try:
            self._types = get_type_hints(function)
        except Exception:  # a name that only type checkers know
            self._types = {}

    @property
    def names(self) -> list[str]:
        return list(self._signature.parameters)

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UsageError(
                f"{self._name}{self._signature} cannot be called like this: {error}; nothing was run"
            ) from error
        bound.apply_defaults()
        return dict(bound.arguments)

    def encode(self, named: dict[str, Any], codec: Codec) -> bytes:
        return msgspec.msgpack.encode(
            {name: codec.encode(value, self._types.get(name, Any)) for name, value in named.items()}
        )

    def decode(self, payload: bytes, codec: Codec) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a stored call. Raises if the present function does not take them."""
        try:
            stored = msgspec.msgpack.decode(payload, type=dict[str, bytes])
            unknown = [name for name in stored if name not in self._signature.parameters]
            if unknown:
                raise ValueError(f"{self._name} has no parameter {unknown[0]!r} any more")
            named = {name: self._read(name, value, codec) for name, value in stored.items()}
        except TwicesafeError:
            raise
        except Exception as error:
            raise CorruptRecordError(f"the stored arguments cannot be used: {error}") from error
        bound = inspect.BoundArguments(self._signature, named)
        bound.apply_defaults()
        try:
            self._signature.bind(*bound.args, **bound.kwargs)
        except TypeError as error:  # it takes more than it did
            raise CorruptRecordError(f"the stored arguments cannot be used: {error}") from error
        return bound.args, bound.kwargs

    def _read(self, name: str, value: bytes, codec: Codec) -> Any:
        try:
            return codec.decode(value, self._types.get(name, Any))
        except Exception as error:  # a codec of the user may raise anything
            raise CorruptRecordError(
                f"the stored arguments cannot be used: {name!r} does not fit any more "
                f"({type(error).__name__}: {text_of(error)})"
            ) from error
