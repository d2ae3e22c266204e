"""An operator at 3 AM: what is stuck, why, and what can be done. Every action is audited."""

from twicesafe import Backoff, ParkedError, Policy, Receiver, State, UsageError

bank_is_down = True


def charge(cents: int) -> str:
    if bank_is_down:
        raise ConnectionError("no route to the bank")
    return f"charged {cents}"


policy = Policy(max_attempts=2, backoff=Backoff(first=0))
with Receiver.open("sqlite:///payments.db", policy=policy) as receiver:
    for _ in range(3):
        try:
            receiver.process("tx-1", charge, 500)
        except (ConnectionError, ParkedError) as error:
            print(f"delivery: {type(error).__name__}: {error}")

    stats = receiver.stats()
    print("stats:", {str(state): count for state, count in stats.by_state.items()})

    parked = list(receiver.records(state=State.PARKED))
    for record in parked:
        print(f"parked: {record.value!r} attempt {record.attempt}, last error {record.error}")

    bank_is_down = False
    receiver.release("tx-1", by="ana", why="the bank is back")
    print("after release:", receiver.process("tx-1", charge, 500).value)

    try:
        receiver.release("tx-1", by="ana", why="once more?")
    except UsageError as error:
        print("refused:", error)

    receiver.forget("tx-1", by="ana", why="customer asked for erasure")
    print("record now:", receiver.record("tx-1").state)
    for entry in receiver.audit("tx-1"):
        print(f"audit: {entry.by} {entry.action} ({entry.why}), was {entry.state_before}")
    for finding in receiver.doctor():
        print(f"doctor: {finding.level:4} {finding.what}")
