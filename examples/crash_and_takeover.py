"""A worker is killed while its handler runs. The policy decides what the next delivery does.

With ``takeover="retry"`` it runs again when the lease has expired, so the effect may repeat. With
``takeover="hold"`` it does not run: the outcome is unknown until an operator decides.
"""

import subprocess
import sys

from twicesafe import HeldError, Policy, Receiver, current_claim

LEASE = 0.4

WORKER = """
import sys, time
from twicesafe import Policy, Receiver

def handler():
    print("working", flush=True)
    time.sleep(60)                       # killed in here

policy = Policy(lease=float(sys.argv[2]), takeover=sys.argv[3])
Receiver.open("sqlite:///payments.db", policy=policy).process(sys.argv[1], handler)
"""


def worker_that_dies(key: str, takeover: str) -> None:
    words = [sys.executable, "-c", WORKER, key, str(LEASE), takeover]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout.readline() == "working\n"
        worker.kill()  # SIGKILL: no clean-up of any kind


def charge() -> str:
    claim = current_claim()
    print(f"  runs here: attempt {claim.attempt}, fence {claim.fence}, cause {claim.cause}")
    return "paid"


print('takeover="retry":')
worker_that_dies("tx-1", "retry")
with Receiver.open("sqlite:///payments.db", policy=Policy(lease=LEASE)) as receiver:
    outcome = receiver.process("tx-1", charge)  # waits for the rest of the dead worker's lease
    print(f"  answer: {outcome.value!r}, attempt {outcome.attempt}")
    assert outcome.attempt == 2

print('takeover="hold":')
worker_that_dies("tx-2", "hold")
policy = Policy(lease=LEASE, takeover="hold")
with Receiver.open("sqlite:///payments.db", policy=policy) as receiver:
    try:
        receiver.process("tx-2", charge)
        raise SystemExit("it must not run")
    except HeldError as error:
        print(f"  refused: {error}")
    # An operator asked the bank: the charge went through. Now every duplicate gets this answer.
    receiver.resolve("tx-2", "paid", by="ana", why="seen in the bank's list")
    outcome = receiver.process("tx-2", charge)
    print(f"  after resolve: {outcome.value!r}, replayed={outcome.replayed}")
    assert outcome.replayed
