"""Pins that a type checker finds a name that does not exist, although public packages load names on first use. Never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true, reportUnusedImport=false, reportUnknownVariableType=false
# ruff: noqa: F401

from __future__ import annotations

from twicesafe import Reciever  # pyright: ignore[reportAttributeAccessIssue]
from twicesafe.dashboard import dashbord  # pyright: ignore[reportAttributeAccessIssue]
from twicesafe.integrations.django_inbox import open_inbx  # pyright: ignore[reportAttributeAccessIssue]
from twicesafe.observers import PrometeusObserver  # pyright: ignore[reportAttributeAccessIssue]
from twicesafe.stores import ThredStore  # pyright: ignore[reportAttributeAccessIssue]
from twicesafe.testing import crash_matrx  # pyright: ignore[reportAttributeAccessIssue]
