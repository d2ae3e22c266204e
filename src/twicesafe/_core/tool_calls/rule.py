"""A tool's rule: what identifies its calls, what may be reworded, and what an unknown outcome means.

    ToolRule(identity=("order_id",), prose=("note",))                  at most once per order
    ToolRule(identity=("order_id",), probe=find_charge)                …and an unknown outcome is looked up
    ToolRule(identity=("to", "template"), takeover="retry")            safe to repeat after a crash
    ToolRule(identity=("order_id",), approval=True)                    runs after a person has said yes

A tool that has no rule is called as if twicesafe were not there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from ..._values.keys import Key
from ..._values.policy import Policy
from ..._values.settings import Duration, expect, seconds, suggesting
from ...errors import ConfigurationError
from ..handler_call import expect_shape

__all__ = ["Done", "NotDone", "Probe", "ToolCall", "ToolRule", "check_rules"]

RETENTION: Final = 12 * 3600
"""Seconds. Long enough for a run that is restarted, and over before the same mail is due tomorrow."""


class NotDone(Exception):  # noqa: N818 - a statement, not an error
    """Nothing was done. A tool raises it with the reason; a probe returns it."""


@dataclass(frozen=True)
class Done:
    """What a probe returns if the effect has happened. ``result``: the answer of the tool, plain data."""

    result: Any = "done"


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as a probe sees it."""

    tool: str
    arguments: Mapping[str, Any]
    """As they are compared: whole floats are ints, text is NFC, nulls are left out."""
    principal: str | None
    """On whose behalf the call is made."""
    run: str | None
    """The run or thread that it belongs to."""
    key: Key
    """The full key. In the tool, ``current_key()`` is the same."""


Probe: TypeAlias = Callable[[ToolCall], Any]
"""Did it happen? Returns `Done`, `NotDone`, or None if that is still unknown. May be async."""


@suggesting("tool setting")
@dataclass(frozen=True, kw_only=True)
class ToolRule:
    """How the calls of one tool are recognised and protected."""

    identity: Sequence[str] | None = None
    """The arguments that say which operation this is; dotted paths reach into objects. None: every
    call must bring its key."""
    prose: Sequence[str] = ()
    """Arguments that a model may reword each time. They are not compared."""
    takeover: Literal["hold", "retry"] = "hold"
    """After a crash or an error with unknown outcome: hold (at most once), or let the next call run."""
    retention: Duration = RETENTION
    """How long a repeat gets the recorded answer. After that the same call is a new one."""
    not_done: tuple[type[Exception], ...] = ()
    """Errors that mean that this tool did nothing. With ``takeover="hold"`` the outcome of
    any other error is unknown."""
    probe: Probe | None = None
    """Did it happen? Asked about an outcome that is unknown, before anything else."""
    settles_within: Duration = 30
    """A probe's `NotDone` counts only this long after the outcome became unknown: a request that was
    cut off may still arrive."""
    approval: bool = False
    """Nothing runs until a person has sent the signal ``approval`` with the value true. Needs a store that
    keeps steps."""

    def __post_init__(self) -> None:
        for name in ("identity", "prose"):
            names = getattr(self, name)
            if names is not None:
                object.__setattr__(self, name, _names(name, names))
        expect(
            self.identity is None or len(self.identity) > 0,
            "identity",
            self.identity,
            "name at least one argument, or pass None if every call brings its key",
        )
        both = set(self.identity or ()) & set(self.prose)
        expect(not both, "prose", self.prose, f"{', '.join(sorted(both))} cannot be identity, too")
        expect(self.takeover in ("hold", "retry"), "takeover", self.takeover, "use hold or retry")
        kinds: object = self.not_done
        expect(
            isinstance(kinds, tuple) and all(map(_is_error_type, kinds)),
            "not_done",
            self.not_done,
            "use a tuple of exception types",
        )
        if self.probe is not None:
            expect(callable(self.probe), "probe", self.probe, "use a function")
            expect_shape(self.probe, "probe=", "call")
        for name in ("retention", "settles_within"):
            object.__setattr__(self, name, seconds(getattr(self, name), name))

    def policy(self, given: Policy) -> Policy:
        """The policy of this tool's claims: the receiver's, with what the rule says."""
        return given.replace(retention=self.retention, takeover=self.takeover, retry_horizon=None)


def check_rules(rules: Mapping[str, ToolRule]) -> dict[str, ToolRule]:
    """A copy of the rules by tool name; anything else is refused."""
    expect(isinstance(rules, Mapping), "rules", rules, 'use a dictionary: {"charge": ToolRule(…)}')
    found = dict(rules)
    for name, rule in found.items():
        if not isinstance(rule, ToolRule):
            raise ConfigurationError(f"the rule of {name!r} is not valid: use a ToolRule(…)")
    return found


def _is_error_type(one: object) -> bool:
    return isinstance(one, type) and issubclass(one, Exception)


def _names(setting: str, names: object) -> tuple[str, ...]:
    listed = isinstance(names, Sequence) and not isinstance(names, (str, bytes))
    expect(
        listed and all(isinstance(one, str) and one for one in names),  # type: ignore[attr-defined]
        setting,
        names,
        f'use the names of arguments: {setting}=("order_id",)',
    )
    return tuple(names)  # type: ignore[arg-type]
