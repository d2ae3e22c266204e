"""The arguments of a durable function: how a call is checked, stored, and rebuilt by the completer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any, Final

import msgspec

from .._core.handler_call import name_of
from .._core.handler_profile import content_of, without_defaults
from .._values.codecs import Codec, resolve_parameter_types
from .._values.lazy_annotations import signature_of
from .._values.signed_key import SignedKey
from ..errors import (
    ConfigurationError,
    CorruptRecordError,
    NotStorableError,
    TwicesafeError,
    UsageError,
    text_of,
)

__all__ = ["DurableArguments"]

_AROUND: Final = ""
"""In place of a parameter's name: the `key_scope` around the call."""


class DurableArguments:
    """The parameters of a durable function after its steps: how a call is checked, stored and rebuilt."""

    def __init__(self, function: Callable[..., Any]) -> None:
        signature = signature_of(function)
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
        self._function = function
        unsaid = self._signature.bind_partial()
        unsaid.apply_defaults()
        self._defaults = dict(unsaid.arguments)

    @cached_property
    def _types(self) -> dict[str, Any]:
        """At the first call: the function may be decorated before the classes that it names are defined."""
        return resolve_parameter_types(self._function)

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

    def said(self, named: dict[str, Any]) -> dict[str, Any]:
        """Without the arguments that are equal to their defaults: for what is compared."""
        return without_defaults(named, self._defaults)

    def content(self, named: dict[str, Any]) -> Any:
        """The same, as the content that a fingerprint compares."""
        return content_of(named, self._defaults, self.names)

    def encode(self, named: dict[str, Any], around: tuple[str, ...], codec: Codec) -> bytes:
        """`around`: the scope of the `key_scope` blocks around the call."""
        stored = {name: self._written(name, value, codec) for name, value in named.items()}
        if around:
            stored[_AROUND] = msgspec.msgpack.encode(around)
        return msgspec.msgpack.encode(stored)

    def decode(
        self, payload: bytes, codec: Codec
    ) -> tuple[tuple[Any, ...], dict[str, Any], tuple[str, ...]]:
        """The arguments of a stored call, and the scope around it. Raises if the present function does not
        take them."""
        around: tuple[str, ...] = ()
        try:
            stored = msgspec.msgpack.decode(payload, type=dict[str, bytes])
            if _AROUND in stored:
                around = msgspec.msgpack.decode(stored.pop(_AROUND), type=tuple[str, ...])
            unknown = [name for name in stored if name not in self._signature.parameters]
            if unknown:
                raise ValueError(f"{self._name} no longer has a parameter {unknown[0]!r}")
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
        return bound.args, bound.kwargs, around

    def _written(self, name: str, value: Any, codec: Codec) -> bytes:
        if isinstance(value, SignedKey):  # its signature was checked
            value = str.__str__(value)
        try:
            return codec.encode(value, self._types.get(name, Any))
        except Exception as error:  # a codec of the user may raise anything
            raise NotStorableError(
                f"the argument {name!r} of {self._name} cannot be stored for the completer, so nothing was run: "
                "pass plain data, annotate the parameter with the type of its value, or decorate with "
                f"durable(complete=False) ({text_of(error)})",
                value=value,
            ) from error

    def _read(self, name: str, value: bytes, codec: Codec) -> Any:
        try:
            return codec.decode(value, self._types.get(name, Any))
        except Exception as error:  # a codec of the user may raise anything
            raise CorruptRecordError(
                f"the stored arguments cannot be used: {name!r} no longer fits "
                f"({type(error).__name__}: {text_of(error)})"
            ) from error
