"""Every source is whole: it has all that the consumer flow asks for."""

from __future__ import annotations

import importlib
import inspect

import pytest

from twicesafe.consumers.sources import SCHEMES, Source

ASKED = {name for name in vars(Source) if not name.startswith("_")} - {"__init__"}


@pytest.mark.parametrize("target", sorted(set(SCHEMES.values())))
def test_a_source_has_every_method(target: str):
    module, _, name = target.partition(":")
    source = getattr(importlib.import_module(module), name)
    text = inspect.getsource(source)
    missing = {one for one in ASKED if not hasattr(source, one) and f"self.{one}" not in text}
    assert missing == set()
