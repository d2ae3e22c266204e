"""Access: what one visitor may do, as `resolve_access` answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from .._values.settings import suggesting
from ..errors import ConfigurationError

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = ["FORBIDDEN", "Access", "Level", "ResolveAccess", "checked"]

Level: TypeAlias = Literal["all", "read-only", "forbidden"]


@suggesting("access setting")
@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a visitor may do."""

    level: Level
    """all: look and act. read-only: look. forbidden: nothing."""
    user: str = ""
    """The visitor's name, for the audit; empty: the form asks for it."""
    show_keys: bool = False
    """Show keys, scopes, the errors' text of parked lanes, and the reasons and bodies of dead
    letters; otherwise a key is the first 8 digits of its id."""

    @property
    def may_read(self) -> bool:
        return self.level in ("all", "read-only")

    @property
    def may_act(self) -> bool:
        return self.level == "all"


FORBIDDEN: Final = Access(level="forbidden")

ResolveAccess: TypeAlias = "Callable[[Request], Access | Level | Awaitable[Access | Level]]"
"""A function of the request; it may be async."""


def checked(answer: Any) -> Access:
    """The answer of `resolve_access` as an `Access`. Anything else is an error, never access."""
    if isinstance(answer, str) and answer in get_args(Level):
        return Access(level=answer)  # type: ignore[arg-type]
    if isinstance(answer, Access) and answer.level in get_args(Level):
        return answer
    raise ConfigurationError(
        f"resolve_access returned {type(answer).__name__}: return 'all', 'read-only', 'forbidden' "
        "or an Access"
    )
