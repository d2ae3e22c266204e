"""The public names, written out: adding or removing one is a decision, so it is made here too."""

from __future__ import annotations

import importlib

import pytest

from tests.house.repository import PACKAGE

NAMES = {
    "ActiveClaim", "AsyncClaim", "AsyncInbox", "Inbox", "AsyncMessageHandler", "AsyncOutbox", "AsyncOutboxRelay", "AsyncReceiver", "Backoff", "Breaker", "Cause", "Claim",
    "Failure", "Key", "MessageHandler",
    "Outbox", "OutboxRelay", "Outcome", "Policy", "Receiver", "Record", "State", "__version__", "current_claim",
    "current_key", "key_scope", "AsyncSteps", "Steps",
}  # fmt: skip

ERRORS = {
    "AtomicityBrokenError", "BrokerUnavailableError", "ConfigurationError", "CorruptRecordError",
    "DuplicateError", "FingerprintMismatchError", "HeldError", "InvalidKeyError", "LeaseLostError",
    "MissingKeyError", "NotHomeError", "NotStorableError", "ParkedError", "RememberedFailureError", "ResultError",
    "ResultUnavailableError", "SchemaVersionError",
    "StillInProgressError", "StoreError", "StoreUnavailableError", "TooLargeError",
    "TooManyWaitersError", "TwicesafeError", "UnsupportedByStoreError", "UsageError",
    "UntrustedKeyError", "VersionConflictError", "StepError", "StepMismatchError", "SuspendedError", "CompensatedError",
    "CompensationFailedError",
}  # fmt: skip

CLIENT = {"Budget", "RetryPolicy", "Sent", "sent_of"}
STORES = {
    "Abandon", "Ack", "Adopt", "AsyncStore", "AuditEntry", "AuditLog", "Browse", "Capabilities", "ClaimRequest", "Claimed",
    "Complete", "Count", "Discard", "Fail", "Filter", "Finding", "Forget", "History", "Page", "RaiseFences", "Read", "Release", "Renew", "Request", "Resolve", "Rewrite", "Row", "State", "Stats",
    "Store", "Survey", "Sweep", "SweepReport", "ThreadedStore", "Verdict", "lifecycle", "matches", "moment",
    "open_async_store", "open_store", "wall_clock",
}  # fmt: skip
PUBLIC = {
    "archive", "asgi", "client", "configuration", "consumers", "dashboard", "encryption", "errors", "events", "health", "http", "inbox", "integrations",
    "observers", "outbox",
    "planning", "propagation", "receiver", "regions", "signing", "similar", "stores",
    "strategies", "testing", "wsgi",
}  # fmt: skip
"""The doors: every other module at the top is private by its name."""
DASHBOARD = {"Access", "Level", "ResolveAccess", "dashboard"}
HEALTH = {"Check", "Health", "Thresholds", "health_app", "wsgi_health_app"}
OBSERVERS = {"LogObserver", "OpenTelemetryObserver", "PrometheusObserver"}
PROPAGATION = {"extract", "inject", "numbered", "outgoing_key"}
CONFIGURATION = {"SECTIONS", "Configuration", "Origin", "Shown", "problems", "resolve", "schema"}
PLANNING = {
    "STORES", "BackoffDelays", "Collision", "Cost", "Delays", "DuplicateSample", "ExponentialDelays", "Measured",
    "MixedDelays", "ObservedDelays", "Plan", "Prices", "Return", "Storage", "UniformDelays", "Workload", "best_window",
    "bytes_per_key", "collision_probability", "collisions", "cost", "cost_curve", "measure", "measured_from", "plan",
    "records", "return_on", "storage", "svg",
}  # fmt: skip


OUTBOX = {
    "Added", "AsyncOutboxPort", "Backlog", "Depth", "Fetch", "Fetched", "LeasedSlots", "Heartbeat", "ListRelays", "Message",
    "OutboxInTransaction", "OutboxPort", "OutboxRequest", "ParkedLane", "ParkedLanes", "Pending",
    "Prepare", "RelayStatus", "Relays", "Awake", "Setback", "Settle", "Unpark",
}  # fmt: skip
PUBLISHERS = {
    "NOT_TRIED", "Answer", "AsyncCallablePublisher", "CallablePublisher", "Message", "NotNow", "Publisher",
    "open_publisher",
}  # fmt: skip


@pytest.mark.parametrize(
    "module, names",
    [
        ("twicesafe", NAMES | ERRORS),
        ("twicesafe.errors", ERRORS),
        ("twicesafe.client", CLIENT),
        ("twicesafe.dashboard", DASHBOARD),
        ("twicesafe.health", HEALTH),
        ("twicesafe.encryption", {"Cipher", "HiddenKeys", "KeyRing"}),
        (
            "twicesafe.signing",
            {"SIGNATURE_HEADER", "KeySigner", "KeyVerifier", "SignatureCheck", "SignedKey"},
        ),
        ("twicesafe.archive", {"Archive", "ArchivedRecord"}),
        ("twicesafe.similar", {"NearDuplicate", "NearDuplicates"}),
        ("twicesafe.observers", OBSERVERS),
        ("twicesafe.propagation", PROPAGATION),
        ("twicesafe.configuration", CONFIGURATION),
        ("twicesafe.planning", PLANNING),
        ("twicesafe.stores", STORES | OUTBOX),
        ("twicesafe.outbox.publishers", PUBLISHERS),
    ],
)
def test_the_names_are_these_and_no_others(module: str, names: set[str]):
    listed = importlib.import_module(module).__all__
    assert len(listed) == len(set(listed))
    assert set(listed) == names


def test_everything_else_is_private_by_its_name():
    rooms = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert {room for room in rooms if not room.startswith("_") and room != "py"} == PUBLIC


@pytest.mark.parametrize("name", sorted(STORES | OUTBOX))
def test_every_name_for_authors_of_stores_is_there(name: str):
    assert getattr(importlib.import_module("twicesafe.stores"), name) is not None


@pytest.mark.parametrize("name", sorted(NAMES | ERRORS))
def test_every_name_is_there(name: str):
    assert getattr(importlib.import_module("twicesafe"), name) is not None


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_errors_are_the_same_from_both_places(name: str):
    front, errors = (importlib.import_module(m) for m in ("twicesafe", "twicesafe.errors"))
    assert getattr(front, name) is getattr(errors, name)


def test_nothing_else_public_lies_around():
    """What `dir()` offers beyond __all__ is modules only, which Python itself puts there."""
    front = importlib.import_module("twicesafe")
    extra = {n for n in vars(front) if not n.startswith("_")} - NAMES - ERRORS - {"annotations"}
    strays = {n for n in extra if type(vars(front)[n]).__name__ != "module"}
    assert strays == set()
