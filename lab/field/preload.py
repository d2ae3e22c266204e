"""Libraries of ours that a process is started with: this folder's C files, compiled where they are used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.servers import NoServerError

__all__ = ["compiled"]


def compiled(name: str, folder: Path) -> Path:
    """``name.c`` as a library in this folder, for LD_PRELOAD."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoServerError("no C compiler on this machine; apt install gcc libc6-dev")
    source, library = Path(__file__).with_name(f"{name}.c"), folder / f"{name}.so"
    words = [compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(source)]
    subprocess.run(words, check=True, timeout=60)
    return library
