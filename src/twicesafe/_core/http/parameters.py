"""Parameters of a query or a form, in one order: that of other names does not count.

Which names are "other" is the application's to say, and we do not know its reader. Some decode
``%61mount``, some have no case, some read ``a[b]``, ``a.b`` and ``a_b`` as one thing, some end a
parameter at a semicolon. So parameters may change places only if no reader could take their names for
the same; where that is not certain, the text is compared as it was sent.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["ordered", "percent_decoded"]

_MOST: Final = 1000
"""Parameters that are put in order. Frameworks refuse more, and sorting them takes time."""
_PERCENT: Final = re.compile(rb"%([0-9A-Fa-f]{2})")
_PLAIN: Final = re.compile(rb"([A-Za-z0-9_$~\-]++)(?:\[[A-Za-z0-9_$~\-]*+\])*")
"""A name that all readers understand alike, but for its case and what is in its brackets."""


def percent_decoded(text: bytes) -> bytes:
    if b"%" not in text:
        return text
    return _PERCENT.sub(lambda found: bytes.fromhex(found[1].decode()), text)


def ordered(text: bytes) -> tuple[bytes, bool]:
    """The parameters in one order, stable within a name; and: is it the order of scheme 1?

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
