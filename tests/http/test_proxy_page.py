"""The proxy's page: its command and its five lines of curl, run as written."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from tests.house.pages import blocks
from tests.house.repository import ROOT
from tests.http.test_proxy_processes import Proxy, Shop
from twicesafe._proxy import load

EXAMPLES = ROOT / "examples" / "proxy"
PAGE = ROOT / "docs" / "how-to" / "proxy.md"


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl here")
def test_five_lines_of_curl_show_the_whole_idea(tmp_path: Path, opened: ExitStack):
    found = [block.text for block in blocks(PAGE.read_text("utf-8"))]
    (command,) = [code for code in found if code.startswith("$ twicesafe proxy --upstream ")]
    (script,) = [code for code in found if code.startswith("pay=")]
    words = shlex.split(command.removeprefix("$ twicesafe proxy "))
    assert (words[0], words[2]) == ("--upstream", "--store")
    shop = opened.enter_context(closing(Shop(tmp_path, "python")))
    proxy = opened.enter_context(closing(Proxy(shop, tmp_path, *words[2:])))
    first, *lines = script.replace(
        "http://127.0.0.1:8080", proxy.greeting["listening"]
    ).splitlines()
    assert len(lines) == 5
    bodies = []
    for line in lines:
        done = subprocess.run(
            ["sh", "-c", f"{first}\n{line}"],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        head, _, body = done.stdout.replace("\r\n", "\n").partition("\n\n")
        said = line.rpartition("# ")[2]
        assert head.startswith(f"HTTP/1.1 {said[:3]} ")
        marked = "idempotent-replayed: true" in head.lower()
        assert marked == ("Idempotent-Replayed: true" in said)
        bodies.append(body)
    assert bodies[0] == bodies[1]
    assert shop.effects() == {"order-7": 2, "none": 1}
    assert (tmp_path / "keys.db").is_file()


def test_the_sample_settings_can_be_used():
    settings = load(EXAMPLES / "twicesafe.toml", environ={})
    assert settings.policy().required == ("POST /charges", "POST /refunds")
    assert settings.admin != settings.listen


def test_the_sample_container_sets_what_there_is(tmp_path: Path):
    text = (EXAMPLES / "Dockerfile").read_text()
    environ = dict(re.findall(r"(TWICESAFE_[A-Z_]+)=(\S+)", text))
    (tmp_path / "none.toml").touch()
    settings = load(tmp_path / "none.toml", environ=environ)
    assert settings.listen == "0.0.0.0:8080"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (wanted,) = re.findall(r'"twicesafe\[([a-z,]+)\]"', text)
    assert set(wanted.split(",")) <= set(extras)


def test_the_sample_unit_reloads_and_outlasts_the_grace():
    text = (EXAMPLES / "twicesafe-proxy.service").read_text()
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text
    (stop_seconds,) = re.findall(r"TimeoutStopSec=(\d+)", text)
    assert int(stop_seconds) > load(EXAMPLES / "twicesafe.toml", environ={}).grace + 5


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
def test_systemd_accepts_the_sample_unit(tmp_path: Path):
    """As far as it can be tried without an installation: the program is replaced by one that exists."""
    text = (EXAMPLES / "twicesafe-proxy.service").read_text()
    unit = tmp_path / "twicesafe-proxy.service"
    unit.write_text(text.replace("/opt/twicesafe/bin/twicesafe", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    told = [line for line in done.stderr.splitlines() if unit.name in line]
    assert (done.returncode, told) == (0, [])
    unit.write_text(unit.read_text().replace("KillMode=mixed", "KillMode=mixd"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert "mixd" in done.stderr  # it does look
