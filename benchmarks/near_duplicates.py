"""``python -m benchmarks.near_duplicates``: how often `twicesafe.similar` is right, on 10,000 generated pairs.

It writes the figures and the losing cases into docs/how-to/near-duplicates.md, and prints the time per request. The set
is the same on every machine: five kinds of pairs, 2,000 each, from requests that people and agents write.
`near_duplicates_held_out` compares words and meaning on pairs that had no part in the choice of thresholds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

from twicesafe import Key
from twicesafe.similar import NearDuplicates

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "near-duplicates.md"
START, END = "<!-- figures -->\n", "<!-- /figures -->\n"
EACH = 2000
DEFAULT = 0.6
THRESHOLDS = (0.3, 0.4, 0.5, DEFAULT, 0.7, 0.8, 0.9)


class World(NamedTuple):
    """What the requests of a set are made of."""

    names: list[str]
    purposes: list[str]
    intents: dict[str, list[str]]
    """Each list: one intention, in words that people and agents really vary."""


class Facts(NamedTuple):
    """What a request is about."""

    amount: str
    currency: str
    invoice: str
    name: str
    other: str
    date: tuple[int, int, int]
    purpose: str


class Pair(NamedTuple):
    kind: str
    same: bool
    first: str
    second: str
    score: float | None = None
    """None: they have different values."""


MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]
NAMES = [
    "Acme",
    "Globex",
    "Initech",
    "Umbrella",
    "Hooli",
    "Stark",
    "Wayne",
    "Tyrell",
    "Cyberdyne",
    "Soylent",
    "Vandelay",
    "Wonka",
]
PURPOSES = [
    "office chairs", "the annual licence", "cleaning services", "printer paper", "the consulting hours", "travel costs",
    "a replacement laptop", "the spring campaign", "server hosting", "the team dinner", "legal advice", "packaging material",
]  # fmt: skip

INTENTS: dict[str, list[str]] = {
    "pay": [
        "Pay {amount} to {name} for invoice {invoice}, due {date}, for {purpose}.",
        "Please pay invoice {invoice} to {name}: {amount}, due {date}, {purpose}.",
        "Could you pay {name} {amount} by {date}? It is invoice {invoice} for {purpose}.",
        "Invoice {invoice} from {name} for {purpose} must be paid: {amount}, due {date}.",
        "Settle the {amount} that we owe {name} for {purpose} (invoice {invoice}) before {date}.",
        "Transfer {amount} to {name} on {date}, reference {invoice}, {purpose}.",
    ],
    "remind": [
        "Send {name} a reminder about invoice {invoice} over {amount} for {purpose}, which was due {date}.",
        "Please remind {name} that invoice {invoice} ({amount}, {purpose}) was due {date}.",
        "Invoice {invoice} was due {date}: send a reminder for {amount} and {purpose} to {name}.",
        "Write to {name} and ask for the {amount} of invoice {invoice}, due {date}, {purpose}.",
    ],
    "refund": [
        "Refund {amount} to {name} for invoice {invoice} of {date}, {purpose}.",
        "Please give {name} a refund of {amount}: invoice {invoice} of {date} for {purpose}.",
        "{name} gets {amount} back for {purpose}, invoice {invoice} of {date}.",
        "Return the {amount} of invoice {invoice} ({date}, {purpose}) to {name}.",
    ],
    "approve": [
        "Approve invoice {invoice} of {name} over {amount} for {purpose}, dated {date}.",
        "I approve the invoice {invoice} from {name}: {amount} for {purpose}, dated {date}.",
        "Invoice {invoice} by {name} dated {date} over {amount} for {purpose} is approved.",
        "Release {amount} for {name}: the invoice {invoice} dated {date} for {purpose} is fine.",
    ],
}  # fmt: skip


PAYMENTS = World(NAMES, PURPOSES, INTENTS)


def pairs(seed: int = 17, world: World = PAYMENTS, each: int = EACH) -> list[Pair]:
    """The set: five kinds, `each` of them."""
    dice = random.Random(seed)
    return [make(dice, world) for make in KINDS for _ in range(each)]


def _facts(dice: random.Random, world: World) -> Facts:
    name, other = dice.sample(world.names, 2)
    cents = dice.choice((0, 0, 50, 99, dice.randrange(100)))
    return Facts(
        f"{dice.randrange(1, 20_000)}.{cents:02}",
        dice.choice(("EUR", "USD", "GBP")),
        dice.choice(("INV-{}", "{}", "R{}", "2026/{}")).format(dice.randrange(1000, 99_999)),
        name,
        other,
        (2026, dice.randrange(1, 13), dice.randrange(1, 29)),
        dice.choice(world.purposes),
    )


def _said(template: str, facts: Facts, dice: random.Random) -> str:
    """The request in these words; amounts and dates are written in the ways that people write them."""
    amount = float(facts.amount)
    written = dice.choice(
        (
            f"{amount:.2f}",
            f"{amount:,.2f}",
            f"{amount:g}" if amount == int(amount) else f"{amount:.2f}",
        )
    )
    sign = {"EUR": "€", "USD": "$", "GBP": "£"}[facts.currency]
    year, month, day = facts.date
    return template.format(
        amount=dice.choice((f"{written} {facts.currency}", f"{sign}{written}", f"{facts.currency} {written}")),
        date=dice.choice((f"{year}-{month:02}-{day:02}", f"{day} {MONTHS[month - 1]} {year}", f"{MONTHS[month - 1]} {day}, {year}")),
        invoice=facts.invoice,
        name=facts.name,
        purpose=facts.purpose,
    )  # fmt: skip


def _retry(dice: random.Random, world: World) -> Pair:
    """The same text, or typed again: spaces, final dot, a greeting, letters of another size."""
    facts = _facts(dice, world)
    template = dice.choice(world.intents[dice.choice(list(world.intents))])
    first = _said(template, facts, dice)
    again = dice.choice((first, first + " Thanks!", "Hi, " + first, "  ".join(first.split()), first.rstrip("."), first.upper(), first.lower(), _said(template, facts, dice)))  # fmt: skip
    return Pair("retried or typed again", True, first, again)


def _reworded(dice: random.Random, world: World) -> Pair:
    facts = _facts(dice, world)
    one, two = dice.sample(world.intents[dice.choice(list(world.intents))], 2)
    return Pair("in other words", True, _said(one, facts, dice), _said(two, facts, dice))


def _other_amount(dice: random.Random, world: World) -> Pair:
    facts = _facts(dice, world)
    amount = float(facts.amount)
    another = dice.choice((amount + 1, amount * 10, amount + 0.01, amount + 1000))
    return _changed("another amount or date", dice, world, facts, [
        facts._replace(amount=f"{another:.2f}"),
        facts._replace(currency={"EUR": "USD", "USD": "GBP", "GBP": "EUR"}[facts.currency]),
        facts._replace(date=(facts.date[0], facts.date[1], facts.date[2] % 28 + 1)),
    ])  # fmt: skip


def _other_invoice(dice: random.Random, world: World) -> Pair:
    facts = _facts(dice, world)
    last = facts.invoice[-1]
    return _changed("another invoice or payee", dice, world, facts, [
        facts._replace(invoice=facts.invoice[:-1] + str((int(last) + 1) % 10)),
        facts._replace(name=facts.other),
    ])  # fmt: skip


def _changed(
    kind: str, dice: random.Random, world: World, facts: Facts, others: list[Facts]
) -> Pair:
    intent = world.intents[dice.choice(list(world.intents))]
    one = dice.choice(intent)
    two = dice.choice((one, one, dice.choice(intent)))
    return Pair(kind, False, _said(one, facts, dice), _said(two, dice.choice(others), dice))


def _other_action(dice: random.Random, world: World) -> Pair:
    """All values are equal, but something else is asked for, or it is for something else."""
    facts = _facts(dice, world)
    one, two = dice.sample(list(world.intents), 2)
    template = dice.choice(world.intents[one])
    first = _said(template, facts, dice)
    if dice.random() < 0.3:
        purpose = dice.choice([p for p in world.purposes if p != facts.purpose])
        second = _said(template, facts._replace(purpose=purpose), dice)
    else:
        second = _said(dice.choice(world.intents[two]), facts, dice)
    return Pair("another action or purpose", False, first, second)


KINDS: tuple[Callable[[random.Random, World], Pair], ...] = (
    _retry,
    _reworded,
    _other_amount,
    _other_invoice,
    _other_action,
)


def judged(found: list[Pair], prose: Literal["words", "meaning"] = "words") -> list[Pair]:
    """Each pair with the score that `NearDuplicates` gives it."""
    near = NearDuplicates(prose=prose, threshold=1e-9, per_scope=2)
    scored = []
    for at, pair in enumerate(found):
        near.compare(Key("first", (str(at),)), pair.first)
        match = near.compare(Key("second", (str(at),)), pair.second)
        scored.append(pair._replace(score=None if match is None else match.score))
    return scored


def is_reported(pair: Pair, threshold: float) -> bool:
    return pair.score is not None and pair.score >= threshold


def rates(scored: list[Pair], threshold: float) -> tuple[float, float]:
    """Precision and recall."""
    reported = [pair for pair in scored if is_reported(pair, threshold)]
    right = sum(pair.same for pair in reported)
    return right / max(1, len(reported)), right / sum(pair.same for pair in scored)


def figures(scored: list[Pair]) -> str:
    """The part of the page that is made from the set."""
    kinds = list(dict.fromkeys(pair.kind for pair in scored))
    rows = ["| pairs | mean the same | reported | right |", "|---|---|---|---|"]
    for kind in kinds:
        some = [pair for pair in scored if pair.kind == kind]
        reported = sum(is_reported(pair, DEFAULT) for pair in some)
        right = reported if some[0].same else len(some) - reported
        rows.append(
            f"| {kind} | {'yes' if some[0].same else 'no'} | {reported:,} of {len(some):,} | {right / len(some):.1%} |"
        )
    rows += ["", "| `threshold` | precision | recall |", "|---|---|---|"]
    for threshold in THRESHOLDS:
        precision, recall = rates(scored, threshold)
        default = " (default)" if threshold == DEFAULT else ""
        rows.append(f"| {threshold}{default} | {precision:.1%} | {recall:.1%} |")
    wrong = [pair for pair in scored if not pair.same and is_reported(pair, DEFAULT)]
    missed = [pair for pair in scored if pair.same and not is_reported(pair, DEFAULT)]
    rows += ["", "Losing cases: reported, and not the same.", "", *_shown(wrong)]
    rows += ["", "Losing cases: the same, and not reported.", "", *_shown(missed)]
    return "\n".join(rows) + "\n"


def _shown(some: list[Pair]) -> list[str]:
    """Three of them, spread over all."""
    chosen = [some[at * (len(some) - 1) // 2] for at in range(3)] if len(some) > 2 else some
    return [
        f"- “{pair.first}” / “{pair.second}”: "
        + ("different values" if pair.score is None else f"{pair.score:.2f}")
        for pair in chosen
    ] or ["- none"]


def page(text: str, made: str, start: str = START, end: str = END) -> str:
    """The page with these figures."""
    before, _, rest = text.partition(start)
    return before + start + made + end + rest.partition(end)[2]


def cost(found: list[Pair], prose: Literal["words", "meaning"] = "words") -> float:
    """Microseconds of processor time per request, in a window that is full."""
    near = NearDuplicates(prose=prose)
    texts = [text for pair in found for text in (pair.first, pair.second)]
    keys = [Key(str(at), (str(at % 100),)) for at in range(len(texts))]
    began = time.process_time()
    for key, text in zip(keys, texts, strict=True):
        near.compare(key, text)
    return (time.process_time() - began) / len(texts) * 1e6


def main() -> None:
    found = pairs()
    scored = judged(found)
    PAGE.write_text(page(PAGE.read_text("utf-8"), figures(scored)), "utf-8")
    print(figures(scored))
    average = sum(len(pair.first) for pair in found) // len(found)
    print(f"{min(cost(found) for _ in range(3)):.0f} µs per request of about {average} characters")


if __name__ == "__main__":
    main()
