"""``python -m tests.servers valkey [name=value…]``: start a server, print its URL, wait for Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys

from tests.servers import ENGINES, launch


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1] not in ENGINES:
        sys.exit(f"usage: python -m tests.servers {{{','.join(ENGINES)}}} [setting=value …]")
    settings = dict(word.split("=", 1) for word in sys.argv[2:])
    server = launch(sys.argv[1], **settings)
    print(server.url, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    main()
