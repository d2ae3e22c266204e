"""etcd: one transaction per operation, on the leases and the revisions of the cluster.

    etcd://user:password@host1:2379,host2:2379,host3:2379/prefix      etcds:// for TLS
    ?timeout=5&ca_certs=…&certfile=…&keyfile=…

    settings       the URL                              messages        etcd's API as a table
    programs       the requests: guess, compare, write  record_search   browse, survey and sweep
    record_layout  the keys and bytes of a record       leases          shared etcd leases
    routing        which member, how often              error_messages  what an error means
    store          threads                              wakeups         wakes waiters by watch
    async_store    event loops                          doctor          checks the cluster

The fence is the revision of the claim. etcd's leases decide when a claim and a retention are over; no clock of a
worker does. Why and at what price: docs/decisions/0028-etcd.md.
"""

from typing import Any

__all__ = ["AsyncEtcdStore", "EtcdStore"]


def __getattr__(name: str) -> Any:
    """Loaded on first use: the driver may be missing, which `open` reports."""
    if name == "EtcdStore":
        from .store import EtcdStore

        return EtcdStore
    if name == "AsyncEtcdStore":
        from .async_store import AsyncEtcdStore

        return AsyncEtcdStore
    raise AttributeError(name)
