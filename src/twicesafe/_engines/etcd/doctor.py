"""Checks the cluster settings that the guarantees depend on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...errors import StoreUnavailableError
from ...stores._base import Finding, Program
from .error_messages import CompactedError
from .messages import message
from .routing import EtcdCall
from .settings import Settings

__all__ = ["examine"]

NOSPACE: Final = 1
QUOTA: Final = 2 * 1024**3
"""etcd's quota, where a member does not tell it (before 3.6)."""
OLDEST: Final = (3, 4)
FAULTS: Final = (
    (3, "can become inconsistent when it is killed"),
    (7, "can crash when a client leaves, or gives up waiting, during a read"),
)
"""Of 3.5, and the patch that repaired them: etcd-io/etcd 13766; 14110 and 14891."""
UNCOMPACTED: Final = 100_000
"""Revisions after which a cluster with automatic compaction has compacted something."""


def examine(settings: Settings) -> Program[list[Finding]]:
    findings: list[Finding] = []
    members = yield EtcdCall("MemberList", message("MemberListRequest")())
    findings += _size([one for one in members.members if not one.isLearner], settings)
    header = members.header
    for index, address in enumerate(settings.members):
        try:
            status = yield EtcdCall("Status", message("StatusRequest")(), member=index)
        except StoreUnavailableError as error:
            findings.append(_absent(address, error))
            continue
        findings += _member(address, status)
        header = status.header
    alarms = yield EtcdCall("Alarm", message("AlarmRequest")())
    findings += _alarms(alarms.alarms)
    findings.append((yield from _compaction(header.revision, settings)))
    return findings


def _absent(address: str, error: StoreUnavailableError) -> Finding:
    if "another cluster" in str(error):
        return Finding("refuse", str(error.__cause__), "name the members of one cluster in the URL")
    return Finding("warn", f"{address} does not answer ({error})", "start it")


def _size(voters: list[Any], settings: Settings) -> Iterator[Finding]:
    count = len(voters)
    if count < 3:
        yield Finding(
            "warn",
            f"{count} voting member: when it is down, nothing runs; when its disk is lost, so are "
            "all records",
            "use a cluster of 3 or 5 members",
        )
    elif count % 2 == 0:
        yield Finding(
            "warn",
            f"{count} voting members tolerate no more failures than {count - 1}",
            "use an odd number",
        )
    else:
        yield Finding("ok", f"{count} voting members: {count // 2} may fail")
    if len(settings.members) < min(count, 3):
        yield Finding(
            "warn",
            f"the URL names {len(settings.members)} of {count} members: when they are down, this "
            "process cannot reach the others",
            "name at least 3 members in the URL",
        )


def _member(address: str, status: Any) -> Iterator[Finding]:
    version = status.version
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST:
        yield Finding("refuse", f"{address} runs etcd {version}", "etcd 3.4 or newer is needed")
    elif faults := list(_faults(version)):
        what = f"{address} runs etcd {version}, which {' and '.join(faults)}"
        yield Finding("warn", what, "update to 3.5.7 or newer")
    else:
        yield Finding("ok", f"{address} runs etcd {version}")
    if not status.leader:
        yield Finding("refuse", f"{address} has no leader", "start most of the members")
    if status.isLearner:
        yield Finding("refuse", f"{address} is a learner: it answers nothing", "promote it")
    quota = status.dbSizeQuota or QUOTA
    share = status.dbSize / quota
    what = f"{address}: {status.dbSize / 1024**2:.0f} MiB, {share:.0%} of its quota"
    if share >= 0.8:
        yield Finding("warn", what, "compact and defragment it, or raise --quota-backend-bytes")
    else:
        yield Finding("ok", what)


def _faults(version: str) -> Iterator[str]:
    release, _, patch = version.rpartition(".")
    for repaired, fault in FAULTS:
        if release == "3.5" and patch.isdigit() and int(patch) < repaired:
            yield fault


def _alarms(alarms: Any) -> Iterator[Finding]:
    for alarm in alarms:
        if alarm.alarm == NOSPACE:
            yield Finding(
                "refuse",
                "alarm NOSPACE: the cluster accepts no writes",
                "compact and defragment it, raise --quota-backend-bytes, then: etcdctl alarm disarm",
            )
        else:
            yield Finding(
                "refuse",
                f"alarm {alarm.alarm} of member {alarm.memberID:x}: its data is damaged",
                "replace that member",
            )


def _compaction(revision: int, settings: Settings) -> Program[Finding]:
    """etcd keeps every version of every key until it is compacted, and by default never compacts."""
    if revision <= UNCOMPACTED:
        return Finding("ok", f"revision {revision}: too early to tell whether it is compacted")
    key = f"{settings.prefix}/".encode()
    request = message("RangeRequest")(key=key, count_only=True, revision=1)
    try:
        yield EtcdCall("Range", request)
    except CompactedError:
        return Finding("ok", "old revisions are compacted")
    return Finding(
        "warn",
        f"{revision} revisions, and none was ever compacted: the database grows with every write",
        "start the members with --auto-compaction-retention=1h (or 5m for a busy store)",
    )
