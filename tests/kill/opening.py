"""Open the store at a word, and tell what this process migrated. Run as a script by the tests."""

from __future__ import annotations

import json
import sys

from twicesafe.stores.sqlite import SqliteStore


class Telling(SqliteStore):
    done: list[str] | None = None

    def migrate(self) -> list[str]:
        self.done = super().migrate()
        return self.done


print("ready", flush=True)
sys.stdin.readline()
store = Telling(sys.argv[1])
print(json.dumps(store.done), flush=True)
