"""The storm: delivers a plan to worker processes, kills some of them mid-run, and redelivers.

It acts as the broker: it redelivers every delivery that a killed worker did not acknowledge. Workers
exit when this process exits, because their stdin closes.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

from .plan import DemoPlan, Stage
from .worker import DemoDelivery, DemoReport, DemoSetting

__all__ = ["Storm", "StormError", "Traffic"]

TIME_LIMIT: Final = 120.0
"""Give up after this many seconds without any acknowledgement."""


class StormError(Exception):
    """Workers fail by themselves; the message is the last line of their log."""


@dataclass(slots=True)
class Traffic:
    """Counts of deliveries and answers so far."""

    wanted: int = 0
    acknowledged: int = 0
    handed_out: int = 0
    replays: int = 0
    takeovers: int = 0
    kills: int = 0
    receipts: dict[str, set[str]] = field(default_factory=dict)
    """Per payment: the different answers that its deliveries got."""
    seconds: float = 0.0


class _Worker:
    def __init__(self, setting: DemoSetting, log: Path) -> None:
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "twicesafe._demo.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,  # the terminal's Ctrl-C is for the parent
            )
        self.ready = self.killed = False
        self.in_hand: dict[int, DemoDelivery] = {}
        self._rest = b""
        self.send(setting)

    def send(self, order: DemoSetting | DemoDelivery) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(order) + b"\n")
        except BrokenPipeError:
            return  # it died: `reports` returns None next

    def reports(self) -> list[DemoReport] | None:
        """New reports; None: the worker is dead and all its reports were read."""
        assert self.process.stdout is not None
        data = self.process.stdout.read(65536)
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [msgspec.json.decode(line, type=DemoReport) for line in lines]

    def kill(self) -> None:
        self.killed = True
        self.process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


class Storm:
    def __init__(
        self,
        plan: DemoPlan,
        setting: DemoSetting,
        workers: int,
        watch: Callable[[Traffic], None] = lambda _: None,
    ) -> None:
        self.traffic = Traffic(wanted=len(plan.deliveries))
        self._plan = plan
        self._setting = setting
        self._count = workers
        self._watch = watch
        self._waiting = deque(
            DemoDelivery(number, plan.payments[index].id, plan.payments[index].cents)
            for number, index in enumerate(plan.deliveries)
        )
        self._due: deque[Stage] = deque()
        self._log = Path(setting.folder) / "workers.log"
        self._selector = selectors.DefaultSelector()
        self._workers: set[_Worker] = set()
        self._crashes = 0

    def rage(self) -> Traffic:
        """Deliver everything until it is acknowledged."""
        traffic, began = self.traffic, time.monotonic()
        latest, progress = began, 0
        try:
            for _ in range(self._count):
                self._start()
            while traffic.acknowledged < traffic.wanted:
                self._hand_out()
                for ready, _ in self._selector.select(timeout=0.2):
                    self._read(ready.data)
                self._watch(traffic)
                if traffic.acknowledged > progress:
                    latest, progress = time.monotonic(), traffic.acknowledged
                elif time.monotonic() - latest > TIME_LIMIT:
                    break  # missing payments are counted as lost
        finally:
            for worker in self._workers:
                worker.end()
            self._selector.close()
        traffic.seconds = time.monotonic() - began
        return traffic

    def _start(self) -> None:
        worker = _Worker(self._setting, self._log)
        self._workers.add(worker)
        self._selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]

    def _hand_out(self) -> None:
        for worker in self._workers:
            while (
                self._waiting
                and worker.ready
                and not worker.killed
                and len(worker.in_hand) < self._setting.threads
            ):
                delivery = self._waiting.popleft()
                self._arm(delivery)
                worker.in_hand[delivery.number] = delivery
                self.traffic.handed_out += 1
                worker.send(delivery)

    def _arm(self, delivery: DemoDelivery) -> None:
        plan = self._plan
        number = self.traffic.handed_out + 1
        if plan.kill_every and number % plan.kill_every == 0:
            order = number // plan.kill_every - 1
            self._due.extend(plan.strikes[order : order + 1])
        delivery.strike = self._due.popleft() if self._due else None

    def _read(self, worker: _Worker) -> None:
        reports = worker.reports()
        if reports is None:
            self._replace(worker)
            return
        for report in reports:
            self._handle(worker, report)

    def _handle(self, worker: _Worker, report: DemoReport) -> None:
        traffic = self.traffic
        match report.what:
            case "ready":
                worker.ready = True
            case "started":
                traffic.takeovers += report.cause == "lease_expired"
            case "struck":
                if not worker.killed:
                    traffic.kills += 1
                    worker.kill()
            case "done" | "again":
                delivery = worker.in_hand.pop(report.number)
                if delivery.strike is not None:  # it never reached that stage: kill another worker
                    self._due.appendleft(delivery.strike)
                if report.what == "again":
                    self._waiting.append(delivery)
                    return
                traffic.acknowledged += 1
                traffic.replays += report.replayed
                traffic.receipts.setdefault(delivery.payment, set()).add(report.receipt)

    def _replace(self, worker: _Worker) -> None:
        """Redeliver a dead worker's deliveries first, and start a new worker."""
        self._selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
        self._workers.discard(worker)
        worker.end()
        self._waiting.extendleft(worker.in_hand.values())
        if not worker.killed:
            self._crashes += 1
            if self._crashes > 3:
                said = self._log.read_text(errors="replace").strip().splitlines()
                raise StormError(
                    f"workers fail without being killed: {said[-1] if said else 'no log'}"
                )
        self._start()
