"""The conformance suite for stores: the rules of the protocol, as tests for authors of stores.

    class Sqlite(StoreUnderTest):
        def open_store(self, place):
            return SqliteStore(place.folder / "keys.db", now=place.clock)

        def open_async_store(self, place):
            return AsyncSqliteStore(lambda: self.open_store(place), "sqlite:///keys.db")


    class TestSqlite(Sqlite, StoreConformance):
        pass


    class SqliteModel(Sqlite, StoreModel):
        pass


    TestSqliteModel = SqliteModel.TestCase

That is all. Each rule of the protocol (P1 to P12, as far as it concerns the store) and each row of the
lifecycle table is a test, blocking and async. A store whose server has its own clock sets
``real_clock = True``. A capability that the store does not declare (`Capabilities`) is a visible skip.
"""

from __future__ import annotations

from typing import Final

import pytest

TOPICS: Final = (
    "batches",
    "browsing",
    "claims",
    "completion",
    "concurrency",
    "copying",
    "durability",
    "failures",
    "leases",
    "operators",
    "refusals",
    "requests",
    "retention",
    "rewriting",
    "run_requests",
    "runs",
    "searching",
    "steps",
    "suspending",
    "transaction_mode",
    "transitions",
    "values",
    "waking",
)
# Before they are imported: a failing rule should show both sides of its comparison.
pytest.register_assert_rewrite(*(f"{__name__}.{topic}" for topic in TOPICS))

from .batches import BatchRules  # noqa: E402
from .browsing import BrowsingRules  # noqa: E402
from .checking import Checked, check  # noqa: E402
from .claims import ClaimRules  # noqa: E402
from .completion import CompletionRules  # noqa: E402
from .concurrency import ConcurrencyRules  # noqa: E402
from .copying import CopyingRules  # noqa: E402
from .durability import DurabilityRules  # noqa: E402
from .failures import FailureRules  # noqa: E402
from .hooks import Place, StoreUnderTest  # noqa: E402
from .leases import LeaseRules  # noqa: E402
from .operators import OperatorRules  # noqa: E402
from .refusals import RefusalRules  # noqa: E402
from .retention import RetentionRules  # noqa: E402
from .rewriting import RewritingRules  # noqa: E402
from .rules import Rule, rules_of  # noqa: E402
from .runs import RunRules  # noqa: E402
from .searching import SearchingRules  # noqa: E402
from .steps import StepRules  # noqa: E402
from .suspending import SuspendingRules  # noqa: E402
from .transaction_mode import TransactionModeRules  # noqa: E402
from .transitions import TransitionRules  # noqa: E402
from .values import ValueRules  # noqa: E402
from .waking import WakingRules  # noqa: E402

__all__ = [
    "Checked",
    "Place",
    "Rule",
    "StoreConformance",
    "StoreUnderTest",
    "check",
    "rules_of",
]


class StoreConformance(
    ClaimRules,
    LeaseRules,
    CompletionRules,
    FailureRules,
    OperatorRules,
    RefusalRules,
    RetentionRules,
    RewritingRules,
    BrowsingRules,
    SearchingRules,
    BatchRules,
    ConcurrencyRules,
    DurabilityRules,
    ValueRules,
    WakingRules,
    TransactionModeRules,
    TransitionRules,
    StepRules,
    RunRules,
    SuspendingRules,
    CopyingRules,
):
    """Every rule. Subclass it under a name that pytest collects, and fill in the hooks."""
