"""Documents: a settings file as plain data, and the line of each setting in it.

TOML is read by the standard library, which does not keep lines: `_toml_lines` finds them. YAML is read by
PyYAML's safe loader, whose nodes know their lines.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .._values.drivers import driver
from ..errors import ConfigurationError
from ._toml_lines import toml_lines

__all__ = ["FILES", "Document", "read_document"]

FILES: Final = ("twicesafe.toml", "twicesafe.yaml", "twicesafe.yml")
"""Looked for in the working directory."""

Lines = Mapping[tuple[str, ...], int]


@dataclass(frozen=True, slots=True)
class Document:
    """What a file says. Without a file it is empty."""

    path: Path | None = None
    data: Mapping[str, Any] = field(default_factory=dict)
    lines: Lines = field(default_factory=dict)

    def place(self, *names: str) -> str:
        """``twicesafe.toml:7``: the line of a setting, or of the closest that is known."""
        for end in range(len(names), 0, -1):
            if names[:end] in self.lines:
                return f"{self.path}:{self.lines[names[:end]]}"
        return str(self.path)

    def placed(self, error: ConfigurationError, *names: str, words: str = "") -> ConfigurationError:
        """The error with the place of a setting in front of it."""
        made = ConfigurationError(f"{self.place(*names)}: {words}{error.message}")
        made.__cause__ = error
        return made

    def heading(self, *names: str) -> str:
        """How a section begins in this kind of file."""
        yaml = self.path is not None and self.path.suffix != ".toml"
        return f"{names[-1]}:" if yaml else f"[{'.'.join(names)}]"


def read_document(path: Path | None) -> Document:
    """The named file, or the one in the working directory, or an empty document."""
    found = path or _here()
    if found is None:
        return Document()
    try:
        text = found.read_text("utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"cannot read {found}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{found} is not text in UTF-8: {error}") from error
    data, lines = _yaml(found, text) if found.suffix in (".yaml", ".yml") else _toml(found, text)
    return Document(found, data, lines)


def _here() -> Path | None:
    there = [path for path in map(Path, FILES) if path.is_file()]
    if len(there) > 1:
        raise ConfigurationError(
            f"there are two settings files, {there[0]} and {there[1]}: remove one, or choose with --config"
        )
    return there[0] if there else None


def _toml(path: Path, text: str) -> tuple[dict[str, Any], Lines]:
    try:
        return tomllib.loads(text), toml_lines(text)
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        place = f"{path}:{line[1]}" if line else f"{path}:{text.count(chr(10)) + 1}"
        raise ConfigurationError(f"{place}: this is not TOML: {error}") from error
    except RecursionError:
        raise ConfigurationError(f"{path}: it is nested too deeply") from None


def _yaml(path: Path, text: str) -> tuple[dict[str, Any], Lines]:
    with driver("yaml"):
        import yaml
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark else str(path)
        said = [getattr(error, name, None) for name in ("context", "problem")]
        problem = ", ".join(filter(None, said)) or " ".join(str(error).split())
        raise ConfigurationError(f"{place}: this is not YAML: {problem}") from error
    except RecursionError:
        raise ConfigurationError(f"{path}: it is nested too deeply") from None
    except (ValueError, TypeError) as error:  # a date that is none, a key that is a list
        raise ConfigurationError(f"{path}: this is not YAML: {error}") from error
    if data is None:
        return {}, {}
    if not isinstance(data, dict):
        raise ConfigurationError(f"{path}:1: write sections, like `store:` with `url: …` below it")
    lines: dict[tuple[str, ...], int] = {}
    for names, line in _yaml_lines(root, ()):
        if names in lines:
            raise ConfigurationError(
                f"{path}:{line}: {'.'.join(names)} is set twice, first in line {lines[names]}"
            )
        lines[names] = line
    return data, lines


def _yaml_lines(node: Any, above: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Settings are at most three levels deep; deeper ones are refused by name."""
    if node.id == "mapping" and len(above) < 3:
        for key, value in node.value:
            names = (*above, str(key.value))
            yield names, key.start_mark.line + 1
            yield from _yaml_lines(value, names)
