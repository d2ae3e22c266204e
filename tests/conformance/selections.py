"""Which rules run where a store does not run all of them: one name for each selection, and its reason."""

from __future__ import annotations

from twicesafe.testing._conformance import (
    BatchRules,
    BrowsingRules,
    ClaimRules,
    CompletionRules,
    ConcurrencyRules,
    CopyingRules,
    DurabilityRules,
    FailureRules,
    LeaseRules,
    OperatorRules,
    RefusalRules,
    RetentionRules,
    RewritingRules,
    RunRules,
    SearchingRules,
    StepRules,
    SuspendingRules,
    TransactionModeRules,
    TransitionRules,
    ValueRules,
    WakingRules,
)


class DurableRuns(StepRules, RunRules, SuspendingRules):
    """All that is said about durable runs."""


class OneNode(
    ClaimRules,
    LeaseRules,
    CompletionRules,
    FailureRules,
    OperatorRules,
    RetentionRules,
    BrowsingRules,
    SearchingRules,
    BatchRules,
    DurableRuns,
    DurabilityRules,
    ValueRules,
    TransitionRules,
):
    """All rules of one node at a time: in a migration no one puts records back into the wide table."""


class FirstSchema(ClaimRules, CompletionRules, OperatorRules, DurableRuns):
    """The requests that read and write records, on the schema of the first versions."""


class Interrupted(FirstSchema, BrowsingRules, BatchRules):
    """A migration that was interrupted: every request finds its record in the wide table."""


class Claiming(ClaimRules, LeaseRules, BatchRules, ConcurrencyRules):
    """The rules of claims: where a server gets other statements for them, or locks other tables."""


class NextRelease(ClaimRules):
    """The rules of a claim: on a newer server that gets the same statements."""


class OtherStatements(Claiming, RetentionRules, DurableRuns):
    """The rules whose statements MySQL gets in other words."""


class Failover(ClaimRules, CompletionRules, BatchRules, DurableRuns):
    """Each kind of request, where only the way to the server differs."""


class Isolated(ClaimRules, ConcurrencyRules, BatchRules):
    """The rules that another isolation level could break."""


class Watched(ClaimRules, LeaseRules, FailureRules):
    """The rules about time, where no clock is believed: a lease is over only for those who watched it."""


class Awaited(
    ClaimRules,
    CompletionRules,
    OperatorRules,
    RefusalRules,
    RewritingRules,
    SearchingRules,
    BatchRules,
    ConcurrencyRules,
    DurabilityRules,
    WakingRules,
    TransactionModeRules,
    CopyingRules,
    DurableRuns,
):
    """Each kind of request, and all that depends on how requests meet: for the async version of a store that
    keeps every rule in its blocking one, with the same programs. Memory, SQLite and PostgreSQL (by asyncpg) run all
    in both."""

    modes = ("async",)
