"""``python -m benchmarks.near_duplicates_held_out``: does an embedding model find near-duplicates that words do not?

It needs ``pip install wordllama`` (its weights are in its wheel). Thresholds are chosen on the pairs of `near_duplicates`;
then precision and recall are measured on 10,000 pairs that had no part in the choice: other wishes, other
templates, other names and other purposes, from the generator of the first set. Values must be equal in all cases.

It writes the table into docs/how-to/near-duplicates.md. The set was written before it was scored for the first time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from twicesafe._core.similarity.words import read_text

from . import near_duplicates as known
from .near_duplicates import Pair

START, END = "<!-- held out -->\n", "<!-- /held out -->\n"
WORLD = known.World(
    names=["Alice", "Bernard", "Chidi", "Dolores", "Eleanor", "Farid", "Greta", "Hiro", "Ines", "Jamal"],
    purposes=[
        "desk lamps", "the kick-off", "spare parts", "two monitors", "the trade fair", "coffee for the kitchen",
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
            "The trip of {name} on {date} is off: drop {invoice} for {purpose}, worth {amount}.",
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
