"""Every source is whole: it has all that the consumer flow asks for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from twicesafe import ConfigurationError
from twicesafe.consumers.sources import SCHEMES, Source, open_source
from twicesafe.outbox.publishers import open_publisher

ASKED = {name for name in vars(Source) if not name.startswith("_")} - {"__init__"}


@pytest.mark.parametrize("target", sorted(set(SCHEMES.values())))
def test_a_source_has_every_method(target: str):
    module, _, name = target.partition(":")
    source = getattr(importlib.import_module(module), name)
    text = inspect.getsource(source)
    missing = {one for one in ASKED if not hasattr(source, one) and f"self.{one}" not in text}
    assert missing == set()


@pytest.mark.parametrize(
    "url", ["nats://localhost?stream=S&durable=d", "redis://localhost/0?stream=s&group=g"]
)
@pytest.mark.parametrize("open_url", [open_source, open_publisher])
def test_an_option_that_nothing_reads_is_refused(url: str, open_url: Callable[[str], Any]) -> None:
    """Misspelt, it would have no effect, or fail when the first message comes."""
    if open_url is open_publisher:
        url = url.partition("?")[0] + "?timeout=3"
    with pytest.raises(ConfigurationError, match="'ack_wat'"):
        open_url(f"{url}&ack_wat=5s")
