"""The files of a release: the bill of materials, the sums, and the checks that must refuse."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from email.message import Message
from pathlib import Path
from types import SimpleNamespace

import pytest
from release import building, checks, sbom

from tests.house.repository import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


@pytest.mark.attack("D22")
def test_the_bill_of_materials_names_everything_that_can_be_installed(tmp_path: Path):
    wheel = tmp_path / "twicesafe-1.whl"
    wheel.write_bytes(b"wheel")
    found = sbom.packages(PROJECT)
    made = sbom.document(PROJECT, "0.1.0", found, [wheel], 1_700_000_000)
    again = sbom.document(PROJECT, "0.1.0", sbom.packages(PROJECT), [wheel], 1_700_000_000)
    assert json.dumps(made) == json.dumps(again)
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", made["serialNumber"])
    assert made["metadata"]["timestamp"] == "2023-11-14T22:13:20+00:00"
    refs = [component["bom-ref"] for component in made["components"]]
    assert len(refs) == len(set(refs))
    assert {ref for one in made["dependencies"] for ref in one["dependsOn"]} <= set(refs)
    scopes = {c["name"]: c.get("scope") for c in made["components"]}
    assert [name for name, scope in scopes.items() if scope == "required"] == ["msgspec"]
    direct = {
        re.split(r"[\[>=<]", line)[0].lower()
        for lines in PROJECT["optional-dependencies"].values()
        for line in lines
    }
    assert direct <= set(scopes)
    assert made["components"][0]["hashes"][0]["content"] == building.digest(wheel)


def test_every_dependency_states_its_licence():
    assert all(package.licence != sbom.UNKNOWN for package in sbom.packages(PROJECT))


@pytest.mark.parametrize(
    "lines, files, licence",
    [
        ([("License-Expression", "MIT"), ("License", "other")], [], "MIT"),
        ([("Classifier", "License :: OSI Approved :: BSD License")], [], "BSD License"),
        ([("License", "Apache 2.0")], [], "Apache 2.0"),
        ([("License", "a\nwhole\ntext")], [("LICENSE", "\n MIT License\n\nPermission…")], "MIT License"),
        ([], [("README", "MIT")], sbom.UNKNOWN),
    ],
)  # fmt: skip
def test_where_a_licence_is_found(lines, files, licence):
    metadata = Message()
    for name, value in lines:
        metadata[name] = value
    listed = [SimpleNamespace(name=n, read_text=lambda _, text=text: text) for n, text in files]
    found = sbom.licence_of(SimpleNamespace(metadata=metadata, files=listed))
    assert found == licence


def test_the_sums_are_read_by_the_usual_tool(tmp_path: Path):
    (tmp_path / "a.whl").write_bytes(b"a")
    building.write_sums(tmp_path)
    subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=tmp_path, check=True)


# --- the checks ----------------------------------------------------------------------------------


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "src/twicesafe").mkdir(parents=True)
    (tmp_path / "src/twicesafe/_version.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "src/twicesafe/__init__.py").write_text('__all__ = ["a"]\na = 1\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.0] - 2026-11-17\n")
    commit(tmp_path, "init")
    return tmp_path


def commit(root: Path, *words: str) -> None:
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "commit.gpgsign=false"]
    if words == ("init",):
        subprocess.run(["git", "init", "-q", root], check=True)
    subprocess.run(["git", "-C", root, "add", "-A"], check=True)
    subprocess.run(["git", "-C", root, *who, "commit", "-qm", "x"], check=True)


def test_version_and_changelog_must_agree(repository: Path):
    assert checks.check_version(repository, repository) == "1.2.0, 2026-11-17"
    for text, why in (
        ("## [1.1.0] - 2026-11-17", r"must be \[1.2.0\]"),
        ("## [1.2.0] - unreleased", "needs the date"),
        ("", "first version"),
    ):
        (repository / "CHANGELOG.md").write_text(text + "\n")
        with pytest.raises(checks.FailedCheckError, match=why):
            checks.check_version(repository, repository)


def test_a_version_is_tagged_once(repository: Path):
    subprocess.run(["git", "-C", repository, "tag", "v1.2.0"], check=True)
    with pytest.raises(checks.FailedCheckError, match=r"a tag v1\.2\.0 already"):
        checks.check_version(repository, repository)


def test_what_is_released_is_committed(repository: Path):
    checks.check_clean(repository, repository)
    (repository / "new").write_text("x")
    with pytest.raises(
        checks.FailedCheckError, match=r"1 files are not committed, such as \?\? new"
    ):
        checks.check_clean(repository, repository)


def test_the_version_must_grow_as_the_api_asks(repository: Path):
    assert "no tag to compare" in checks.check_api(repository, repository)
    subprocess.run(["git", "-C", repository, "tag", "v1.1.0"], check=True)
    assert "0 changes since v1.1.0" in checks.check_api(repository, repository)
    package = repository / "src/twicesafe/__init__.py"
    package.write_text('__all__ = ["a", "b"]\na = b = 1\n')
    assert "twicesafe.b is new" in checks.check_api(repository, repository)
    package.write_text('__all__ = ["b"]\nb = 1\n')
    with pytest.raises(checks.FailedCheckError, match=r"asks for 2\.0\.0 \(major\), not 1\.2\.0"):
        checks.check_api(repository, repository)


@pytest.mark.parametrize("fine", [True, False])
def test_the_pages_are_checked_by_their_own_test(repository: Path, fine: bool):
    """With our own settings of pytest: an option that they do not allow would fail every release."""
    (repository / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text("utf-8"))
    house = repository / "tests" / "house"
    house.mkdir(parents=True)
    (house / "test_reference.py").write_text(f"def test_it():\n    assert {fine}\n")
    if fine:
        assert "is that of the code" in checks.check_pages(repository, repository)
    else:
        with pytest.raises(checks.FailedCheckError, match="1 failed"):
            checks.check_pages(repository, repository)


def test_one_failed_check_is_enough(monkeypatch, capsys, tmp_path: Path):
    def fails(*_):
        raise checks.FailedCheckError("because")

    monkeypatch.setattr(checks, "CHECKS", {"good": lambda *_: "fine", "bad": fails})
    assert checks.run(tmp_path, tmp_path) == 1
    assert capsys.readouterr().out == "✓ good      fine\n✗ bad       because\nnot ready\n"
