"""A paused worker resumes too late. A resource that checks fences refuses its effect.

The lease protects the *record*: a late worker cannot write it. The outside world does not know about
leases. Pass it the fence, and let it accept each fence once and no smaller one after it.

"Once" matters in an inbox: a run that is rolled back leaves no trace, so the next run has the same
fence. A resource that only refuses smaller fences would accept both.
"""

import threading

from twicesafe import LeaseLostError, Policy, Receiver, current_claim


class Ledger:
    """Any resource with one compare: accept a write only if its fence is larger than all before."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, str]] = []
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def post(self, account: str, fence: int, text: str) -> bool:
        with self._lock:
            if fence <= self._seen.get(account, 0):
                return False
            self._seen[account] = fence
            self.entries.append((fence, text))
            return True


ledger = Ledger()
paused, wake = threading.Event(), threading.Event()


def slow(text: str) -> str:
    paused.set()
    wake.wait()  # a long garbage collection, a suspended machine
    posted = ledger.post("acct-1", current_claim().fence, text)
    print(
        f"late worker: fence {current_claim().fence}, posted={posted}, lost={current_claim().lost}"
    )
    return text


def quick(text: str) -> str:
    posted = ledger.post("acct-1", current_claim().fence, text)
    print(f"new worker:  fence {current_claim().fence}, posted={posted}")
    return text


# max_lease = lease: no renewal, as if the machine itself had stopped. Two receivers stand for two
# processes.
policy = Policy(lease=0.3, max_lease=0.3)
one = Receiver.open("sqlite:///ledger.db", policy=policy)
two = Receiver.open("sqlite:///ledger.db", policy=policy)


def late_worker() -> None:
    try:
        one.process("tx-1", slow, "credit 10")
    except LeaseLostError as error:
        print("late worker:", error)


thread = threading.Thread(target=late_worker)
thread.start()
paused.wait()
outcome = two.process("tx-1", quick, "credit 10")
wake.set()
thread.join()

print("ledger:", ledger.entries, "| recorded attempt:", outcome.attempt)
assert ledger.entries == [(outcome.fence, "credit 10")]
one.close()
two.close()
