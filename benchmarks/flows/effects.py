"""The effects of a flow: a line per step, on disk before it answers. It imports no peer."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

__all__ = ["STEPS", "effect", "effects_of"]

STEPS = 5


def effect(folder: str, flow: str, step: int) -> str:
    """Do the work of a step. The flow ``dying`` kills its worker once, after the effect of step 3."""
    file = os.open(Path(folder) / "effects", os.O_APPEND | os.O_CREAT | os.O_WRONLY, 0o600)
    os.write(file, f"{flow} {step}\n".encode())
    os.fsync(file)
    os.close(file)
    mark = Path(folder) / "killed"
    if flow == "dying" and step == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{flow}-{step}"


def effects_of(folder: Path, flow: str) -> Counter[int]:
    """How often each step of a flow had its effect."""
    lines = (folder / "effects").read_text().splitlines()
    return Counter(int(line.split()[1]) for line in lines if line.split()[0] == flow)
