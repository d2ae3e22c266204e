"""The file of a SQLite store: it is its owner's, and no other file is taken for it."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twicesafe import (
    AsyncReceiver,
    ConfigurationError,
    Policy,
    Receiver,
    StoreError,
    StoreUnavailableError,
)
from twicesafe._engines.sqlite import SqliteStore, database_file
from twicesafe.stores._urls import default_url


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- removed or replaced while it is open -----------------------------------------------------------


@pytest.fixture(autouse=True)
def every_look(monkeypatch: pytest.MonkeyPatch):
    """Look at the file before every answer, not once a millisecond."""
    monkeypatch.setattr(database_file, "LOOK_EVERY", 0.0)


def test_a_look_holds_for_a_millisecond_and_not_for_a_new_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    now = 100.0
    monkeypatch.setattr(database_file, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(database_file, "LOOK_EVERY", 0.001)
    file = database_file.DatabaseFile(tmp_path / "keys.db", "normal", 5.0)
    file.connect().close()
    removed(tmp_path / "keys.db")
    file.check()
    with pytest.raises(StoreError, match="removed"):
        file.connect()
    with pytest.raises(StoreError, match="removed"):
        file.check()  # what is known to be gone is looked for at once
    replaced(tmp_path / "keys.db")
    now += 0.001
    with pytest.raises(StoreError, match="replaced"):
        file.check()


def replaced(path: Path) -> None:
    other = path.with_name("other.db")
    SqliteStore(other).close()
    os.replace(other, path)


def removed(path: Path) -> None:
    for file in path.parent.glob("keys.db*"):
        file.unlink()


def emptied(path: Path) -> None:
    removed(path)
    path.touch()


WAYS = pytest.mark.parametrize("change", [removed, replaced, emptied])


@WAYS
def test_no_key_runs_when_the_file_is_another(
    tmp_path: Path, change: Any, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "keys.db"
    runs: list[str] = []
    with Receiver.open(f"sqlite:///{path}") as receiver:
        assert receiver.process("before", lambda: runs.append("before")).attempt == 1
        change(path)
        with caplog.at_level(logging.ERROR, "twicesafe"):
            for key in ("before", "new", "new"):
                with pytest.raises(StoreError, match=r"while it was open.*start again") as caught:
                    receiver.process(key, lambda: runs.append("again"))
                assert not caught.value.retryable
        with pytest.raises(StoreError, match="while it was open"):
            receiver.record("before")
        with pytest.raises(StoreError, match="while it was open"):
            receiver.sweep()
        answers = receiver.process_many(["a", "b"], runs.append, key=str)
        assert all(isinstance(answer.error, StoreError) for answer in answers)
    assert runs == ["before"]
    assert caplog.text.count("while it was open") == 1  # told once, not at every call
    if change is removed:
        assert not path.exists()  # looking for it did not make it


@WAYS
def test_a_new_key_finds_another_file(tmp_path: Path, change: Any):
    """Its look finds no record, so nothing but the one statement of its claim can tell."""
    path = tmp_path / "keys.db"
    runs: list[str] = []
    with Receiver.open(f"sqlite:///{path}") as receiver:
        receiver.process("before", lambda: runs.append("before"))
        change(path)
        with pytest.raises(StoreError, match="while it was open"):
            receiver.process("new", lambda: runs.append("again"))
    assert runs == ["before"]


@WAYS
def test_the_same_on_an_event_loop(tmp_path: Path, change: Any):
    path = tmp_path / "keys.db"
    runs: list[str] = []

    async def handle() -> None:
        runs.append("ran")

    async def main() -> None:
        async with AsyncReceiver.open(f"sqlite:///{path}") as receiver:
            await receiver.process("before", handle)
            change(path)
            with pytest.raises(StoreError, match="while it was open"):
                await receiver.process("new", handle)

    asyncio.run(main())
    assert runs == ["ran"]


def test_a_handler_that_runs_meanwhile_learns_that_nothing_was_recorded(tmp_path: Path):
    path = tmp_path / "keys.db"
    policy = Policy(lease=3)  # a recording is retried until the lease ends
    with (
        Receiver.open(f"sqlite:///{path}", policy=policy) as receiver,
        pytest.raises(StoreError, match="while it was open"),
    ):
        receiver.process("k", lambda: replaced(path))


def test_a_file_that_comes_back_is_served_again(tmp_path: Path):
    path, aside = tmp_path / "keys.db", tmp_path / "aside.db"
    with Receiver.open(f"sqlite:///{path}") as receiver:
        receiver.process("k", lambda: 1)
        path.rename(aside)
        with pytest.raises(StoreError, match="removed"):
            receiver.process("k", lambda: 2)
        aside.rename(path)
        assert receiver.process("k", lambda: 3).value == 1


def test_a_copy_that_is_put_in_place_is_another_file(tmp_path: Path):
    path, copy = tmp_path / "keys.db", tmp_path / "copy.db"
    with Receiver.open(f"sqlite:///{path}") as receiver:
        receiver.process("k", lambda: 1)
        shutil.copy(path, copy)
        os.replace(copy, path)
        with pytest.raises(StoreError, match="replaced"):
            receiver.process("k", lambda: 2)


@pytest.mark.parametrize("change", ["folder moved", "link changed"])
def test_another_file_at_the_same_path_is_noticed_although_ours_did_not_change(
    tmp_path: Path, change: str
):
    """As in a deployment that switches ``current -> releases/2`` while old workers still run."""
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    here = tmp_path / "current"
    here.symlink_to("one")
    runs: list[str] = []
    with Receiver.open(f"sqlite:///{here / 'keys.db'}") as old:
        for _ in range(2):
            old.process("warm", lambda: None)
        if change == "folder moved":
            (tmp_path / "one").rename(tmp_path / "three")
            (tmp_path / "one").mkdir()
        else:
            here.unlink()
            here.symlink_to("two")
        with Receiver.open(f"sqlite:///{here / 'keys.db'}") as new:
            new.process("k", lambda: runs.append("new"))
        with pytest.raises(StoreError, match="replaced"):
            old.process("k", lambda: runs.append("old"))
    assert runs == ["new"]


def test_a_child_that_closes_every_descriptor_goes_on(tmp_path: Path):
    """Daemons do that after a fork: no check may need a descriptor."""
    code = (
        "import os, sys\n"
        "from twicesafe import Receiver\n"
        "receiver = Receiver.open(sys.argv[1])\n"
        "receiver.process('k', lambda: 1)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.closerange(3, 1024)\n"
        "    print(receiver.process('k', lambda: 2).value, receiver.process('l', lambda: 3).value)\n"
        "    sys.stdout.flush()\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
    )
    command = [sys.executable, "-c", code, f"sqlite:///{tmp_path / 'keys.db'}"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert told.stdout == "1 3\n", told.stderr


def test_a_descriptor_whose_number_is_used_again_is_not_closed(tmp_path: Path):
    """A forked worker that closed what it inherited lost a file of its own when the store was freed."""
    path = tmp_path / "keys.db"
    path.touch()
    found = path.stat()
    identity = found.st_ino, found.st_dev
    others = [os.open(path, os.O_RDONLY), os.open(tmp_path, os.O_RDONLY)]
    ours = os.open(path, os.O_PATH)
    try:
        for descriptor in others:
            database_file._close(descriptor, identity)
            os.fstat(descriptor)  # still open
        database_file._close(ours, identity)
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(ours)
        database_file._close(ours, identity)  # it is closed already: nothing happens
    finally:
        for descriptor in others:
            os.close(descriptor)


# --- who may read it ------------------------------------------------------------------------------------


def test_new_files_are_their_owners_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        with Receiver.open(f"sqlite:///{tmp_path / 'keys.db'}") as receiver:
            receiver.process("k", lambda: "secret")
            found = {file.name: mode_of(file) for file in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert found == {"keys.db": 0o600, "keys.db-wal": 0o600, "keys.db-shm": 0o600}


def test_a_file_that_is_there_keeps_its_mode_and_the_doctor_warns(tmp_path: Path):
    path = tmp_path / "keys.db"
    path.touch()
    path.chmod(0o664)
    with Receiver.open(f"sqlite:///{path}") as receiver:
        receiver.process("k", lambda: "secret")
        assert mode_of(path) == 0o664
        warnings = [finding for finding in receiver.doctor() if finding.level == "warn"]
        assert "other users" in warnings[0].what
        assert "chmod 600" in warnings[0].remedy
        path.chmod(0o600)
        assert not [finding for finding in receiver.doctor() if finding.level == "warn"]


def test_a_link_to_a_file_that_is_not_there_makes_a_private_one(tmp_path: Path):
    path = tmp_path / "link.db"
    path.symlink_to(tmp_path / "target.db")
    Receiver.open(f"sqlite:///{path}").close()
    assert mode_of(tmp_path / "target.db") == 0o600


def test_the_folder_of_the_default_store_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = Path(default_url().removeprefix("sqlite:///"))
    assert mode_of(path.parent) == 0o700


# --- an empty URL --------------------------------------------------------------------------------------


def test_an_empty_url_is_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    for kind in (Receiver, AsyncReceiver):
        with pytest.raises(ConfigurationError, match=r"URL is empty.*variable set"):
            kind.open("")
    assert list(tmp_path.iterdir()) == []
    Receiver.open(None).close()
    assert (tmp_path / "twicesafe" / "twicesafe.db").exists()


# --- forks ----------------------------------------------------------------------------------------------

FORKING = """
import os, sys, threading, time
from twicesafe import Receiver

receiver = Receiver.open(f"sqlite:///{sys.argv[1]}?timeout=3")
stop = threading.Event()

def work(name):
    number = 0
    while not stop.is_set():
        number += 1
        receiver.process(f"{name}-{number}", lambda: "x" * 3000)
        receiver.process(f"{name}-{number}", lambda: "y")

threads = [threading.Thread(target=work, args=(name,)) for name in "abc"]
for thread in threads:
    thread.start()
bad = 0
for turn in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        try:
            receiver.process(f"child-{turn}", lambda: "done")
            again = receiver.process(f"child-{turn}", lambda: "twice").value
            os._exit(0 if again == "done" else 3)
        except BaseException as error:
            sys.stderr.write(f"{turn}: {error!r}\\n")
            os._exit(1)
    bad += os.waitpid(child, 0)[1] != 0
stop.set()
for thread in threads:
    thread.join()
states = receiver.stats().by_state
receiver.close()
print(bad, sum(states.values()) > 10, list(states))
"""


def test_a_child_that_is_forked_while_threads_write_is_not_locked_out(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "keys.db"), "20"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.stdout.split(" ", 1)[0], done.returncode) == ("0", 0), done.stderr[-2000:]
    assert "True" in done.stdout


def test_nothing_is_open_while_a_process_forks(tmp_path: Path):
    """SQLite counts its locks per process: a connection that is open is a lock that a child inherits."""
    with Receiver.open(f"sqlite:///{tmp_path / 'keys.db'}") as receiver:
        receiver.process("k", lambda: 1)
        store: Any = receiver.store
        assert store._writer is not None
        store._before_fork()
        assert (store._writer, list(store._idle_readers)) == (None, [])
        store._after_fork_in_parent()
        assert receiver.process("k", lambda: 2).value == 1


@pytest.mark.parametrize("error", [PermissionError(13, "denied"), OSError(36, "too long")])
def test_a_path_that_cannot_be_looked_at_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError
):
    """A folder that this user may not enter, or a name that is too long: it was a bare OSError."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr("os.stat", refuse)
    with pytest.raises(StoreUnavailableError, match=r"cannot (open|look at) .*keys\.db"):
        Receiver.open(f"sqlite:///{tmp_path}/keys.db")
