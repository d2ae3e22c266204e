"""Sorts the parameters of a query or a form by name, where no parser could confuse the names.

Parsers differ: some decode ``%61mount``, some ignore case, some read ``a[b]``, ``a.b`` and ``a_b`` as one
name, some end a parameter at a semicolon. So parameters are sorted only if every parser sees different
names. Otherwise the text is compared as it was sent.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ordered", "percent_decoded"]

_MOST: Final = 1000
"""The most parameters that are sorted. Frameworks refuse more, and sorting takes time."""
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_PLAIN: Final = re.compile(rb"([A-Za-z0-9_$~\-]++)(?:\[[A-Za-z0-9_$~\-]*+\])*")
"""A name that all parsers read alike, except for its case and its brackets."""


def percent_decoded(text: bytes) -> bytes:
    if b"%" not in text:
        return text
    return _PERCENT.sub(lambda found: bytes.fromhex(found[1].decode()), text)


def ordered(text: bytes) -> tuple[bytes, bool]:
    """The sorted parameters, stable within a name, and whether scheme 1 sorted them the same way.

    Scheme 1 sorted by the name as it was sent.
    """
    if b"&" not in text:
        return text, True
    if b";" in text or text.count(b"&") >= _MOST:
        return text, False
    parts = text.split(b"&")
    names = [part.partition(b"=")[0] for part in parts]
    groups: list[bytes] = []
    for name in names:
        plain = _PLAIN.fullmatch(percent_decoded(name))
        if plain is None:
            return text, False
        groups.append(plain[1].lower())
    places = sorted(range(len(parts)), key=groups.__getitem__)
    return b"&".join([parts[place] for place in places]), groups == names
