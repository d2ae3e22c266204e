"""The process around the receiver: its end, its forks, and what an unclosed receiver leaves behind."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from tests.polling import until
from twicesafe import AsyncReceiver, Receiver

URLS = pytest.mark.parametrize("scheme", ["memory", "sqlite"])


def url_of(scheme: str, folder: Path) -> str:
    return "memory://" if scheme == "memory" else f"sqlite:///{folder / 'life.db'}"


def run(program: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program), *args],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@URLS
def test_interpreter_exit_with_a_live_keeper(scheme: str, tmp_path: Path) -> None:
    """Unclosed, in the middle of a handler of another thread: quick, and not a word on stderr."""
    done = run(
        """
        import sys, threading, twicesafe
        receiver = twicesafe.Receiver.open(sys.argv[1], policy=twicesafe.Policy(lease=0.2))
        inside = threading.Event()
        def hang():
            inside.set()
            threading.Event().wait()
        threading.Thread(target=receiver.process, args=("k", hang), daemon=True).start()
        inside.wait()
        print(receiver.process("other", int).value)
        """,
        url_of(scheme, tmp_path),
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0")
    assert "Traceback" not in done.stderr


@URLS
def test_interpreter_exit_with_an_unclosed_async_receiver(scheme: str, tmp_path: Path) -> None:
    done = run(
        """
        import asyncio, sys, twicesafe
        receiver = twicesafe.AsyncReceiver.open(sys.argv[1])
        async def one(): return 1
        print(asyncio.run(receiver.process("k", one)).value)
        """,
        url_of(scheme, tmp_path),
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1")
    assert "Traceback" not in done.stderr


@URLS
def test_an_unclosed_receiver_leaks_no_thread(scheme: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())

    def use() -> None:
        receiver = Receiver.open(url_of(scheme, tmp_path))
        receiver.process("k", int)
        assert set(threading.enumerate()) - before
        if scheme == "sqlite":
            receiver.store.close()  # connections are the caller's to close; threads are not

    use()
    gc.collect()
    until(lambda: not set(threading.enumerate()) - before)


@URLS
async def test_an_unclosed_async_receiver_leaks_no_thread(scheme: str, tmp_path: Path) -> None:
    before = set(threading.enumerate())

    async def one() -> int:
        return 1

    async def use() -> None:
        receiver = AsyncReceiver.open(url_of(scheme, tmp_path))
        await receiver.process("k", one)
        assert set(threading.enumerate()) - before
        if scheme == "sqlite":
            receiver.store.blocking_store().close()  # type: ignore[attr-defined]

    await use()
    gc.collect()
    until(lambda: not set(threading.enumerate()) - before)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@URLS
def test_a_fork_inside_a_handler_leaves_the_claim_to_the_parent(
    scheme: str, tmp_path: Path
) -> None:
    done = run(
        """
        import os, sys, warnings, twicesafe
        warnings.simplefilter("ignore")
        receiver = twicesafe.Receiver.open(sys.argv[1])
        child = None
        def work():
            global child
            child = os.fork()
            return "child" if child == 0 else "parent"
        try:
            value = receiver.process("k", work).value
        except twicesafe.LeaseLostError:
            os._exit(17 if child == 0 else 1)
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(2)
        if child == 0:
            os._exit(3)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        again = receiver.process("k", work)
        print(code, value, again.value, again.replayed)
        """,
        url_of(scheme, tmp_path),
    )
    assert done.stdout.split() == ["17", "parent", "parent", "True"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_inside_a_handler_of_a_batch_leaves_the_claim_to_the_parent(tmp_path: Path) -> None:
    """The child recorded the parent's attempt as failed, so the work ran again."""
    done = run(
        """
        import os, sys, warnings, twicesafe
        warnings.simplefilter("ignore")
        receiver = twicesafe.Receiver.open(sys.argv[1])
        child = None
        def work(message):
            global child
            child = os.fork()
            if child:
                print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return "child" if child == 0 else "parent"
        try:
            (outcome,) = receiver.process_many(["k"], work, key=str)
        except twicesafe.LeaseLostError:
            os._exit(17 if child == 0 else 1)
        if child == 0:
            os._exit(3)
        print(outcome.value, receiver.record("k").state)
        """,
        url_of("sqlite", tmp_path),
    )
    assert done.stdout.split() == ["17", "parent", "completed"], done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_owners_connections_and_keeper_of_its_own(tmp_path: Path) -> None:
    done = run(
        """
        import os, sys, threading, time, warnings, twicesafe
        warnings.simplefilter("ignore")
        receiver = twicesafe.Receiver.open(sys.argv[1], policy=twicesafe.Policy(lease=0.3))
        def slow():
            time.sleep(0.5)
            return os.getpid()
        receiver.process("before", int)
        children = []
        for n in range(3):
            child = os.fork()
            if child == 0:
                value = receiver.process("k", slow).value
                os._exit(0 if receiver.process("k", slow).value == value else 1)
            children.append(child)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        outcome = receiver.process("k", slow)
        print(codes, outcome.value in children, outcome.replayed, outcome.attempt)
        """,
        url_of("sqlite", tmp_path),
    )
    assert done.stdout.strip() == "[0, 0, 0] True True 1", done.stderr


def test_interpreter_exit_with_an_unclosed_inbox_and_receiver(tmp_path: Path) -> None:
    """Hooks for forks are let go of in whatever order the modules end: not a word on stderr."""
    done = run(
        """
        import sqlite3, sys, twicesafe
        connection = sqlite3.connect(sys.argv[1].removeprefix("sqlite:///"))
        inbox, receiver = twicesafe.Inbox.open(sys.argv[1]), twicesafe.Receiver.open("memory://")
        awaited = twicesafe.AsyncInbox.open(sys.argv[1])
        print(inbox.process(connection, "k", lambda: 1).value + receiver.process("k", int).value)
        """,
        url_of("sqlite", tmp_path),
    )
    assert (done.returncode, done.stdout.strip()) == (0, "1")
    assert done.stderr == ""
