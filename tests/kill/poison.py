"""A handler that kills its own process, delivered again and again. Run as a script by the tests."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from twicesafe import ParkedError, Policy, Receiver, current_claim

POLICY = Policy(lease=2, max_attempts=3)


def main(folder: Path, url: str) -> None:
    def explode() -> None:
        claim = current_claim()
        assert claim is not None
        with (folder / "ledger").open("a") as ledger:
            ledger.write(f"{claim.attempt}\n")
        os.kill(os.getpid(), signal.SIGKILL)

    killed, refusals = 0, []
    while len(refusals) < 3:
        pid = os.fork()
        if pid == 0:
            with Receiver.open(url, policy=POLICY) as receiver:
                try:
                    receiver.process("poison", explode)  # waits for the lease of the dead
                except ParkedError:
                    os._exit(7)
            os._exit(1)
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            killed += 1
        else:
            assert os.waitstatus_to_exitcode(status) == 7
            refusals.append("ParkedError")
    print(json.dumps({"killed": killed, "refusals": refusals}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
