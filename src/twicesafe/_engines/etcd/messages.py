"""The part of etcd's API that this store uses, as a table of messages and a table of calls.

etcd speaks gRPC with messages of Protocol Buffers. Its own files describe ten times what is needed here,
and code that a compiler generates from them must match the installed version of protobuf. So the table
below lists our fields with their numbers, and protobuf makes classes out of it when the driver is loaded.
The classes are in a pool of our own: another etcd client in the process does not collide with them.
Enumerations are numbers, as on the wire.
"""

from __future__ import annotations

from typing import Any, Final

from ..._values.drivers import driver

with driver("google"):
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

__all__ = ["CALLS", "CREATE", "EQUAL", "MOD", "NOPUT", "STREAMS", "message"]

EQUAL: Final = 0
"""`Compare.result`."""
CREATE, MOD = 1, 2
"""`Compare.target`: the revision that created the key (0: there is no such key), or last changed it."""
NOPUT: Final = 0
"""`WatchCreateRequest.filters`: report only deletions."""

MESSAGES: Final = {
    "ResponseHeader": "1 uint64 cluster_id, 2 uint64 member_id, 3 int64 revision, 4 uint64 raft_term",
    "KeyValue": (
        "1 bytes key, 2 int64 create_revision, 3 int64 mod_revision, 4 int64 version, 5 bytes value, "
        "6 int64 lease"
    ),
    "RangeRequest": (
        "1 bytes key, 2 bytes range_end, 3 int64 limit, 4 int64 revision, 5 int32 sort_order, "
        "6 int32 sort_target, 8 bool keys_only, 9 bool count_only"
    ),
    "RangeResponse": "1 ResponseHeader header, 2 KeyValue* kvs, 3 bool more, 4 int64 count",
    "PutRequest": "1 bytes key, 2 bytes value, 3 int64 lease, 6 bool ignore_lease",
    "PutResponse": "1 ResponseHeader header",
    "DeleteRangeRequest": "1 bytes key, 2 bytes range_end",
    "DeleteRangeResponse": "1 ResponseHeader header, 2 int64 deleted",
    "RequestOp": (
        "1 RangeRequest request_range, 2 PutRequest request_put, "
        "3 DeleteRangeRequest request_delete_range"
    ),
    "ResponseOp": (
        "1 RangeResponse response_range, 2 PutResponse response_put, "
        "3 DeleteRangeResponse response_delete_range"
    ),
    # One of the last two is sent, also when it is 0: that is what the comparison is about.
    "Compare": (
        "1 int32 result, 2 int32 target, 3 bytes key, 5 int64? create_revision, "
        "6 int64? mod_revision"
    ),
    "TxnRequest": "1 Compare* compare, 2 RequestOp* success, 3 RequestOp* failure",
    "TxnResponse": "1 ResponseHeader header, 2 bool succeeded, 3 ResponseOp* responses",
    "LeaseGrantRequest": "1 int64 TTL, 2 int64 ID",
    "LeaseGrantResponse": "1 ResponseHeader header, 2 int64 ID, 3 int64 TTL, 4 string error",
    "LeaseRevokeRequest": "1 int64 ID",
    "LeaseRevokeResponse": "1 ResponseHeader header",
    "LeaseTimeToLiveRequest": "1 int64 ID, 2 bool keys",
    "LeaseTimeToLiveResponse": (
        "1 ResponseHeader header, 2 int64 ID, 3 int64 TTL, 4 int64 grantedTTL, 5 bytes* keys"
    ),
    "WatchCreateRequest": (
        "1 bytes key, 2 bytes range_end, 3 int64 start_revision, 5 int32* filters, 7 int64 watch_id"
    ),
    "WatchCancelRequest": "1 int64 watch_id",
    "WatchRequest": "1 WatchCreateRequest create_request, 2 WatchCancelRequest cancel_request",
    "Event": "1 int32 type, 2 KeyValue kv",
    "WatchResponse": (
        "1 ResponseHeader header, 2 int64 watch_id, 3 bool created, 4 bool canceled, "
        "5 int64 compact_revision, 6 string cancel_reason, 11 Event* events"
    ),
    "StatusRequest": "",
    "StatusResponse": (
        "1 ResponseHeader header, 2 string version, 3 int64 dbSize, 4 uint64 leader, "
        "8 string* errors, 9 int64 dbSizeInUse, 10 bool isLearner, 12 int64 dbSizeQuota"
    ),
    "AlarmRequest": "1 int32 action, 2 uint64 memberID, 3 int32 alarm",
    "AlarmMember": "1 uint64 memberID, 2 int32 alarm",
    "AlarmResponse": "1 ResponseHeader header, 2 AlarmMember* alarms",
    "MemberListRequest": "1 bool linearizable",
    "Member": "1 uint64 ID, 2 string name, 4 string* clientURLs, 5 bool isLearner",
    "MemberListResponse": "1 ResponseHeader header, 2 Member* members",
    "AuthenticateRequest": "1 string name, 2 string password",
    "AuthenticateResponse": "1 ResponseHeader header, 2 string token",
}

CALLS: Final = {
    "Range": ("/etcdserverpb.KV/Range", "RangeRequest", "RangeResponse"),
    "DeleteRange": ("/etcdserverpb.KV/DeleteRange", "DeleteRangeRequest", "DeleteRangeResponse"),
    "Txn": ("/etcdserverpb.KV/Txn", "TxnRequest", "TxnResponse"),
    "Transaction": ("/etcdserverpb.KV/Txn", None, "TxnResponse"),
    "LeaseGrant": ("/etcdserverpb.Lease/LeaseGrant", "LeaseGrantRequest", "LeaseGrantResponse"),
    "LeaseRevoke": ("/etcdserverpb.Lease/LeaseRevoke", "LeaseRevokeRequest", "LeaseRevokeResponse"),
    "LeaseTimeToLive": (
        "/etcdserverpb.Lease/LeaseTimeToLive",
        "LeaseTimeToLiveRequest",
        "LeaseTimeToLiveResponse",
    ),
    "Status": ("/etcdserverpb.Maintenance/Status", "StatusRequest", "StatusResponse"),
    "Alarm": ("/etcdserverpb.Maintenance/Alarm", "AlarmRequest", "AlarmResponse"),
    "MemberList": ("/etcdserverpb.Cluster/MemberList", "MemberListRequest", "MemberListResponse"),
    "Authenticate": (
        "/etcdserverpb.Auth/Authenticate",
        "AuthenticateRequest",
        "AuthenticateResponse",
    ),
}
"""The calls with one request and one reply: path, request, reply. None: the request is bytes
(`transaction_bytes`)."""

STREAMS: Final = {"Watch": ("/etcdserverpb.Watch/Watch", "WatchRequest", "WatchResponse")}

_PACKAGE: Final = "twicesafe.etcd"
_FIELD: Final = descriptor_pb2.FieldDescriptorProto


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="twicesafe/etcd", package=_PACKAGE, syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        described = file.message_type.add(name=name)
        for text in filter(None, fields.split(", ")):
            number, kind, label = text.split()
            field = described.field.add(name=label, number=int(number))
            field.label = _FIELD.LABEL_REPEATED if kind[-1] == "*" else _FIELD.LABEL_OPTIONAL
            if kind[-1] == "?":  # as a separate oneof, so that a 0 is sent
                field.oneof_index = len(described.oneof_decl)
                field.proto3_optional = True
                described.oneof_decl.add(name=f"_{label}")
            kind = kind.rstrip("*?")
            if kind in MESSAGES:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(_FIELD, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in MESSAGES
    }


_CLASSES: Final = _classes()


def message(name: str) -> Any:
    """The class of a message."""
    return _CLASSES[name]
