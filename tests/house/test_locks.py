"""The locks are what pyproject.toml asks for: every wish pinned, every pin hashed."""

from __future__ import annotations

import re
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
LOCKS = ["uv", "test", "runtime", "bench"]


def pins(lock: str) -> dict[str, set[str]]:
    text = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8")
    found: dict[str, set[str]] = {}
    for name, version in re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def wishes(lock: str) -> list[Requirement]:
    groups = PROJECT["dependency-groups"]
    named = [name for name in groups if name != "peers" or lock == "bench"]
    return [
        Requirement(wish)
        for wish in (
            *PROJECT["project"]["dependencies"],
            *PROJECT["project"]["optional-dependencies"]["cli"],
            *(wish for name in named for wish in groups[name]),
        )
    ]


@pytest.mark.parametrize("lock", ["test", "bench"])
def test_every_wish_is_pinned(lock: str):
    pinned = pins(lock)
    unmet = [
        str(wish)
        for wish in wishes(lock)
        if not any(wish.specifier.contains(v, prereleases=True)
                   for v in pinned.get(canonicalize_name(wish.name), ()))
    ]  # fmt: skip
    assert unmet == [], "run `make lock`"


def test_measuring_changes_no_pin_of_the_tests():
    tests, bench = pins("test"), pins("bench")
    assert {name: bench.get(name) for name in tests} == tests


def test_an_installation_brings_what_the_tests_ran_with():
    tests, runtime = pins("test"), pins("runtime")
    assert set(runtime) == {Requirement(wish).name for wish in PROJECT["project"]["dependencies"]}
    assert runtime == {name: tests[name] for name in runtime}


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_is_hashed_and_nothing_else_is_said(lock: str):
    text = (ROOT / "requirements" / f"{lock}.txt").read_text("utf-8")
    joined = re.sub(r" \\\n\s*", " ", text)
    for line in joined.splitlines():
        if line and not line.lstrip().startswith("#"):
            assert re.fullmatch(
                r"[a-z0-9._-]+==\S+( ; [^\\]+?)?( --hash=sha256:[0-9a-f]{64})+", line
            )


def test_the_installer_is_the_one_that_dev_names():
    named = re.search(r"^UV_VERSION=(\S+)$", (ROOT / "dev").read_text("utf-8"), re.MULTILINE)
    assert named
    assert pins("uv") == {"uv": {named[1]}}
