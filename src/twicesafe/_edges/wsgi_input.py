"""The input of a WSGI request: has a request without Content-Length a body all the same?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["has_unsized_body"]


def has_unsized_body(environ: Mapping[str, Any]) -> bool:
    """For a request without a Content-Length. May take an octet from the input.

    Reading an input that does not end would wait forever. It ends if the server says so, and over HTTP/2 and
    HTTP/3, where each request is a stream of its own. There a body needs neither a length nor a coding.
    """
    if environ.get("HTTP_TRANSFER_ENCODING"):
        return True
    ends = environ.get("wsgi.input_terminated") or environ.get("SERVER_PROTOCOL", "").startswith(
        ("HTTP/2", "HTTP/3")
    )
    return bool(ends and environ["wsgi.input"].read(1))
