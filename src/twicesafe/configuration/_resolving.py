"""Resolving: each setting from the first source that has it, and where that was.

    command line  >  environment  >  settings file  >  default

The file is checked as a whole, by every command: an unknown section or setting is an error, and so is a
value of another kind. Of the environment, a command reads the variables of the sections that it uses. A
variable that begins with TWICESAFE_ and belongs to no section is a warning, and an error for `config check`.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from .._values.settings import refuse_unknown, suggestion
from ..errors import ConfigurationError
from ._documents import Document, read_document
from ._model import REQUIRED, Section, Setting
from ._sections import SECTIONS, section_named

__all__ = ["Configuration", "Origin", "Shown", "problems", "resolve"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from."""

    kind: Literal["default", "file", "environment", "option"]
    place: str
    """``twicesafe.toml:7``, ``TWICESAFE_PROXY_WORKERS``, ``--workers`` or ``default``."""


@dataclass(frozen=True, slots=True)
class Shown:
    """One setting for people: its value without secrets, and where it came from."""

    section: str
    name: str
    value: Any
    origin: Origin


Found = dict[str, tuple[Any, Origin]]

DEFAULT = Origin("default", "default")

PREFIX: Final = "TWICESAFE_"

_log = logging.getLogger("twicesafe")


@dataclass(frozen=True, slots=True)
class Configuration:
    """The settings of some sections, each with its origin."""

    document: Document
    found: Mapping[str, Found]

    def values(self, section: str) -> dict[str, Any]:
        """What is set in a section, by name; defaults are not in it."""
        return {name: value for name, (value, _) in self.found[section].items()}

    def origin(self, section: str, name: str) -> Origin:
        return self.found[section].get(name, (None, DEFAULT))[1]

    def section(self, name: str) -> Any:
        """The model of a section with its settings. An error names the place of the wrong one."""
        with self.placing_errors(name):
            return section_named(name).build(self.values(name))

    @contextmanager
    def placing_errors(self, *sections: str) -> Iterator[None]:
        """Adds to an error where the setting that it names was set."""
        try:
            yield
        except ConfigurationError as error:
            words = re.findall(r"[a-z_]+(?:\.[a-z_]+)?", error.message)
            for section in sections:
                for word in words:
                    if word in self.found[section]:
                        origin = self.origin(section, word)
                        raise ConfigurationError(
                            f"{origin.place}: [{section}] {error.message}"
                        ) from error
            raise

    def shown(self) -> Iterator[Shown]:
        """All settings, also those that have their default."""
        for name, found in self.found.items():
            section, values = section_named(name), self.values(name)
            for setting in section.settings.values():
                value, origin = found.get(setting.name, (REQUIRED, DEFAULT))
                if value is REQUIRED:
                    value = section.default(setting.name, values)
                unset = value is REQUIRED or value is None
                safe = None if unset else setting.field.kind.shown(value)
                yield Shown(name, setting.name, safe, origin)


def resolve(
    *sections: str,
    config: Path | None = None,
    environ: Mapping[str, str] = os.environ,
    given: Mapping[str, Mapping[str, Any]] | None = None,
) -> Configuration:
    """The settings of these sections. ``given``: what the command line says; None is not given."""
    document = read_document(config)
    for wrong in _wrong_in(document):
        raise wrong
    for strange in _strange_in(environ):
        _log.warning("%s", strange.message)
    found = {}
    for name in sections:
        section = section_named(name)
        options = (given or {}).get(name, {})
        found[name] = {
            **_from_file(section, document),
            **_from_environ(section, environ),
            **{
                key: (value, Origin("option", section.settings[key].option))
                for key, value in options.items()
                if value is not None
            },
        }
    return Configuration(document, found)


def problems(
    config: Path | None = None, environ: Mapping[str, str] = os.environ
) -> list[ConfigurationError]:
    """Everything that is wrong in the file and in the environment."""
    try:
        document = read_document(config)
    except ConfigurationError as error:
        return [error]
    wrong = [*_wrong_in(document), *_strange_in(environ)]
    for name in SECTIONS:
        section = section_named(name)
        if section.read(document)[1]:
            continue  # its settings cannot be judged together
        try:
            read = {**_from_file(section, document), **_from_environ(section, environ)}
            needed = [s.name for s in section.settings.values() if s.field.default is REQUIRED]
            if all(each in read for each in needed):
                Configuration(document, {name: read}).section(name)
        except ConfigurationError as error:
            wrong.append(error)
    return wrong


def _wrong_in(document: Document) -> Iterator[ConfigurationError]:
    """Unknown names, and values of a wrong kind, in all sections of a file."""
    for name in document.data:
        try:
            refuse_unknown([str(name)], SECTIONS, "section")
        except ConfigurationError as error:
            yield document.placed(error, str(name))
        else:
            yield from section_named(name).read(document)[1]


def _strange_in(environ: Mapping[str, str]) -> Iterator[ConfigurationError]:
    """Variables that are named like ours and belong to no section."""
    ours = tuple(f"{PREFIX}{name.upper()}_" for name in SECTIONS)
    for variable in sorted(environ):
        if variable.startswith(PREFIX) and not variable.startswith(ours):
            sections = (section_named(name) for name in SECTIONS)
            known = [one.variable for each in sections for one in each.settings.values()]
            meant = suggestion(variable, known, "`twicesafe config show` lists them")
            yield ConfigurationError(f"no setting has the variable {variable[:200]}; {meant}")


def _from_file(section: Section, document: Document) -> Found:
    def origin(setting: Setting) -> Origin:
        return Origin("file", document.place(*setting.path))

    return {
        name: (value, origin(section.settings[name]))
        for name, value in section.read(document)[0].items()
    }


def _from_environ(section: Section, environ: Mapping[str, str]) -> Found:
    by_variable = {setting.variable: setting for setting in section.settings.values()}
    prefix = f"{PREFIX}{section.name.upper()}_"
    found: Found = {}
    for variable, text in environ.items():
        if variable.startswith(prefix):
            if variable not in by_variable:
                refuse_unknown(
                    [variable.removeprefix(prefix).lower()],
                    list(section.settings),
                    f"setting for the variable {variable}:",
                )
            setting = by_variable[variable]
            found[setting.name] = (
                setting.field.read(text, variable),
                Origin("environment", variable),
            )
    return found
