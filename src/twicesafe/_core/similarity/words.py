"""A text becomes values and prose.

Values are what must not differ: amounts with their currency, numbers, dates, ids, and words that
turn a sentence around (not, never, next). Each kind keeps its order, so that "from 1 to 2" is not
"from 2 to 1". "1,000.00", "1000" and "1.000,00" are one number; "17 Nov 2026" and "2026-11-17" are
one date. A form that can be read in two ways ("1.000", "3/4/2026") equals only itself. A word with
a capital letter inside a sentence is a name. The rest is prose: lower case, without the most common
words.

Every pattern reads a character a bounded number of times, so a hostile text costs no more than any other.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from typing import Final, NamedTuple

__all__ = ["Text", "exact_value", "read_text"]


class Text(NamedTuple):
    """What a text says: values by kind, in order; the words of its prose; and which of those are names."""

    values: tuple[tuple[str, ...], ...]
    prose: list[str]
    names: list[str]


_RUN: Final = re.compile(
    r"(?P<run>(?:(?<!\w)[-+])?\w+(?:(?:[-/.:#@+'’]|(?<=\d),(?=\d))\w+)*)|(?P<sign>[$€£¥₹%])|(?P<end>[.!?:\n])"
)
_PIECE: Final = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)?")
_DIGIT: Final = re.compile(r"\d")
_GROUPED: Final = re.compile(r"(?:\d{1,3}(?:,\d{3})+|\d{1,3}(?:['’]\d{3})+|\d+)(?:\.(\d+))?")
_GROUPED_BY_DOTS: Final = re.compile(
    r"(?:\d{1,3}(?:\.\d{3})+(?=,)|\d{1,3}(?:\.\d{3}){2,}|\d+(?=,))(?:,(\d+))?"
)
_TWO_WAYS: Final = re.compile(r"\d{1,3}\.\d{3}")
_ORDINAL: Final = re.compile(r"(\d{1,2})(?:st|nd|rd|th)", re.IGNORECASE)
_YEAR_FIRST: Final = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})")
_DAY_FIRST: Final = re.compile(r"(\d{1,2})\.(\d{1,2})\.(\d{4})")

_CURRENCIES: Final = {
    "$": "usd", "dollar": "usd", "dollars": "usd", "€": "eur", "euro": "eur", "euros": "eur", "£": "gbp",
    "¥": "jpy", "yen": "jpy", "₹": "inr", "rupees": "inr", "%": "%", "percent": "%",
    **{code: code for code in ["usd", "eur", "gbp", "jpy", "inr", "chf", "cny", "sek", "nok", "dkk", "pln", "czk", "huf", "ron", "bgn", "try", "brl", "mxn", "cad", "aud", "nzd", "sgd", "hkd", "krw", "zar", "ils", "aed", "sar", "thb", "idr", "myr", "php", "vnd", "uah", "btc", "eth", "usdt", "usdc"]},
}  # fmt: skip
_NUMBERS: Final = {word: str(n) for n, word in enumerate(
    ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty"]
)} | {word: word for word in ["thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "million", "billion", "dozen", "half", "double", "twice", "once", "both", "all", "none", "every"]}  # fmt: skip
_MONTHS: Final = {
    name: n
    for n, names in enumerate(
        ["january jan", "february feb", "march mar", "april apr", "may", "june jun", "july jul", "august aug", "september sep sept", "october oct", "november nov", "december dec"], 1
    )
    for name in names.split()
}  # fmt: skip
_TURNS: Final = frozenset(
    [
        "not",
        "no",
        "never",
        "without",
        "cannot",
        "nor",
        "neither",
        "except",
        "unless",
        "instead",
        "last",
        "next",
        "previous",
        "today",
        "tomorrow",
        "yesterday",
        "tonight",
        "monday",
        "tuesday",
        "wednesday",
        "thursday",
        "friday",
        "saturday",
        "sunday",
        "daily",
        "weekly",
        "monthly",
        "yearly",
    ]
)
_COMMON: Final = frozenset(
    [
        "a",
        "an",
        "the",
        "and",
        "or",
        "of",
        "to",
        "for",
        "from",
        "in",
        "on",
        "at",
        "by",
        "with",
        "as",
        "is",
        "are",
        "be",
        "am",
        "was",
        "were",
        "it",
        "its",
        "this",
        "that",
        "these",
        "those",
        "i",
        "me",
        "my",
        "we",
        "us",
        "our",
        "you",
        "your",
        "he",
        "she",
        "they",
        "them",
        "their",
        "will",
        "would",
        "can",
        "could",
        "should",
        "please",
        "kindly",
        "hi",
        "hello",
        "thanks",
        "thank",
        "now",
        "just",
        "so",
        "do",
        "does",
        "did",
        "have",
        "has",
        "had",
        "if",
        "then",
        "there",
        "here",
    ]
)


def read_text(text: str) -> Text:
    """The values and the prose of a text."""
    return _Reader(visible(text)).read()


def visible(text: str) -> str:
    """As a reader sees it: one form of each character, without invisible ones.

    Superscripts and the like become separate ids: 10² is not 102.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", "".join(map(_shown, text)))


@functools.lru_cache(4096)
def _shown(char: str) -> str:
    """A character before it is normalised."""
    if char.isascii():
        return char
    if char.isdecimal():
        return str(unicodedata.decimal(char))
    if char == "\N{MINUS SIGN}":
        return "-"
    category = unicodedata.category(char)
    return f" u{ord(char):x} " if category == "No" else "" if category == "Cf" else char


def exact_value(text: str) -> str:
    """A text that is one value: a number by its amount, anything else as it is written."""
    return number_of(text) or text


def number_of(text: str) -> str:
    """The number that this text writes, in one form; empty: it is none, or can be read in two ways."""
    sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text.removeprefix("+"))
    if not digits[:1].isdigit() or _TWO_WAYS.fullmatch(digits):
        return ""
    if digits[0] == "0" and digits[1:2].isdigit():
        return ""  # an id: 007 is not 7
    for form, separators in ((_GROUPED, ",'’"), (_GROUPED_BY_DOTS, ".")):
        found = form.fullmatch(digits)
        if found is not None:
            fraction = found[1] or ""
            whole = digits[: len(digits) - len(fraction) - 1] if fraction else digits
            for separator in separators:
                whole = whole.replace(separator, "")
            kept = fraction.rstrip("0")
            value = f"{whole}.{kept}" if kept else whole
            return value if value == "0" else sign + value
    return ""


class _Reader:
    """One pass over a text. A number waits for the currency or the month behind it."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._starts_sentence = True
        self._has_names = not text.isupper()
        self._amounts: list[str] = []
        self._numbers: list[str] = []
        self._dates: list[str] = []
        self._ids: list[str] = []
        self._names: list[str] = []
        self._turns: list[str] = []
        self._prose: list[str] = []
        self._currency = ""
        """A currency that a number may follow."""
        self._month = 0
        """A month that a day may follow."""
        self._day = ""
        """A day and its month, which a year may follow."""
        self._fresh = False
        """The last number stood directly before what is read now."""

    def read(self) -> Text:
        for found in _RUN.finditer(self._text):
            run, sign, end = found.groups()
            if end is not None:
                self._starts_sentence = True
            elif sign is not None:
                self._take_currency(_CURRENCIES[sign])
            elif _DIGIT.search(run):
                self._take_digits(run)
                self._starts_sentence = False
            else:
                for piece in _PIECE.findall(run):
                    self._take_word(piece)
                    self._starts_sentence = False
        self._settle()
        kinds = (self._amounts, self._numbers, self._dates, self._ids, self._turns)
        return Text(tuple(map(tuple, kinds)), self._prose, self._names)

    def _take_digits(self, run: str) -> None:
        date = _date_of(run)
        if date:
            self._settle()
            self._dates.append(date)
            return
        ordinal = _ORDINAL.fullmatch(run)
        number = ordinal[1] if ordinal else number_of(run)
        if not number:
            self._settle()
            self._ids.append(run.casefold())
        elif self._currency:
            self._amounts.append(f"{number} {self._currency}")
            self._currency = ""
        elif self._day and len(number) == 4:
            self._dates.append(f"{number}-{self._day}")
            self._day = ""
        elif self._month and _is_day(number):
            self._day, self._month = f"{self._month}-{number}", 0
        else:
            self._settle()
            self._numbers.append(number)
            self._fresh = True

    def _take_currency(self, currency: str) -> None:
        if self._fresh:
            self._amounts.append(f"{self._numbers.pop()} {currency}")
            self._fresh = False
        else:
            self._settle()
            self._currency = currency

    def _take_word(self, written: str) -> None:
        word = written.casefold()
        if word in _CURRENCIES:
            self._take_currency(_CURRENCIES[word])
            return
        month = _MONTHS.get(word, 0)
        if month and self._fresh and _is_day(self._numbers[-1]):
            self._day, self._fresh = f"{month}-{self._numbers.pop()}", False
            return
        if word == "of" and self._fresh:
            return  # the 17th of November
        self._settle()
        is_capital = written[0].isupper() and not self._starts_sentence
        if month and (len(word) > 3 or is_capital):
            self._month = month
        elif word in _NUMBERS:
            self._numbers.append(_NUMBERS[word])
            self._fresh = True
        elif word in _TURNS:
            self._turns.append(word)
        elif word.endswith(("n't", "n’t")):
            self._turns.append("not")
        elif word not in _COMMON:
            word = word.removesuffix("'s").removesuffix("’s")
            self._prose.append(word)
            if self._has_names and is_capital:
                self._names.append(word)

    def _settle(self) -> None:
        """What waited for a neighbour has none."""
        self._fresh = False
        if self._currency:
            self._amounts.append(self._currency)
            self._currency = ""
        if self._month:
            self._dates.append(f"month {self._month}")
            self._month = 0
        if self._day:
            self._dates.append(self._day)
            self._day = ""


def _is_day(number: str) -> bool:
    return number.isdigit() and len(number) <= 2 and 1 <= int(number) <= 31


def _date_of(run: str) -> str:
    found = _YEAR_FIRST.fullmatch(run)
    if found is not None:
        return f"{found[1]}-{int(found[3])}-{int(found[4])}"
    found = _DAY_FIRST.fullmatch(run)
    return "" if found is None else f"{found[3]}-{int(found[2])}-{int(found[1])}"
