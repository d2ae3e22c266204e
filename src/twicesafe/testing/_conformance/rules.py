"""Turns a rule of the protocol into a pytest test, for blocking and async stores.

    class Leases(StoreRules):
        @rule("P2")
        def test_a_retry_gets_the_same_fence(self) -> Script[None]:
            first = yield claim(A)
            assert (yield claim(A)) == first

`rule` names the protocol rules that the test covers and the capability that it needs; a store without it
is skipped, with the reason. It also says whether the test needs a clock that can be set, a way to damage a
record, or a payload that the store refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from inspect import Parameter, Signature
from pathlib import Path
from typing import Any, ClassVar

import pytest

from ..._values.records import Cause
from ...stores._base import Capabilities
from .bench import AsyncBench, Bench, Script, open_bench
from .hooks import StoreUnderTest

__all__ = ["Rule", "StoreRules", "rule", "rules_of"]


@dataclass(frozen=True, slots=True)
class Rule:
    """What we know about a test without running it."""

    name: str
    protocol: tuple[str, ...]
    needs: str
    exact_time: bool
    damages: bool
    refuses: bool
    cases: Mapping[str, Any] = field(default_factory=dict)

    def reason_to_skip(self, hooks: StoreUnderTest, capabilities: Capabilities) -> str:
        """Why this rule does not apply to this store; empty if it does."""
        if self.needs and not getattr(capabilities, self.needs):
            return f"the store declares {self.needs}=False"
        if self.exact_time and hooks.real_clock:
            return "the store's clock cannot be set (real_clock), so no time is exact to the millisecond"
        if self.damages and type(hooks).corrupt is StoreUnderTest.corrupt:
            return "the store's hooks do not implement corrupt"
        if self.refuses and type(hooks).refuse is StoreUnderTest.refuse:
            return "the store's hooks do not implement refuse"
        return ""


class StoreRules(StoreUnderTest):
    """The base class of every topic. Times are short, because a real clock must wait for them."""

    tick: ClassVar[int] = 50
    """Milliseconds of a lease, a back-off or a retention that expires within a test."""

    capabilities: Capabilities
    """The capabilities of the store under test; set before a rule runs."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "bench" in metafunc.fixturenames:
            metafunc.parametrize("bench", self.modes, indirect=True)

    @pytest.fixture
    def bench(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench | AsyncBench]:
        with open_bench(self, request.param, tmp_path) as bench:
            yield bench

    def near(self, measured: int, expected: int) -> bool:
        """Equal on a `FakeClock`; about equal on a real clock."""
        return abs(measured - expected) <= (2000 if self.real_clock else 0)

    def after_expiry(self, cause: Cause) -> tuple[Cause | None, ...]:
        """Causes that a start after the end of retention may have (P12).

        If the engine itself deleted the record, the cause is unknown.
        """
        return (cause, None) if self.capabilities.native_expiry else (cause,)


def rule(
    *protocol: str,
    needs: str = "",
    exact_time: bool = False,
    damages: bool = False,
    refuses: bool = False,
    cases: Mapping[str, Any] | None = None,
) -> Callable[[Callable[..., Script[None]]], Callable[..., None]]:
    """Turns a generator method into a test. With `cases`, the test runs once for each of them."""

    def make(script: Callable[..., Script[None]]) -> Callable[..., None]:
        about = Rule(script.__name__, protocol, needs, exact_time, damages, refuses, cases or {})

        def test(self: StoreRules, bench: Bench | AsyncBench, **case: Any) -> None:
            __tracebackhide__ = True
            reason = about.reason_to_skip(self, bench.capabilities)
            if reason:
                pytest.skip(reason)
            self.capabilities = bench.capabilities
            bench.run(script(self, **case))

        test.__name__, test.__qualname__ = script.__name__, script.__qualname__
        test.__doc__, test.__module__ = script.__doc__, script.__module__
        test.rule = about  # type: ignore[attr-defined]
        names = ["self", "bench", *(["case"] if cases else [])]
        test.__signature__ = Signature(  # type: ignore[attr-defined]
            [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in names]
        )
        if cases:
            pytest.mark.parametrize("case", list(cases.values()), ids=list(cases))(test)
        return test

    return make


def rules_of(suite: type[StoreRules]) -> dict[str, Rule]:
    """Every rule of a suite, by the name of its test."""
    found = ((name, getattr(suite, name)) for name in dir(suite) if name.startswith("test_"))
    return {name: test.rule for name, test in found if hasattr(test, "rule")}
