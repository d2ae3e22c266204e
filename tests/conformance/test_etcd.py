"""etcd keeps every rule, blocking and async."""

from __future__ import annotations

import pytest

from tests.conformance.etcd_time import Etcd
from tests.conformance.selections import Awaited
from twicesafe.testing import StoreConformance


@pytest.mark.usefixtures("etcd")
class TestEtcd(Etcd, StoreConformance):
    modes = ("blocking",)


@pytest.mark.usefixtures("etcd")
class TestEtcdAsync(Etcd, Awaited):
    pass
