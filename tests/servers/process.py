"""A real server as a child of the test run: started on a free port, stopped by its pid.

Nothing survives the run: servers that are still up when it ends are stopped, and if the run itself
is killed, `guard` does it. Servers sit in their own sessions, so that Ctrl-C reaches the tests
first and the servers in good order.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

START_TIMEOUT = 120.0  # RabbitMQ takes ten seconds, and a minute on a busy machine


class NoServerError(Exception):
    """This machine has no such server; the message says why and what to install."""

    optional = False
    """Its tests are skipped, also where all others must run (``CI=true``)."""


class NoOptionalServerError(NoServerError):
    optional = True


class PortTakenError(NoServerError):
    """Another process took the port between our look and the server's start."""


def freeze(pid: int) -> None:
    """SIGSTOP, until every thread has stopped: on a busy machine some still answer for a moment."""
    os.kill(pid, signal.SIGSTOP)
    until = time.monotonic() + 60
    while Path("/proc").exists() and time.monotonic() < until:
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        if all(fields_of(stat)[0] in "TZX" for stat in threads):
            return
        time.sleep(0.001)


def fields_of(stat: Path) -> list[str]:
    """State, parent, …; of a process that has ended: dead, without a parent."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


class Server:
    """One engine at one URL. `restart` and `kill` are for tests of what happens then."""

    name = "server"
    url: str

    def __init__(self) -> None:
        self.folder = new_folder(self.name)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def answers(self) -> bool:
        """Is it ready for clients? May raise whatever its driver raises."""
        raise NotImplementedError

    def prepare(self) -> None:
        """What must be done once, before the first start."""

    def start(self) -> None:
        assert not self.running, f"{self.name} is running already"
        log = (self.folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        _guard.tell(f"+{self.pid}")
        self._await_answer()

    def _await_answer(self) -> None:
        until = time.monotonic() + START_TIMEOUT
        why: Any = "no answer"
        while time.monotonic() < until:
            if not self.running:
                break
            try:
                if self.answers():
                    return
            except Exception as error:
                why = error
            time.sleep(0.02)
        self.kill()
        said = self.log()[-2000:]
        error = PortTakenError if "address already in use" in said.lower() else NoServerError
        raise error(f"{self.name} did not start ({why}):\n{said}")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def stop(self) -> None:
        """In good order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """As the out-of-memory killer would."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def pause(self) -> None:
        freeze(self.pid)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, kind: int) -> None:
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.poll() is None:
            process.send_signal(kind)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _guard.tell(f"-{process.pid}")

    def remove(self) -> None:
        """Stop it and drop its data."""
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def run(command: Sequence[str], cwd: Path) -> None:
    """A set-up program that must end well."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, timeout=60, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise NoServerError(f"{Path(command[0]).name} failed:\n{said[-2000:]}")


def find_program(*names: str, remedy: str) -> str:
    path = os.environ.get("PATH", "") + ":/usr/local/sbin:/usr/sbin:/sbin"
    for name in names:
        found = shutil.which(name, path=path)
        if found:
            return found
    raise NoServerError(f"no {names[0]} on this machine; {remedy}")


def free_port() -> int:
    """A port that no other run of tests is given while this process lives, and that refuses connections until
    a server listens there. It is below the range of outgoing connections, so that it stays ours while a
    server restarts."""
    chosen = random.SystemRandom()
    for _ in range(200):
        port = chosen.randrange(15000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                _ports.reserve(port)
            except OSError:
                continue
            return port
    raise NoServerError("no free port between 15000 and 32000")


class _Ports:
    """Byte N of a file that all runs of a user share is locked by the process that was given port N."""

    def __init__(self) -> None:
        self._pid = self._file = 0
        self._given: set[int] = set()

    def reserve(self, port: int) -> None:
        if self._pid != os.getpid():  # a forked child has none of the locks of its parent
            self._pid, self._given = os.getpid(), set()
            self._file = os.open(f"/tmp/twicesafe-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT)
        if port in self._given:
            raise OSError(f"port {port} was given already")
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        self._given.add(port)


_ports = _Ports()


def new_folder(name: str) -> Path:
    folder = Path(tempfile.mkdtemp(prefix=f"twicesafe-{name}-", dir=_temporary()))
    _guard.tell(f"@{folder}")
    return folder


def _temporary() -> str:
    return os.environ.get("TWICESAFE_TEST_DATA") or tempfile.gettempdir()


class _Guard:
    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0

    def tell(self, line: str) -> None:
        if self._process is None:
            self._pid = os.getpid()
            script = str(Path(__file__).with_name("guard.py"))
            self._process = subprocess.Popen(
                [sys.executable, "-S", "-E", script, str(self._pid)],
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        if os.getpid() == self._pid and self._process.stdin is not None:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """The run ended well: let it clean what is left, and wait for it."""
        if self._process is None or os.getpid() != self._pid:
            return
        process, self._process = self._process, None
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


_guard = _Guard()
_at_end: list[Callable[[], None]] = []


def at_end(act: Callable[[], None]) -> None:
    """Do this when the run ends (in this process, not in its forked children)."""
    if not _at_end:
        atexit.register(_finish, os.getpid())
    _at_end.append(act)


def _finish(pid: int) -> None:
    if os.getpid() != pid:
        return
    while _at_end:
        _at_end.pop()()
    _guard.dismiss()
