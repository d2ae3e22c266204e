"""Sources behind TCP proxies, which can cut and refuse: for the suites of our own brokers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

import pytest

from lab.field.proxy import Fault, Proxy
from tests.servers import free_port
from twicesafe._core.consuming.source import ConsumerSettings, SourceProblem
from twicesafe.testing import SourceUnderTest
from twicesafe.testing._sources import BlockingSource

T = TypeVar("T")


class BehindProxies(SourceUnderTest):
    """Each source has its own proxy, which can cut and refuse."""

    port: int
    """The broker's."""

    @pytest.fixture(autouse=True)
    def _proxies(self, own_server: Callable[..., Any]) -> Iterator[None]:
        self.launch = own_server
        self.proxies: dict[int, Proxy] = {}
        with ExitStack() as self.stack:
            yield

    def through_proxy(self, open_: Callable[[int], T]) -> T:
        """Open a source at this port."""
        proxy = self.stack.enter_context(Proxy(self.port))
        source = open_(proxy.port)
        self.proxies[id(source)] = proxy
        return source

    def lose(self, source: Any) -> None:
        proxy = self.proxies[id(source)]
        proxy.behind = free_port()
        proxy.cut()

    def hang_up(self) -> None:
        for proxy in self.proxies.values():
            proxy.cut()

    def fault_in_reply(self, after: int) -> None:
        for proxy in self.proxies.values():
            proxy.arm(Fault("reply", after))

    @contextmanager
    def outage(self) -> Iterator[None]:
        for proxy in self.proxies.values():
            proxy.behind = free_port()
            proxy.cut()
        yield
        for proxy in self.proxies.values():
            proxy.behind = self.port


def problems(member: BlockingSource, consumer: ConsumerSettings) -> list[str]:
    found: Sequence[SourceProblem] = member.check(consumer)
    assert all(one.remedy for one in found)
    return [one.problem for one in found]
