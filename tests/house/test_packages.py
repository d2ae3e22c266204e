"""The wheel and the source archive: built, installed and tried on every Python that is here.

``make test`` without ARGS brings what an installation needs, as wheels in ``.dev/wheels``, and notes
there which Pythons it found.
"""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest

from tests.house.repository import PACKAGE, ROOT, tracked_files

WHEELS = ROOT / ".dev" / "wheels"
VERSIONS = ["3.11", "3.12", "3.13", "3.14"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0, **settings: str) -> str:
    """What it wrote. No word on the error stream: a warning would be one."""
    outside = {name: text for name, text in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=outside | settings,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    if status == 0:
        assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout + done.stderr


def build(source: Path, into: Path) -> Path:
    run(
        *(sys.executable, "-W", "error", "-m", "hatchling", "build", "-d", into),
        cwd=source,
        SOURCE_DATE_EPOCH="1700000000",
    )
    return into


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, as they would be uploaded."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as opened:
        (name,) = (name for name in opened.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(opened.read(name))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path):
    ours = {path.relative_to(PACKAGE.parent).as_posix() for path in tracked_files()
            if path.is_relative_to(PACKAGE)}  # fmt: skip
    with zipfile.ZipFile(wheel) as opened:
        held = {name for name in opened.namelist() if ".dist-info/" not in name}
    assert held == ours


def test_the_archive_makes_the_same_wheel(built: Path, wheel: Path, tmp_path: Path):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extraction_filter = getattr(tarfile, "data_filter", None)  # not in Python 3.11.2
        opened.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    there = {path.name for path in source.iterdir()} - {"PKG-INFO", ".gitignore"}
    files = {"pyproject.toml", "hatch_build.py", "README.md", "LICENSE", "CHANGELOG.md"}
    assert there == files | {"src"}
    (again,) = build(source, tmp_path / "dist").glob("*.whl")
    assert again.read_bytes() == wheel.read_bytes()


def test_it_says_what_it_is(metadata: Message):
    assert metadata["Author"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().startswith("# twicesafe")  # type: ignore[union-attr]


def test_an_index_gets_no_link_that_leads_nowhere_there(metadata: Message):
    text = str(metadata.get_payload())
    targets = re.findall(r"\]\(([^)]+)\)", text)
    assert [
        target for target in targets if not target.startswith(("http://", "https://", "#"))
    ] == []
    assert "what we cannot promise" in text  # the words stay
    assert text.count("```") == (ROOT / "README.md").read_text("utf-8").count("```")


def test_links_lead_to_the_site_when_there_is_one():
    described = runpy.run_path(str(ROOT / "hatch_build.py"))["described"]
    readme = "[a](docs/how-to/keys.md#limits) [b](docs/index.md) ![c](docs/pictures/demo.svg) [d](LICENSE)"
    there = "https://docs.example"
    assert described(readme, there + "/") == (
        f"[a]({there}/how-to/keys/#limits) [b]({there}/) ![c]({there}/pictures/demo.svg) d"
    )
    assert described(readme) == "a b  d"


def test_its_classifiers_are_true(metadata: Message):
    """Systems and Pythons are named when they are tried; the lowest one is the one it asks for."""
    told = metadata.get_all("Classifier", [])
    systems = {each for each in told if each.startswith("Operating System ::")}
    assert systems == {"Operating System :: POSIX", "Operating System :: POSIX :: Linux"}
    pythons = [m[1] for each in told if (m := re.fullmatch(r".* Python :: (3\.\d+)", each))]
    assert pythons == VERSIONS[: len(pythons)]
    assert PROJECT["requires-python"] == f">={pythons[0]}"


TRY = """
import asyncio, sys, importlib.metadata as metadata
import twicesafe
from twicesafe import AsyncInbox, AsyncReceiver, Inbox, Outbox, Receiver

assert twicesafe.__version__ == metadata.version("twicesafe")
url = "sqlite:///" + sys.argv[1]
with Receiver.open(url) as receiver:
    assert receiver.process("tx-1", lambda: "paid").value == "paid"

async def again():
    async with AsyncReceiver.open(url) as receiver:
        return await receiver.process("tx-1", asyncio.sleep, 0)

outcome = asyncio.run(again())
assert outcome.replayed and outcome.value == "paid"
print(twicesafe.__file__)
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_it_is_installed_and_works(version: str, wheel: Path, tmp_path: Path):
    note = WHEELS / version
    if not note.exists():
        pytest.skip(
            f"no Python {version} with pip, or no wheels for it: `make test` looks for both"
        )
    python, home = note.read_text("utf-8").splitlines()[1], tmp_path / "environment"
    run(python, "-m", "venv", "--without-pip", home)
    own = home / "bin" / "python"
    needed = WHEELS.glob(f"*-cp{version.replace('.', '')}-*.whl")
    offline = ("--quiet", "--no-index", "--disable-pip-version-check")
    run(python, "-m", "pip", "--python", own, "install", *offline, wheel, *needed)
    told = run(own, "-W", "error", "-c", TRY, tmp_path / "keys.db")
    assert told.startswith(str(home))
    installed = Path(told.strip()).parent
    # What no test imports there must at least be free of syntax that this Python warns about.
    run(own, "-W", "error", "-m", "compileall", "-q", "-f", installed)
    assert "twicesafe[cli]" in run(home / "bin" / "twicesafe", "version", status=2)
