"""``python -m benchmarks.near_duplicates_held_out``: does an embedding model find near-duplicates that words do not?

It needs ``pip install wordllama`` (its weights are in its wheel). Thresholds are chosen on the pairs of `near_duplicates`;
then precision and recall are measured on 10,000 pairs that had no part in the choice: other wishes, other
templates, other names and other purposes, from the generator of the first set. Values must be equal in all cases.

The opposites are a third set: one verb is exchanged for its opposite, and everything else is equal.

It writes the table into docs/how-to/near-duplicates.md. The held-out pairs were written before they were scored for the first time.
"""

from __future__ import annotations

from . import near_duplicates as known
from .near_duplicates import PAGE, Pair

START, END = "<!-- held out -->\n", "<!-- /held out -->\n"
EACH, SEED = 500, 1918
WORDS, MEANING = 0.6, 0.83
"""The thresholds: of words the default, of meaning the lowest that has, on the first set, at least the precision of words."""
WORLD = known.World(
    names=["Alice", "Bernard", "Chidi", "Dolores", "Eleanor", "Farid", "Greta", "Hiro", "Ines", "Jamal"],
    purposes=[
        "table lamps", "the kick-off", "spare parts", "two monitors", "the trade fair", "coffee for the kitchen",
        "the board meeting", "winter tyres", "new badges", "the audit",
    ],
    intents={
        "book": [
            "Book a room for {name} on {date}, budget {amount}, reference {invoice}, for {purpose}.",
            "Please reserve a room for {name} on {date} for {purpose}; it may cost {amount} (reference {invoice}).",
            "We need a place to stay for {name} on {date}, for {purpose}: up to {amount}, reference {invoice}.",
            "Could you arrange accommodation for {name}, {date}, at most {amount}? It is for {purpose}, reference {invoice}.",
            "Get a hotel for {name} on {date}, no more than {amount}, for {purpose}, reference {invoice}.",
        ],
        "cancel": [
            "Cancel the booking {invoice} of {name} for {date} ({purpose}, {amount}).",
            "Please call off {invoice}: {name}, {date}, {purpose}, {amount}.",
            "The visit of {name} on {date} is off: drop {invoice} for {purpose}, worth {amount}.",
            "The reservation {invoice} for {name} on {date} over {amount} ({purpose}) must be withdrawn.",
        ],
        "order": [
            "Order {purpose} for {name}, {amount}, to arrive by {date}, reference {invoice}.",
            "Please buy {purpose} worth {amount} for {name}; delivery before {date}, reference {invoice}.",
            "We need {purpose} for {name} until {date}: purchase it for {amount}, reference {invoice}.",
            "Get {purpose} for {name} at {amount}, reference {invoice}, to be here on {date}.",
        ],
        "move": [
            "Move {amount} from savings to the account of {name} on {date}, reference {invoice}, {purpose}.",
            "Please shift {amount} out of savings into the account of {name} on {date} for {purpose} ({invoice}).",
            "Take {amount} from savings and put it on the account of {name}, {date}, {invoice}, {purpose}.",
            "On {date}, top up the account of {name} with {amount} of our savings: {purpose}, {invoice}.",
        ],
        "complain": [
            "Tell {name} that {purpose} of {date} ({invoice}, {amount}) arrived broken.",
            "Write to {name}: the delivery {invoice} of {date}, {purpose} for {amount}, is damaged.",
            "Please complain to {name} about damaged goods: {purpose}, delivery {invoice} of {date}, {amount}.",
            "Let {name} know that {invoice} from {date} ({purpose}, {amount}) came in pieces.",
        ],
    },
)  # fmt: skip
OPPOSITES = (
    "open/close grant/revoke increase/decrease enable/disable start/stop accept/reject lock/unlock hire/dismiss buy/sell "
    "add/remove raise/lower approve/decline import/export subscribe/unsubscribe credit/debit deposit/withdraw "
    "block/unblock book/cancel send/request borrow/lend activate/deactivate confirm/cancel extend/shorten allow/forbid"
)
PLACES = [
    "Please {} the account of Alice for invoice 4711 on 2026-03-04.",
    "Could you {} the order 4711 over €50 for Bernard, table lamps?",
    "I want to {} the access of Chidi to the billing reports from 3 May 2026.",
    "We should {} the limit of Dolores by $500, ticket A-77, because of the audit.",
]


def held_out() -> list[Pair]:
    return known.pairs(SEED, WORLD, EACH)


def opposites() -> list[Pair]:
    verbs = [both.split("/") for both in OPPOSITES.split()]
    return [
        Pair("one verb is its opposite", False, place.format(one), place.format(other))
        for place in PLACES
        for one, other in verbs
    ]


def lowest_threshold(by_meaning: list[Pair], precision: float) -> float:
    """Of meaning, on the first set: the lowest, in hundredths, with this precision."""
    candidates = (hundredths / 100 for hundredths in range(50, 100))
    return next(each for each in candidates if known.rates(by_meaning, each)[0] >= precision)


def row(name: str, by_words: list[Pair], by_meaning: list[Pair]) -> str:
    cells = [
        f"{sum(known.is_reported(pair, threshold) for pair in scored):,} of {len(scored):,}"
        for scored, threshold in ((by_words, WORDS), (by_meaning, MEANING))
    ]
    return f"| {name} | {'yes' if by_words[0].same else 'no'} | {cells[0]} | {cells[1]} |"


def figures(by_words: list[Pair], by_meaning: list[Pair]) -> str:
    """The table: pairs that are reported, by kind, and the rates of the held-out pairs."""
    rows = ["| pairs | mean the same | by words | by meaning |", "|---|---|---|---|"]
    for kind in dict.fromkeys(pair.kind for pair in by_words):
        some = [[pair for pair in scored if pair.kind == kind] for scored in (by_words, by_meaning)]
        rows.append(row(kind, *some))
    ends = opposites()
    name = f"{ends[0].kind} (not in the rates)"
    rows.append(row(name, known.judged(ends), known.judged(ends, "meaning")))
    rates = [known.rates(by_words, WORDS), known.rates(by_meaning, MEANING)]
    for at, name in enumerate(("precision", "recall")):
        rows.append(f"| **{name}** | | {rates[0][at]:.1%} | {rates[1][at]:.1%} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    first = known.pairs()
    precision, recall = known.rates(known.judged(first), WORDS)
    by_meaning = known.judged(first, "meaning")
    print(f"first set, words at {WORDS}: precision {precision:.1%}, recall {recall:.1%}")
    lowest = lowest_threshold(by_meaning, precision)
    print(f"lowest threshold of meaning with that precision: {lowest}")
    reached = known.rates(by_meaning, MEANING)
    print(f"first set, meaning at {MEANING}: precision {reached[0]:.1%}, recall {reached[1]:.1%}")
    pairs = held_out()
    made = figures(known.judged(pairs), known.judged(pairs, "meaning"))
    PAGE.write_text(known.page(PAGE.read_text("utf-8"), made, START, END), "utf-8")
    print(made)
    print(f"{min(known.cost(pairs, 'meaning') for _ in range(3)):.0f} µs per request by meaning")


if __name__ == "__main__":
    main()
