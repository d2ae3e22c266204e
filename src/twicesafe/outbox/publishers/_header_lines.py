"""Text as the value of a header line: of HTTP, and of NATS, which has the same rules.

A value is printable ASCII without spaces at its ends; a receiver would cut those off. What is not goes as
%XX, so that any key and any topic can be carried.
"""

from __future__ import annotations

from urllib.parse import quote

__all__ = ["line_of"]


def line_of(text: str) -> str:
    if text.isascii() and text.isprintable() and text == text.strip():
        return text
    kept = quote(text, safe=" !#$&'()*+,/:;=?@[]<>{}|^`\"")
    inner = kept.strip(" ")
    before, _, after = kept.partition(inner) if inner else (kept, "", "")
    return before.replace(" ", "%20") + inner + after.replace(" ", "%20")
