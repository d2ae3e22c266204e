"""Builds FerretDB from its Go module: ``python tests/servers/build_ferretdb.py FOLDER``. Standard library only.

The module must have the hash that is named here; its own go.sum pins what it needs. Four things are changed in the copy:

    version      the file that a release build writes
    atomicity    one command at a time. FerretDB 1.x reads a document and then writes it, so two conditional updates can both
                 succeed; MongoDB's updates of a document are atomic, and that is what the tests need
    connections  each update of a bulk gives back its connection to SQLite. FerretDB keeps all until the end, and has 100: a
                 larger bulk would wait for itself
    ids          found by their index, also if there are other conditions. FerretDB writes the expression in one way for the
                 index and in another for queries, so SQLite never uses it, and every command reads the whole collection
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = "github.com/FerretDB/FerretDB"
VERSION = "v1.24.2"
SUM = "h1:trrUU0LbmusMbyubhPS1IELncvrIwKrsRT2LW1UUWCw="

DISPATCH = "\tif cmd := c.h.Commands()[command]; cmd != nil && cmd.Handler != nil {\n"
LOCK = "\t\toneAtATime.Lock()\n\t\tdefer oneAtATime.Unlock()\n\n"
UPDATE = '\t\tresult, err := common.UpdateDocument(ctx, c, "update", iter, &u)\n'
ALONE = """\tif params.Filter.Len() == 1 {
\t\tv, _ := params.Filter.Get("_id")
\t\tswitch v.(type) {
\t\tcase string, types.ObjectID:
\t\t\twhereClause"""
QUERIED = """IDColumn = DefaultColumn + "->'$._id'"\n"""
INDEXED = """IDColumn = DefaultColumn + `->"_id"`\n"""
MUTEX = 'package clientconn\n\nimport "sync"\n\nvar oneAtATime sync.Mutex\n'


def build(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    source = folder / "source"
    told = subprocess.run(
        ["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    module = json.loads(told.stdout)
    if module["Sum"] != SUM:
        sys.exit(f"{MODULE}@{VERSION} has the hash {module['Sum']}, and not {SUM}")
    shutil.copytree(module["Dir"], source, copy_function=shutil.copyfile)
    for place, *_ in os.walk(source):  # Go makes its folders read-only
        Path(place).chmod(0o755)
    change(source)
    without = "-tags=ferretdb_no_postgresql"
    subprocess.run(
        ["go", "build", "-trimpath", without, "-o", str(folder / "built"), "./cmd/ferretdb"],
        cwd=source, check=True, env=os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"},
    )  # fmt: skip
    shutil.rmtree(source)
    (folder / "built").rename(folder / "ferretdb")


def change(source: Path) -> None:
    (source / "build" / "version" / "version.txt").write_text(f"{VERSION}\n")
    connection = source / "internal" / "clientconn" / "conn.go"
    replace(connection, DISPATCH, DISPATCH + LOCK)
    connection.with_name("one_at_a_time.go").write_text(MUTEX)
    sqlite = source / "internal" / "backends" / "sqlite"
    replace(sqlite / "collection.go", ALONE, ALONE.replace("== 1", ">= 1"))
    replace(sqlite / "metadata" / "metadata.go", QUERIED, INDEXED)
    updates = source / "internal" / "handler" / "msg_update.go"
    replace(updates, UPDATE, UPDATE + "\t\tcloser.Close()\n")


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1, "another FerretDB than the one that this was written for"
    file.write_text(text.replace(old, new))


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve())
