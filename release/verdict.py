"""What the changes of a public API mean for the version number (Semantic Versioning).

a name is gone, or a call that worked fails now       major; before 1.0: minor
a name or an optional parameter is new                minor; before 1.0: patch
neither                                               patch
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .api import Parameter, Surface

__all__ = ["Change", "Level", "compare", "level_of", "next_version"]

Level = Literal["major", "minor", "patch"]
_POSITIONAL = ("POSITIONAL_ONLY", "POSITIONAL_OR_KEYWORD")


@dataclass(frozen=True)
class Change:
    breaks: bool
    what: str


def compare(before: Surface, after: Surface) -> list[Change]:
    """What changed from one version to the next, what breaks first."""
    changes = [Change(True, f"{name} is gone") for name in before.keys() - after.keys()]
    changes += [Change(False, f"{name} is new") for name in after.keys() - before.keys()]
    for name in before.keys() & after.keys():
        old, new = before[name], after[name]
        if old == new:
            continue
        if old is None or new is None:
            changes.append(
                Change(old is not None, f"{name} can {'' if new else 'no longer '}be called")
            )
        else:
            changes += [Change(b, f"{name}: {what}") for b, what in _parameters(old, new)]
    return sorted(changes, key=lambda change: (not change.breaks, change.what))


def _parameters(old: list[Parameter], new: list[Parameter]) -> list[tuple[bool, str]]:
    found: list[tuple[bool, str]] = []
    known, now = {p[0]: p for p in old}, {p[0]: p for p in new}
    takes_any = any(p[1] == "VAR_KEYWORD" for p in new)
    for name in known:
        if name not in now:
            found.append((not takes_any, f"the parameter {name} is gone"))
        elif known[name][1] != now[name][1]:
            widened = (known[name][1], now[name][1]) == ("KEYWORD_ONLY", "POSITIONAL_OR_KEYWORD")
            found.append((not widened, f"the parameter {name} is passed in another way"))
        elif known[name][2] and not now[name][2]:
            found.append((True, f"the parameter {name} has no default any more"))
        elif now[name][2] and not known[name][2]:
            found.append((False, f"the parameter {name} has a default"))
    for name in now:
        if name not in known:
            required = not now[name][2] and not now[name][1].startswith("VAR_")
            found.append((required, f"the parameter {name} is new"))
    kept = [p[0] for p in old if p[1] in _POSITIONAL and p[0] in now]
    order = [p[0] for p in new if p[1] in _POSITIONAL]
    if [name for name in order if name in kept] != kept or order[: len(kept)] != kept:
        found.append((True, "the order of its parameters is another one"))
    return found


def level_of(changes: list[Change], version: str) -> Level:
    """The least part of the version that must grow."""
    early = version.startswith("0.")
    if any(change.breaks for change in changes):
        return "minor" if early else "major"
    return "minor" if changes and not early else "patch"


def next_version(version: str, level: Level) -> tuple[int, int, int]:
    major, minor, patch = (int(part) for part in version.split(".")[:3])
    if level == "major":
        return major + 1, 0, 0
    return (major, minor + 1, 0) if level == "minor" else (major, minor, patch + 1)
