"""What every test may rely on: a quiet machine, real servers, and a Hypothesis that repeats itself."""

from __future__ import annotations

import gc
import itertools
import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from twicesafe._values.context import active, scope_of_context

pytest_plugins = ["tests.servers.fixtures", "tests.maps.recording"]

# No test depends on how quick the machine is: neither by a deadline nor by a check of how long inputs take to make.
settings.register_profile(
    "default", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
# Repeatable: a red run in CI is red on a developer's machine too.
settings.register_profile("ci", parent=settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


# No test goes to the internet, and a driver that finds the authorities of the system reads all of them for
# each connection, which takes 30 ms: this one authority stands for them, here and in processes of tests.
for _variable in ("SSL_CERT_FILE", "AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"):
    os.environ[_variable] = str(Path(__file__).with_name("no_authority.pem"))

# What the caller's shell tells other programs, such as a proxy for HTTP or a profile of AWS, is not for the tests.
_OF_THE_CALLER = (
    "OTEL_",
    "PROMETHEUS_",
    "AWS_PROFILE",
    "AWS_ENDPOINT_URL",
    "DJANGO_SETTINGS_MODULE",
    "TWICESAFE_APT",
    "TWICESAFE_STORE_URL",
)
for _variable in [name for name in os.environ if name.startswith(_OF_THE_CALLER)]:
    del os.environ[_variable]
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """`-n auto`, as ``make test`` says: two processes per core, because tests mostly wait.

    Files and single tests run in one process: four processes would take longer to start than most
    files take to run. ``make test ARGS="tests/conformance/test_mysql.py -n 4"`` says otherwise.
    """
    named = [argument.partition("::")[0] for argument in config.args]
    if all(name.endswith(".py") for name in named) or config.option.collectonly:
        return 0
    return min(2 * cores(), 8)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected stays to the end: no collection of garbage needs to look at it, now or later."""
    gc.disable()
    found = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return found


SLOW = {"lab", "kill", "crash", "regions"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no process is left alone with it at the end of a run."""

    def rank(item: pytest.Item) -> int:
        limit = item.get_closest_marker("timeout")
        return 0 if limit and limit.args[0] > 300 else 1 if item.path.parent.name in SLOW else 2

    items.sort(key=rank)


@pytest.fixture
def ends_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch records all its ends in one round trip, however slow the machine is, so tests can count."""
    monkeypatch.setattr("twicesafe._core.batch.LINGER", 60)


_HOMES = itertools.count()


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the developer's own store, settings or data folder."""
    home = tmp_path_factory.getbasetemp() / "homes" / str(next(_HOMES))  # `mktemp` would count them
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_DATA_HOME", str(home / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "config"))
    monkeypatch.delenv("TWICESAFE_STORE_URL", raising=False)
    return home


def left_behind() -> dict[str, object]:
    """What later tests would notice: settings that decide whether a line of ours is logged, and a claim in
    the context, from which keys are derived."""
    ours = logging.getLogger("twicesafe")
    return {
        "lines disabled up to level": logging.root.manager.disable,
        "level of the root logger": logging.root.level,
        "level of our logger": ours.level,
        "our logger is disabled": ours.disabled,
        "our logger propagates": ours.propagate,
        "claim in the context": active.get(),
        "scope in the context": scope_of_context(),
    }


NOTHING_LEFT = left_behind()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """The test that leaves one of these behind fails, and not a later one."""
    try:
        return (yield)
    finally:
        left = left_behind()
        if left != NOTHING_LEFT:
            logging.disable(logging.NOTSET)
            logging.root.setLevel(logging.WARNING)
            ours = logging.getLogger("twicesafe")
            ours.setLevel(logging.NOTSET)
            ours.disabled, ours.propagate = False, True
            active.set(None)
            pytest.fail(f"this test, or a fixture that ended with it, left this behind: {left}")
