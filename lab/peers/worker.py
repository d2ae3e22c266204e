"""A process that calls protected functions on request.

python -m lab.peers.worker PEER URL NAME LEDGER
→ ready
← {"orders": [order, …]}     several are called at once, in threads
→ {"in": key}                a function that holds has started; it waits for the order that says how to end
← return KEY | raise KEY
→ {"ends": [{"value": …} or {"error": …}, …]}
"""

from __future__ import annotations

import functools
import json
import queue
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import handlers
from .peer import Order, Protection, adapter


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


class WakeupListener:
    """What is said to this process, sorted: a function may still hold when its caller was answered."""

    def __init__(self) -> None:
        self._orders: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._words: defaultdict[str, queue.SimpleQueue[str]] = defaultdict(queue.SimpleQueue)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        for line in sys.stdin:
            if line.startswith("{"):
                self._orders.put(line)
            else:
                word, key = line.split()
                self._words[key].put(word)
        self._orders.put("")

    def orders(self) -> Iterator[list[Order]]:
        while line := self._orders.get():
            yield json.loads(line)["orders"]

    def word_for(self, key: str) -> str:
        return self._words[key].get()


def main(peer: str, url: str, name: str, ledger: str) -> None:
    @functools.cache
    def guarded(function: str, protection: Protection) -> Any:
        return library.guard(handlers.FUNCTIONS[function], protection)

    def call(order: Order) -> Any:
        return guarded(order["function"], Protection(**order["protection"]))(order)

    def end_of(order: Order) -> dict[str, Any]:
        began = time.monotonic()
        try:
            value = call(order)
        except Exception as error:
            return {"error": type(error).__name__, "took": time.monotonic() - began}
        gift = handlers.GIFTS.get(order["function"], value)
        return {"value": str(value), "as": repr(value), "same": _same(value, gift)}

    listener = WakeupListener()
    handlers.bind(ledger, call, say, listener.word_for)
    library = adapter(peer)(url, name)
    say("ready")
    for orders in listener.orders():
        for order in orders:
            # Made once, before the threads could race for it.
            guarded(order["function"], Protection(**order["protection"]))
        if len(orders) == 1:
            ends = [end_of(orders[0])]
        else:
            with ThreadPoolExecutor(len(orders)) as pool:
                ends = list(pool.map(end_of, orders))
        say({"ends": ends})
    library.close()


def _same(value: Any, gift: Any) -> bool:
    return type(value) is type(gift) and value == gift


if __name__ == "__main__":
    main(*sys.argv[1:])
