"""One library on one store: its worker processes, what they are asked to do, and what they are seen to do."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

import msgspec

from tests.servers import shared

from .handlers import start_of
from .peer import OURS, Order

__all__ = ["Column", "End", "Worker"]

TIME_LIMIT: Final = 30.0
ROOT: Final = Path(__file__).parent.parent.parent


class End(msgspec.Struct):
    """How a call ended for its caller."""

    value: str = ""
    shown: str = msgspec.field(name="as", default="")
    same: bool = False
    """Is it the function's result, equal and of the same class?"""
    error: str = ""
    took: float = 0.0

    @property
    def refused(self) -> bool:
        return bool(self.error) and self.error != "Broken"


class Worker:
    def __init__(self, words: list[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "lab.peers.worker", *words],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._hear(TIME_LIMIT)

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._heard.put(json.loads(line))

    def _hear(self, time_limit: float) -> Any:
        try:
            return self._heard.get(timeout=time_limit)
        except queue.Empty:
            raise TimeoutError(f"the worker said nothing for {time_limit} s") from None

    def begin(self, *orders: Order) -> None:
        self._say(json.dumps({"orders": orders}))

    def begin_and_hold(self, order: Order) -> None:
        """Its function has started, and waits for the order that says how to end."""
        self.begin(order)
        heard = self._hear(TIME_LIMIT)
        if "in" not in heard:
            raise AssertionError(f"expected the function to start, but: {heard}")

    def first_sign(self, time_limit: float) -> End | Literal["runs", "waits"]:
        """What is seen of the call that was begun, within these seconds."""
        try:
            heard = self._hear(time_limit)
        except TimeoutError:
            return "waits"
        return "runs" if "in" in heard else msgspec.convert(heard["ends"][0], End)

    def early_end(self, time_limit: float) -> End | None:
        """How the call ended that was begun, if it did within these seconds."""
        with contextlib.suppress(TimeoutError):
            return self.end(time_limit)
        return None

    def tell(self, word: str, key: str) -> None:
        """How the function that holds under this key shall end: return or raise."""
        self._say(f"{word} {key}")

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def ends(self, time_limit: float = TIME_LIMIT) -> list[End]:
        return msgspec.convert(self._hear(time_limit)["ends"], list[End])

    def end(self, time_limit: float = TIME_LIMIT) -> End:
        return self.ends(time_limit)[0]

    def call(self, order: Order) -> End:
        self.begin(order)
        return self.end()

    def stand_still(self) -> None:
        os.kill(self._process.pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()


class Column:
    def __init__(self, peer: str, store: str, url: str, lease: float = 1.0) -> None:
        self.peer = peer
        self.store = store
        self.lease = lease
        # Only ours knows a prefix in the URL; keys differ from scenario to scenario anyway.
        self._url = url if peer == OURS else url.partition("?")[0]
        self._folder = tempfile.TemporaryDirectory(prefix="twicesafe-lab-")
        self._ledger = Path(self._folder.name) / "starts"
        self._ledger.touch()
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill_all()
        self._folder.cleanup()

    def worker(self, name: str) -> Worker:
        if name not in self._workers:
            words = [self.peer, self._url, name, str(self._ledger)]
            self._workers[name] = Worker(words)
        return self._workers[name]

    def kill(self, name: str) -> None:
        self._workers.pop(name).kill()

    def kill_all(self) -> None:
        for name in list(self._workers):
            self.kill(name)

    def order(self, key: str, word: str = "first", act: str = "answer", **more: Any) -> Order:
        meets, checks = more.pop("meets", "wait"), more.pop("checks", False)
        tenant = more.setdefault("tenant", "acme")
        protection = {"lease": self.lease, "tenant": tenant, "meets": meets, "checks": checks}
        order = {"function": "text", "payload": {"cents": 1250}, "protection": protection}
        return order | {"key": key, "word": word, "act": act} | more

    def key(self) -> str:
        return uuid.uuid4().hex[:12]

    def runs(self, *orders: Order) -> int:
        """How often the functions of these orders were started."""
        wanted = tuple({start_of(order) for order in orders})
        return sum(start.startswith(wanted) for start in self._ledger.read_text().splitlines())

    def past_the_lease(self) -> None:
        time.sleep(1.5 * self.lease)

    def cut_connections(self) -> None:
        """The server drops every connection of everybody."""
        if self.store == "valkey":
            with contextlib.closing(shared("valkey").client()) as client:
                client.execute_command("CLIENT", "KILL", "TYPE", "normal")
        else:
            import psycopg

            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
