"""A worker of one version beside workers of another. Run as a script by the trial, on either's source.

roller.py URL LEDGER KEYS SEED [NAME]    → {"version": where from, "values": …, "errors": […]}
It stops at its third error: a node that is refused is refused for every key.
"""

from __future__ import annotations

import faulthandler
import json
import os
import random
import sys

import twicesafe
from twicesafe import Policy, Receiver

faulthandler.dump_traceback_later(120, exit=True)  # a process that hangs says where
url, ledger, keys, seed, *named = sys.argv[1:]
file = os.open(ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
values: dict[str, set[str]] = {}
errors: list[str] = []


def handle(key: str) -> str:
    os.write(file, f"{key}\n".encode())
    return f"{key} by {os.getpid()}"


with Receiver.open(url, policy=Policy(lease=20, wait=20)) as receiver:
    print("ready", flush=True)
    sys.stdin.readline()
    names = [f"{(*named, 'key')[0]}-{number}" for number in range(int(keys))] * 2
    random.Random(seed).shuffle(names)
    for name in names:
        try:
            value = receiver.process(name, handle, name).value
            values.setdefault(name, set()).add(value)
        except Exception as error:
            errors.append(f"{name}: {type(error).__name__}: {error}")
            if len(errors) == 3:
                break
    if int(seed) % 2 and not errors:
        receiver.sweep()
told = {name: sorted(found) for name, found in values.items()}
print(json.dumps({"source": twicesafe.__file__, "values": told, "errors": errors}))
