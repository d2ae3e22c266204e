"""Configuration: one typed model behind Python, TOML, YAML, the environment and the command line.

    from twicesafe import Receiver, configuration

    settings = configuration.resolve("store", "policy")        # twicesafe.toml or .yaml, and variables
    receiver = Receiver.open(settings.section("store").url, policy=settings.section("policy"))

The commands use the same: ``twicesafe config check`` names every wrong setting with file and line,
``config show`` tells where each value came from, ``config schema`` prints a JSON schema for editors.
`_sections` says how to add the settings of a command.
"""

from __future__ import annotations

from ._resolving import Configuration, Origin, Shown, problems, resolve
from ._schema import schema
from ._sections import SECTIONS

__all__ = ["SECTIONS", "Configuration", "Origin", "Shown", "problems", "resolve", "schema"]
