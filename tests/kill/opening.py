"""Open the store at a word, and tell what this process migrated. Run as a script by the tests."""

from __future__ import annotations

import json
import sys

from twicesafe import Receiver

print("ready", flush=True)
sys.stdin.readline()
with Receiver.open(sys.argv[1]) as receiver:
    print(json.dumps(list(receiver.store.migrated)), flush=True)
