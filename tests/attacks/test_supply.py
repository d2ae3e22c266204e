"""D20, D22: nothing in the package runs text as code, every build is the same, and tokens stay inside."""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.cli.line import Line, line, receiver  # noqa: F401 - fixtures
from tests.house.repository import PACKAGE, ROOT
from twicesafe import ActiveClaim, Receiver, current_claim

CALLS = {"eval", "exec", "compile", "__import__"}
MODULES = {
    "pickle",
    "marshal",
    "shelve",
    "dill",
    "cloudpickle",
    "jsonpickle",
    "yaml",
    "ctypes",
    "cffi",
}


def dangers(tree: ast.AST) -> list[str]:
    """Calls and imports with which text or bytes could become code, by line."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            found.append(f"{node.lineno}: {node.func.id}()")
        names = (
            [alias.name for alias in node.names] if isinstance(node, ast.Import)
            else [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        )  # fmt: skip
        found += [f"{node.lineno}: {n}" for n in names if n.partition(".")[0] in MODULES]
        if isinstance(node, ast.keyword) and node.arg == "shell":
            found.append(f"{node.value.lineno}: shell=")
    return found


@pytest.mark.attack("D22", "D8")
def test_nothing_in_the_package_turns_data_into_code():
    found = {
        path.relative_to(PACKAGE).as_posix(): there
        for path in sorted(PACKAGE.rglob("*.py"))
        if (there := dangers(ast.parse(path.read_text("utf-8"))))
    }
    (place,) = found.pop(READS_YAML)
    assert place.endswith(": yaml")
    assert found == {}


READS_YAML = "configuration/_documents.py"
"""The settings file may be YAML; it is read as plain data only."""


@pytest.mark.attack("D22", "D8")
def test_yaml_is_read_as_plain_data():
    tree = ast.parse((PACKAGE / READS_YAML).read_text("utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "yaml"
    }
    calls = {name for name in used if not name.endswith(("Node", "Error"))}
    assert calls == {"compose", "safe_load", "SafeLoader"}


@pytest.mark.parametrize(
    "code", ["eval('1')", "import pickle", "from yaml import load", "run('x', shell=True)"]
)
def test_a_danger_is_seen(code: str):
    assert dangers(ast.parse(code))


@pytest.mark.attack("D22")
def test_installing_it_brings_one_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert [name.partition(">")[0] for name in project["dependencies"]] == ["msgspec"]


@pytest.mark.attack("D22")
def test_two_builds_are_the_same_to_the_byte(tmp_path: Path):
    sums = []
    for number in range(2):
        made = subprocess.run(
            [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path / str(number))],
            cwd=ROOT,
            env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000", "PYTHONHASHSEED": str(number)},
            capture_output=True,
            text=True,
            check=False,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        built = sorted((tmp_path / str(number)).iterdir(), key=lambda path: path.suffix)
        assert [path.suffix for path in built] == [".gz", ".whl"]
        sums.append([hashlib.sha256(path.read_bytes()).hexdigest() for path in built])
    assert sums[0] == sums[1]


@pytest.mark.attack("D20")
def test_an_owner_token_is_fresh_and_never_shown(line: Line, receiver: Receiver):  # noqa: F811
    """A secret that is never shown cannot be tried out byte by byte; and no sender ever presents one."""
    claims: list[ActiveClaim] = []

    def keep() -> None:
        claims.append(current_claim())

    for number in range(50):
        receiver.process(f"tx-{number}", keep)
    owners = {claim.owner for claim in claims}
    assert len(owners) == 50
    assert {len(owner) for owner in owners} == {16}
    shown = [
        repr(claims),
        repr(list(receiver.records())),
        line("keys", "list", "--all", "--json").out,
    ]
    shown += [line("keys", "show", f"tx-{number}", "--json").out for number in range(3)]
    for owner in owners:
        for text in (owner.hex(), repr(owner)[2:-1]):
            assert not any(text in page for page in shown)
