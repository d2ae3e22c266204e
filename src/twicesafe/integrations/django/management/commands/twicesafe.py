"""``manage.py twicesafe …``: every command of the command line, on the project's own store.

The store is ``TWICESAFE["store"]``; without that setting, the default database of `django_inbox`.
``--store`` and TWICESAFE_STORE_URL still come first. A key ring that TWICESAFE names
(``"encryption": "env:NAME"``) is theirs, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from ....._cli import main
from .....errors import ConfigurationError
from ..._settings import setting

__all__ = ["Command"]

STORE, RING = "TWICESAFE_STORE_URL", "TWICESAFE_POLICY_ENCRYPTION"


class Command(BaseCommand):  # type: ignore[misc]
    help = "Operate the keys of this project: manage.py twicesafe keys list --stuck"

    def run_from_argv(self, argv: list[str]) -> None:
        """All words belong to twicesafe, also ``--help`` and ``--version``."""
        try:
            status = self._run(argv[2:])
        except CommandError as error:  # Django shows those of `handle` only
            self.stderr.write(f"{type(error).__name__}: {error}")
            status = 1
        sys.exit(status)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *, words: list[str], **options: Any) -> None:
        """``call_command("twicesafe", "keys", "list", "--stuck")``"""
        status = self._run(words)
        if status:
            raise CommandError(f"twicesafe ended with status {status}", returncode=status)

    def _run(self, words: list[str]) -> int:
        found = {} if STORE in os.environ else _chosen()
        added = {name: value for name, value in found.items() if value and name not in os.environ}
        os.environ.update(added)
        try:
            return main(words)
        finally:
            for name in added:
                del os.environ[name]


def _chosen() -> dict[str, str]:
    """The store and the key ring of the project. No key ring: there is none, or it is an object
    that a command cannot load."""
    try:
        given = setting()
        ring = given.get("encryption")
        return {STORE: _store(given), RING: ring if isinstance(ring, str) else ""}
    except (ImproperlyConfigured, ConfigurationError) as error:
        raise CommandError(str(error)) from error


def _store(given: Mapping[str, Any]) -> str:
    """Empty: the project has none, so the command line's own default applies."""
    if "store" in given:
        return str(given["store"])
    if apps.is_installed("twicesafe.integrations.django_inbox"):
        from ....django_inbox._opening import url_of

        return url_of("default")
    return ""
