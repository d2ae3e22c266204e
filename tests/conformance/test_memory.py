"""Memory keeps every rule that it does not declare away."""

from __future__ import annotations

from tests.conformance.stores import Memory
from twicesafe.testing import StoreConformance


class TestMemory(Memory, StoreConformance):
    pass
