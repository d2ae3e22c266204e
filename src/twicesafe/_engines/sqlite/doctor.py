"""What `doctor` checks on a SQLite file: where it is, how it is written, and who may read it."""

from __future__ import annotations

import sqlite3

from ...stores._base import Finding
from ..sql.layouts import Layout, layout_findings
from .database_file import DatabaseFile

__all__ = ["findings"]


def findings(file: DatabaseFile, check: str, layout: Layout) -> list[Finding]:
    """``check``: what SQLite says about the integrity of the file."""
    kind = file.filesystem()
    remote = kind.startswith(("nfs", "cifs", "smb", "fuse.sshfs", "9p", "ceph", "glusterfs"))
    normal = file.synchronous == "normal"
    return [
        Finding("refuse", f"the file is on {kind}, where locks do not work", "use a local disk")
        if remote
        else Finding("ok", f"local file system ({kind or 'unknown'})"),
        Finding("warn", "synchronous=normal: a power cut can lose the last commits")
        if normal
        else Finding("ok", "WAL with synchronous=full"),
        Finding("ok" if check == "ok" else "refuse", f"integrity: {check}"),
        Finding("ok", "readable by its owner only")
        if file.is_private()
        else Finding(
            "warn",
            "other users of this machine may read the file, which holds results",
            f"chmod 600 {file.path}*, unless a process of another user needs it",
        ),
        Finding("ok", f"SQLite {sqlite3.sqlite_version}, schema {layout.version}"),
        *layout_findings(layout),
    ]
