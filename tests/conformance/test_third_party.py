"""The example of a store in its own package: it keeps every rule, and its URL is found."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import settings

from tests.house.repository import ROOT
from twicesafe import ConfigurationError

PACKAGE = ROOT / "examples" / "twicesafe-files"
sys.path.insert(0, str(PACKAGE))
try:
    from test_twicesafe_files import TestFiles, TestFilesModel  # noqa: F401 - collected here
    from twicesafe_files import AsyncFilesStore, FilesStore
finally:
    sys.path.remove(str(PACKAGE))

TestFilesModel.settings = settings(max_examples=20, stateful_step_count=20)

USE = """
import asyncio, sys
from twicesafe import AsyncReceiver, Receiver

url = "files://" + sys.argv[1]
with Receiver.open(url) as receiver:
    assert receiver.process("tx-1", lambda: "paid").value == "paid"

async def again():
    async with AsyncReceiver.open(url) as receiver:
        return await receiver.process("tx-1", asyncio.sleep, 0)

outcome = asyncio.run(again())
assert outcome.replayed and outcome.value == "paid"
print(type(receiver.store).__module__)
"""


def test_installed_its_scheme_is_found(tmp_path: Path):
    """Built as a user would build it, and unpacked where Python looks."""
    built = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=PACKAGE,
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    [wheel] = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE, str(tmp_path / "keys")],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.stdout.strip() == "twicesafe_files", ran.stderr


@pytest.mark.parametrize("cls", [FilesStore, AsyncFilesStore])
def test_a_url_that_names_no_folder_is_refused(cls: type):
    with pytest.raises(ConfigurationError, match="files:///"):
        cls.open("files://relative")
