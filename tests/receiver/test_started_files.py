"""The file that a program was started with: its functions have one key, however they are reached."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from twicesafe import Receiver

SHOP = """
import json
import multiprocessing
import sys

from twicesafe import MessageHandler, Receiver

receiver = Receiver.open("sqlite:///shop.db")


@receiver.idempotent(key="order")
def charge(order):
    print(json.dumps(f"charge in {__name__}"))


@receiver.durable(key=lambda order: order)
def ship(steps, order):
    print(json.dumps(f"ship in {__name__}"))


class Bill(MessageHandler):
    def key(self, message):
        return message

    def handle(self, message):
        print(json.dumps(f"bill in {__name__}"))


def work():
    charge("o-1")
    ship("o-1")
    Bill(receiver)("o-1")


if __name__ == "__main__":
    if sys.argv[1:]:
        process = multiprocessing.get_context(sys.argv[1]).Process(target=work)
        process.start()
        process.join()
    else:
        work()
"""

WAYS = {
    "imported": ["-c", "from shop import work; work()"],
    "started": ["shop.py"],
    "as a module": ["-m", "shop"],
    "spawned": ["shop.py", "spawn"],
    "spawned as a module": ["-m", "shop", "spawn"],
    "from a server": ["shop.py", "forkserver"],
}


def run(folder: Path, words: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("way", WAYS)
def test_a_function_has_one_key_however_its_file_is_reached(tmp_path: Path, way: str):
    """It ran again in processes that multiprocessing spawned, and where its file was imported."""
    (tmp_path / "shop.py").write_text(SHOP)
    effects = run(tmp_path, WAYS[way])
    assert [effect.split()[0] for effect in effects] == ["charge", "ship", "bill"]
    assert run(tmp_path, WAYS["imported"]) == []
    with Receiver.open(f"sqlite:///{tmp_path / 'shop.db'}") as receiver:
        scopes = {record.scope for record in receiver.records()}
    assert scopes == {("shop.charge",), ("shop.ship",), ("shop.Bill",)}


def test_two_files_share_no_keys(tmp_path: Path):
    """Both were `__main__`: the second one got the answers of the first."""
    for name in ("shop.py", "store.py"):
        (tmp_path / name).write_text(SHOP)
        assert len(run(tmp_path, [name])) == 3


def test_a_module_of_a_package_has_its_full_name(tmp_path: Path):
    (tmp_path / "eu").mkdir()
    (tmp_path / "eu" / "shop.py").write_text(SHOP)
    assert len(run(tmp_path, ["-m", "eu.shop"])) == 3
    assert run(tmp_path, ["-c", "from eu.shop import work; work()"]) == []


def test_what_is_typed_into_a_console_is_main(tmp_path: Path):
    asks = "from twicesafe import Receiver\nr = Receiver.open('memory://')\n"
    asks += "@r.idempotent()\ndef f(): pass\n\nprint(repr(f.__module__))\nf()\n"
    asks += "print(repr(next(iter(r.records())).scope))\n"
    done = subprocess.run(
        [sys.executable], input=asks, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["'__main__'", "('__main__.f',)"]
