"""Configuration: one typed model behind Python, TOML, YAML, the environment and the command line.

    from twicesafe import Receiver, configuration

    settings = configuration.resolve("store", "policy")        # twicesafe.toml or .yaml, and variables
    receiver = Receiver.open(settings.section("store").url, policy=settings.section("policy"))

The commands use the same: ``twicesafe config check`` names every wrong setting with file and line,
``config show`` tells where each value came from, ``config schema`` prints a JSON schema for editors.

    _sections    the table of sections, and how to add one; `_commands`: the models of the small ones
    _model       a section, made from its model; `_fields` and `_kinds`: its settings and their values
    _documents   a settings file as data; `_toml_lines`: the line of each key
    _resolving   each setting from the first source that has it
    _schema      the JSON schema
"""

from __future__ import annotations

from ._resolving import Configuration, Origin, Shown, problems, resolve
from ._schema import schema
from ._sections import SECTIONS

__all__ = ["SECTIONS", "Configuration", "Origin", "Shown", "problems", "resolve", "schema"]
