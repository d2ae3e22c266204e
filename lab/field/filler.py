"""Work until the disk is full, a little more, and print the answers. Run as a script by `no room`.

filler.py URL BYTES      no file may grow beyond so many bytes
"""

from __future__ import annotations

import json
import resource
import signal
import sys

from twicesafe import Policy, Receiver, StoreError

url, room = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # the write fails instead
resource.setrlimit(resource.RLIMIT_FSIZE, (int(room), int(room)))
values: dict[str, str] = {}
refused = 0
receiver = Receiver.open(url, policy=Policy(lease=0.5, wait=1))
for number in range(2000):
    key = f"key-{number}"
    try:
        values[key] = receiver.process(key, str, f"{number} " * 200).value
    except StoreError:
        refused += 1
        if refused == 5:
            break
print(json.dumps({"values": values, "refused": refused}))
