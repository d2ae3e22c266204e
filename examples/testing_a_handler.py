"""Is *your* handler safe to run again after a crash? The test kit tries every marked point."""

from twicesafe import current_key
from twicesafe.testing import assert_idempotent, crash_point

ledger: list[tuple[str, str]] = []


def pay(order: str) -> str:
    ledger.append(("?", order))  # the effect, without any mark of which call it was
    crash_point("ledger is written")
    return f"paid {order}"


def pay_once(order: str) -> str:
    me = current_key().derive("ledger").value  # the same on every retry of this key
    if me not in dict(ledger):
        crash_point("looked, not there")
        ledger.append((me, order))
    crash_point("ledger is written")
    return f"paid {order}"


def orders() -> list[str]:
    return [order for _, order in ledger]


try:
    assert_idempotent(pay, "o-1", snapshot=orders, setup=ledger.clear)
    raise SystemExit("the kit must find it")
except AssertionError as report:
    print(report)

assert_idempotent(pay_once, "o-1", snapshot=orders, setup=ledger.clear)
print("\npay_once: ok, also when its process dies at every point")
