"""A process that calls protected functions when it is told to.

python -m lab.peers.worker PEER URL NAME LEDGER
→ ready
← {"orders": [order, …]}     several are called at once, in threads
→ {"in": key}                a function that holds has started; it goes on with the next line:
← return | raise
→ {"ends": [{"value": …} or {"error": …}, …]}
"""

from __future__ import annotations

import functools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from . import handlers
from .peer import Order, Terms, adapter


def say(what: Any) -> None:
    print(json.dumps(what), flush=True)


def main(peer: str, url: str, name: str, ledger: str) -> None:
    @functools.cache
    def guarded(function: str, terms: Terms) -> Any:
        return library.guard(handlers.FUNCTIONS[function], terms)

    def call(order: Order) -> Any:
        return guarded(order["function"], Terms(**order["terms"]))(order)

    def end_of(order: Order) -> dict[str, Any]:
        began = time.monotonic()
        try:
            value = call(order)
        except Exception as error:
            return {"error": type(error).__name__, "took": time.monotonic() - began}
        gift = handlers.GIFTS.get(order["function"], value)
        return {"value": str(value), "as": repr(value), "same": _same(value, gift)}

    handlers.bind(ledger, call, say)
    library = adapter(peer)(url, name)
    say("ready")
    for line in sys.stdin:
        orders = json.loads(line)["orders"]
        for order in orders:
            guarded(order["function"], Terms(**order["terms"]))  # made once, not in a race
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
