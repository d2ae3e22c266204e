"""ctrl_c.py URL SEED INTERRUPTS: a worker that is interrupted at random moments, and lives on.

Each round delivers one key with an alarm set that raises KeyboardInterrupt wherever it is met, until
this many deliveries were interrupted. Then every key is delivered again. Prints what was seen, as JSON.
"""

from __future__ import annotations

import json
import random
import signal
import sys
from collections import Counter

from twicesafe import Policy, Receiver, State


def main(url: str, seed: int, wanted: int) -> dict[str, object]:
    rng = random.Random(seed)
    effects: Counter[str] = Counter()
    states: dict[str, str] = {}
    interrupts, keys = 0, list[str]()

    def handle(key: str) -> str:
        effects[key] += 1
        return key

    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with Receiver.open(url, policy=Policy(lease=2, wait=60)) as receiver:
        receiver.process("warm", handle, "warm")
        while interrupts < wanted:
            key = f"k-{len(keys)}"
            keys.append(key)
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.00001, 0.004))
                receiver.process(key, handle, key)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupts += 1
            record = receiver.record(key)
            states[key] = "none" if record is None else record.state
        before = dict(effects)
        answers = [receiver.process(key, handle, key).value for key in keys]
    done = [key for key, state in states.items() if state == State.COMPLETED]
    return {
        "interrupts": interrupts,
        "states": Counter(f"{states[key]}, {before.get(key, 0)} effects" for key in keys),
        "effects": max(before.values()),
        "done twice": [key for key in done if effects[key] != 1],
        "never done": [key for key in keys if not effects[key]],
        "answered": answers == keys,
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
