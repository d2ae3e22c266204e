"""Text as a header value, for HTTP and for NATS, which has the same rules.

A value is printable ASCII without leading or trailing spaces, which a receiver would strip. Other
characters are sent as %XX, so that any key and any topic can be sent.
"""

from __future__ import annotations

from urllib.parse import quote, unquote

__all__ = ["line_of", "text_of"]


def line_of(text: str) -> str:
    if text.isascii() and text.isprintable() and text == text.strip():
        return text
    kept = quote(text, safe=" !#$&'()*+,/:;=?@[]<>{}|^`\"")
    inner = kept.strip(" ")
    before, _, after = kept.partition(inner) if inner else (kept, "", "")
    return before.replace(" ", "%20") + inner + after.replace(" ", "%20")


def text_of(line: str) -> str:
    """The text that `line_of` sent. A value that `line_of` cannot have made is left as it is."""
    text = unquote(line) if "%" in line else line
    return text if line_of(text) == line else line
