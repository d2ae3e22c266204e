"""Section: one table of the settings file, from the model that its command uses.

    RELAY = Section("relay", RelayOptions, "Settings of `twicesafe relay`.")

Names, defaults, kinds and bounds come from the fields of the model, and the meaning of each setting
from the text under it. So the file, the variables, `config show`, the JSON schema and the reference
all say the same.
"""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, replace
from typing import Any, Final

from .._values.settings import refuse_unknown
from ..errors import ConfigurationError
from ._documents import Document
from ._fields import Field, fields_of, models_in
from ._kinds import ValueKind

__all__ = ["REQUIRED", "Section", "Setting", "notes_of"]

REQUIRED: Final = MISSING
_OPTIONS: Final[dict[tuple[str, ...], str]] = {("store", "url"): "--store"}
"""Options that have another name than their setting."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a section; of a section within it, the name is dotted: ``backoff.first``."""

    section: str
    field: Field

    @property
    def name(self) -> str:
        return self.field.name

    @property
    def path(self) -> tuple[str, ...]:
        return (self.section, *self.name.split("."))

    @property
    def variable(self) -> str:
        return f"TWICESAFE_{'_'.join(self.path)}".upper()

    @property
    def option(self) -> str:
        return _OPTIONS.get(self.path, f"--{self.name.replace('_', '-')}")


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the file and its model."""

    name: str
    model: type
    words: str
    """What it sets, for the schema and the reference."""
    without: Mapping[str, str] = field(default_factory=dict)
    """Fields that cannot be set here, and the words that an error adds; "" for those it does not know."""
    kinds: Mapping[str, ValueKind] = field(default_factory=dict)
    """Kinds of fields whose annotations do not tell."""
    more: tuple[tuple[Field, str], ...] = ()
    """Settings beyond the model's fields, each with its meaning."""
    make: Callable[[dict[str, Any]], Any] | None = None
    """Builds the model from the settings; default: call it with them."""

    @property
    def settings(self) -> dict[str, Setting]:
        """By name."""
        fields = fields_of(self.model, self.without, self.kinds)
        found = [*(each for each, _ in self.more), *fields]
        for above, model in self.inner.items():
            found += [replace(each, name=f"{above}.{each.name}") for each in fields_of(model)]
        return {each.name: Setting(self.name, each) for each in found}

    @property
    def inner(self) -> dict[str, Any]:
        """Sections within this one."""
        return models_in(self.model, self.without)

    def notes(self) -> dict[str, str]:
        """The meaning of each setting."""
        found = {each.name: words for each, words in self.more} | notes_of(self.model)
        for above, model in self.inner.items():
            found |= {f"{above}.{name}": words for name, words in notes_of(model).items()}
        return found

    def read(self, document: Document) -> tuple[dict[str, Any], list[ConfigurationError]]:
        """The settings that a file has in this section, and an error for each that it cannot have."""
        found: dict[str, Any] = {}
        wrong: list[ConfigurationError] = []
        for names, value in _leaves(document, self.name, self.inner, wrong):
            name, where = ".".join(names), ".".join((self.name, *names[:-1]))
            known = [key.removeprefix(".".join((*names[:-1], ""))) for key in self.settings]
            known = [key for key in known if "." not in key] + list(self.inner)
            try:
                if self.without.get(name):
                    raise ConfigurationError(f"[{self.name}] {name} {self.without[name]}")
                refuse_unknown(names[-1:], known, f"setting in [{where}]")
                self.settings[name].field.check(value)
            except ConfigurationError as error:
                prefix = f"[{self.name}] " if name in self.settings else ""
                wrong.append(document.placed(error, self.name, *names, words=prefix))
            else:
                found[name] = value
        return found, wrong

    @property
    def names(self) -> list[str]:
        return [name for name in self.settings if "." not in name]

    def build(self, values: Mapping[str, Any]) -> Any:
        """The model with these settings."""
        nested: dict[str, Any] = {}
        for name, value in values.items():
            above, dot, part = name.partition(".")
            if dot:
                nested.setdefault(above, {})[part] = value
            else:
                nested[name] = value
        for above, model in self.inner.items():
            if above in nested:
                nested[above] = model(**nested[above])
        return self.make(nested) if self.make else self.model(**nested)

    def default(self, name: str, values: Mapping[str, Any]) -> Any:
        """What a setting is if it is not set: the model with the other settings knows, if it can be built."""
        declared = self.settings[name].field.default
        try:
            return functools.reduce(getattr, name.split("."), self.build(values))
        except (AttributeError, TypeError, ConfigurationError):
            return declared() if callable(declared) else declared


def _leaves(
    document: Document, section: str, inner: Mapping[str, Any], wrong: list[ConfigurationError]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The settings below a section, with the names that lead to them."""
    for name, value in _table(document, document.data.get(section), wrong, section).items():
        if name in inner:
            for part, deeper in _table(document, value, wrong, section, name).items():
                yield (name, part), deeper
        else:
            yield (name,), value


def _table(
    document: Document, value: Any, wrong: list[ConfigurationError], *names: str
) -> dict[str, Any]:
    if isinstance(value, dict):
        return {str(name): inner for name, inner in value.items()}
    if value is not None:  # a section of a YAML file may be empty
        error = ConfigurationError(
            f"{names[-1]} must be a section: write {document.heading(*names)} and its settings below it"
        )
        wrong.append(document.placed(error, *names))
    return {}


def notes_of(model: type) -> dict[str, str]:
    """The text under each attribute of a class, as written in its source; empty without the source."""
    try:
        source = inspect.getsource(model)
    except (OSError, TypeError):
        return {}
    (tree,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(tree, ast.ClassDef)
    found: dict[str, str] = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            target = before.targets[0] if isinstance(before, ast.Assign) else before
            inner = getattr(target, "target", None)
            name = getattr(target, "id", None) or getattr(inner, "id", None)
            if name:
                found[name] = " ".join(str(after.value.value).split()).replace("``", "`")
    return found
