"""The conformance suite for publishers: what a relay relies on, as tests that their author runs.

    class TestMine(PublisherConformance):
        def open_publisher(self):
            return MyPublisher("my://127.0.0.1:1234")

        def topic(self, name):
            create_queue(name)
            return name

        def taken(self, topic):
            return [entry.id for entry in everything_in(topic)]

        …

The hooks are in `PublisherUnderTest`. Use a real broker, with a TCP proxy in front of it or with a process
of your own to stop: an outage, a hang-up and silence are what the suite is about.
"""

from __future__ import annotations

import pytest

# Before they are imported: a failing rule should show both sides of its comparison.
pytest.register_assert_rewrite(f"{__name__}.rules")

from .hooks import PublisherUnderTest  # noqa: E402
from .rules import PublisherConformance  # noqa: E402

__all__ = ["PublisherConformance", "PublisherUnderTest"]
