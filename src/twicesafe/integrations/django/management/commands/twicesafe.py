"""``manage.py twicesafe …``: every command of the command line, on the project's own store.

The store is ``TWICESAFE["store"]``; without that setting, the default database of `django_inbox`. ``--store``
and TWICESAFE_STORE_URL still come first. A key ring that TWICESAFE names (``"encryption": "env:NAME"``) is theirs, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from django.apps import apps
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from ....._cli import main
from .....errors import ConfigurationError

__all__ = ["Command"]

STORE, RING = "TWICESAFE_STORE_URL", "TWICESAFE_POLICY_ENCRYPTION"


class Command(BaseCommand):  # type: ignore[misc]
    help = "Operate the keys of this project: manage.py twicesafe keys list --stuck"

    def run_from_argv(self, argv: list[str]) -> None:
        """All words belong to twicesafe, also ``--help`` and ``--version``."""
        sys.exit(self._run(argv[2:]))

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("words", nargs=argparse.REMAINDER)

    def handle(self, *, words: list[str], **options: Any) -> None:
        """``call_command("twicesafe", "keys", "list", "--stuck")``"""
        status = self._run(words)
        if status:
            raise CommandError(f"twicesafe ended with status {status}", returncode=status)

    def _run(self, words: list[str]) -> int:
        found = {} if STORE in os.environ else {STORE: _store(), RING: _key_ring()}
        added = {name: value for name, value in found.items() if value and name not in os.environ}
        os.environ.update(added)
        try:
            return main(words)
        finally:
            for name in added:
                del os.environ[name]


def _key_ring() -> str:
    """Empty: there is none, or it is an object that a command cannot load."""
    ring = (getattr(settings, "TWICESAFE", None) or {}).get("encryption")
    return ring if isinstance(ring, str) else ""


def _store() -> str:
    """Empty: the project has none, so the command line's own default applies."""
    given = getattr(settings, "TWICESAFE", None) or {}
    if "store" in given:
        return str(given["store"])
    if apps.is_installed("twicesafe.integrations.django_inbox"):
        from ....django_inbox._opening import url_of

        try:
            return url_of("default")
        except ConfigurationError as error:
            raise CommandError(str(error)) from error
    return ""
