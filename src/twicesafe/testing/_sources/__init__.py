"""The conformance suite for sources: tests of what a consumer relies on, for authors of sources.

    class TestMine(ConsumerConformance):
        def open_source(self):
            return MySource("my://127.0.0.1:1234?queue=orders")

        def publisher_url(self):
            return MyPublisher("my://127.0.0.1:1234")

        def topic(self):
            return "orders"

        …

The hooks are in `SourceUnderTest`. Use a real broker, and put a TCP proxy in front of it: the suite tests
outages, dropped connections and lost replies. A rule that your broker cannot keep is skipped, visibly, by
a class variable.

`hooks` is what an author fills in, `rules`, `sharing` and `outages` are the tests, `bench` is what they use.
"""

from __future__ import annotations

import pytest

# Before they are imported: a failing rule should show both sides of its comparison.
for _name in ("bench", "outages", "rules", "sharing"):
    pytest.register_assert_rewrite(f"{__name__}.{_name}")

from .bench import BlockingSource  # noqa: E402
from .hooks import SETTINGS, SourceUnderTest  # noqa: E402
from .outages import OutageRules  # noqa: E402
from .rules import SettlingRules  # noqa: E402
from .sharing import SharingRules  # noqa: E402

__all__ = ["SETTINGS", "BlockingSource", "ConsumerConformance", "SourceUnderTest"]


class ConsumerConformance(SettlingRules, SharingRules, OutageRules):
    """Every rule. Subclass it under a name that pytest collects, and fill in the hooks."""
