"""etcd: one transaction per operation, on the leases and the revisions of the cluster.

    etcd://user:password@host1:2379,host2:2379,host3:2379/prefix      etcds:// for TLS
    ?timeout=5&ca_certs=…&certfile=…&keyfile=…

    settings          the URL                           messages        etcd's API as a table
    programs          the requests about one record     leases          etcd leases that claims share
    sweep_and_search  the requests about many records   error_messages  what an error means
    record_layout     the keys and bytes of a record    wakeups         wakes waiters by watch
    routing           which member, how often           doctor          checks the cluster
    store             threads                           async_store     event loops
    transaction_bytes transactions on the wire

The fence is the revision of the claim. etcd's leases decide when a claim and a retention end. The clock of a
worker decides nothing. docs/decisions/0028-etcd.md says why, and what it costs.
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
