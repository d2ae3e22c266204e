"""Records what a person sees in a terminal: ``python docs/record.py``, then ``python docs/generate.py``.

The demo as its data, a session of an operator and one of ``twicesafe verify`` as the text that was printed, with its styles.
They go to docs/drawing/sources; the pictures are drawn from there, so that drawing needs no store and no half minute.
Times and numbers differ from run to run: record again when the screens have changed.
"""  # noqa: INP001 - a script beside what it records

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).parent / "drawing" / "sources"
WIDE = 96

TROUBLE = """
from twicesafe import Policy, Receiver

def broken():
    raise ConnectionError("no route to the bank")

with Receiver.open("sqlite:///keys.db", policy=Policy(max_attempts=1)) as receiver:
    for n in range(1, 4):
        receiver.process(f"tx-{n}", lambda: "paid")
    try:
        receiver.process("tx-4", broken)
    except ConnectionError:
        pass
    held = receiver.options(policy=Policy(takeover="hold"))
    with held.claim("tx-5") as claim:
        claim.hold("the bank did not answer")
"""
SHOP = """
ledger = []

def charge(order):
    ledger.append(order)
    return f"paid {order}"

def lines():
    return list(ledger)

def clear():
    ledger.clear()
"""
OPERATE = (
    "twicesafe doctor",
    "twicesafe stats",
    "twicesafe keys list",
    "twicesafe keys show tx-4",
    'twicesafe keys release tx-4 --by ana --why "the bank is back" --yes',
)
VERIFY = (
    r"""twicesafe verify shop:charge --input '"o-1"' --interleavings 0 \
    --snapshot shop:lines --setup shop:clear""",
)


def session(folder: Path, commands: tuple[str, ...]) -> str:
    """What the commands printed, each after its prompt."""
    environment = {
        **os.environ,
        "COLUMNS": str(WIDE),
        "FORCE_COLOR": "1",
        "PYTHONPATH": str(folder),
        "TWICESAFE_STORE_URL": "sqlite:///keys.db",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    shown = []
    for command in commands:
        done = subprocess.run(  # noqa: S602 - the commands are those above
            command,
            shell=True,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        shown.append(f"\x1b[2m$\x1b[0m \x1b[1m{command}\x1b[0m\n{done.stdout}{done.stderr}")
    return "\n".join(shown).replace(str(folder), "/srv/shop")


def main() -> None:
    demo = [sys.executable, "-m", "twicesafe", "demo", "--seed", "7", "--json"]
    recorded = subprocess.run(demo, capture_output=True, text=True, check=True).stdout  # noqa: S603
    (SOURCES / "demo.json").write_text(recorded, "utf-8")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "shop.py").write_text(SHOP, "utf-8")
        subprocess.run([sys.executable, "-c", TROUBLE], cwd=folder, check=True)  # noqa: S603
        (SOURCES / "operate.ansi").write_text(session(folder, OPERATE), "utf-8")
        (SOURCES / "verify.ansi").write_text(session(folder, VERIFY), "utf-8")


if __name__ == "__main__":
    main()
