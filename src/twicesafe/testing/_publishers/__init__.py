"""The conformance suite for publishers: tests of what a relay relies on, for authors of publishers.

    class TestMine(PublisherConformance):
        def open_publisher(self):
            return MyPublisher("my://127.0.0.1:1234")

        def topic(self, name):
            create_queue(name)
            return name

        def taken(self, topic):
            return [entry.id for entry in everything_in(topic)]

        …

The hooks are in `PublisherUnderTest`. Use a real broker that you can stop, or put a TCP proxy in front of
it. The suite tests outages, dropped connections and a broker that does not answer.

`hooks` is what an author fills in, `rules` are the tests.
"""

from __future__ import annotations

import pytest

# Before they are imported: a failing rule should show both sides of its comparison.
pytest.register_assert_rewrite(f"{__name__}.rules")

from .hooks import PublisherUnderTest  # noqa: E402
from .rules import PublisherConformance  # noqa: E402

__all__ = ["PublisherConformance", "PublisherUnderTest"]
