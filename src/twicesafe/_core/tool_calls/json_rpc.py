"""MCP on the wire: which message calls a tool, how the server's answer ends the call, and our own answers.

A proxy has only the bytes of the server's answer to tell how a call ended:

    a result, or a task that the server has started                done
    a result with isError                                          what the tool's setting ``errors`` says
    a result with "dev.twicesafe/state": "not_done" in _meta       nothing was done
    a result with isError and another such state                   nothing: the server has its own records
    an error of JSON-RPC itself, a request for input, HTTP 3xx, 4xx  nothing was done
    anything else: another error, HTTP 5xx, no complete answer     unknown

Parsers differ, so a request that they could read in two ways is refused: repeated names, names that differ
from those of the protocol in case only, batches that contain a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from ..http.json_reading import Members, WholeNumber, read_json
from .answers import META, ToolAnswer

__all__ = [
    "EventSplitter",
    "RpcCall",
    "UnreadableError",
    "answer_message",
    "event_of",
    "how_it_ended",
    "read_call",
    "refusal_message",
    "response_in",
]

Ended: TypeAlias = Literal["done", "not_done", "failed", "unknown"]
"""failed: the tool says that it failed, and not whether anything was done."""

_NAMES: Final = frozenset({"jsonrpc", "method", "id", "params", "name", "arguments", "_meta"})
_NOTHING_DONE: Final = frozenset({-32700, -32600, -32601, -32602, -32042})
"""Errors of JSON-RPC that come before a tool is called; the last one asks the client to visit a URL."""
COMPLETE: Final = "complete"
"""The ``resultType`` of a tool's result; the protocol requires it since 2026. A request for input
and a task have others."""
_ASKS: Final = "input_required"
_EVENT_END: Final = re.compile(rb"\r\n\r\n|\n\n|\r\r")


class UnreadableError(ValueError):
    """Parsers may read the message in different ways."""


class RpcCall(msgspec.Struct, frozen=True):
    """A request that calls a tool."""

    id: Any
    tool: str
    arguments: dict[str, Any]
    """As they are compared: without a schema, ``"10"`` and ``10`` are taken for one number."""
    meta: dict[str, Any]


def read_call(body: bytes) -> RpcCall | None:
    """The tool call in the body of a request; None: another message."""
    try:
        message = read_json(body)
    except ValueError:
        raise UnreadableError("the body is not JSON") from None
    if isinstance(message, list) and not isinstance(message, Members):
        if any(_names_a_call(one) for one in message):
            raise UnreadableError("a batch cannot call tools here: send each call by itself")
        return None
    if not isinstance(message, Members):
        raise UnreadableError("the body is not a JSON-RPC message")
    found = _protocol_members(message)
    if found.get("method") != "tools/call":
        return None
    params = found.get("params")
    about = _protocol_members(params) if isinstance(params, Members) else {}
    tool, id_ = about.get("name"), _plain(found.get("id"))
    if not isinstance(tool, str) or type(id_) not in (str, int):
        raise UnreadableError("tools/call needs an id and the name of a tool")
    arguments, meta = (_plain(about.get(name) or Members()) for name in ("arguments", "_meta"))
    if not isinstance(arguments, dict) or not isinstance(meta, dict):
        raise UnreadableError("arguments and _meta must be objects")
    return RpcCall(id_, str(tool), _compared(arguments), meta)


def _names_a_call(message: Any) -> bool:
    return isinstance(message, Members) and "tools/call" in message.named("method")


def _protocol_members(members: Members) -> dict[str, Any]:
    """By name. Some parsers ignore the case of names, and differ about which of two they take."""
    for name, _ in members:
        if name not in _NAMES and name.casefold() in _NAMES:
            raise UnreadableError(
                f"{name!r} is not a name of the protocol; check upper and lower case"
            )
    return _named(members)


def _named(members: Members) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise UnreadableError("a name is repeated in an object")
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, Members):
        return {name: _plain(each) for name, each in _named(value).items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, WholeNumber):
        if len(value) > 4000:
            raise UnreadableError("a number is too long")
        return int(value)
    if isinstance(value, float) and not abs(value) < float("inf"):
        raise UnreadableError("a number is not finite")
    return value


def _compared(value: Any) -> Any:
    """A model writes 10 or "10" for the same argument. "007" is text."""
    if isinstance(value, dict):
        return {name: _compared(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_compared(each) for each in value]
    if isinstance(value, str) and re.fullmatch(r"0|-?[1-9][0-9]{0,18}", value, re.ASCII):
        return int(value)
    return value


# --- the server's answer ---------------------------------------------------------------------


class EventSplitter:
    """Splits an event stream into its events, each with the octets that were sent."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        self._rest += data
        found = []
        while (end := _EVENT_END.search(self._rest)) is not None:
            found.append(self._rest[: end.end()])
            self._rest = self._rest[end.end() :]
        return found


def response_in(event: bytes, id_: Any) -> dict[str, Any] | None:
    """The response to the request of this id, if this event has it; also for a plain body."""
    if event.lstrip()[:1] != b"{":
        lines = re.split(rb"\r\n|\n|\r", event)
        data = [line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:")]
        event = b"\n".join(data)
    try:
        message = msgspec.json.decode(event)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    if not isinstance(message, dict) or message.get("id") != id_:
        return None
    return message if "result" in message or "error" in message else None


def how_it_ended(status: int, response: Mapping[str, Any] | None) -> Ended:
    """How the call ended, by the status and the JSON-RPC response, if there was one."""
    if 300 <= status < 500:
        return "not_done"
    if response is None or status != 200:
        return "unknown"
    error, result = response.get("error"), response.get("result")
    if error is not None:
        code = error.get("code") if isinstance(error, dict) else None
        return "not_done" if code in _NOTHING_DONE else "unknown"
    if not isinstance(result, dict):
        return "unknown"
    meta = result.get("_meta")
    state = meta.get(META + "state") if isinstance(meta, dict) else None
    if state == "not_done" or (state is not None and result.get("isError")):
        return "not_done"
    if result.get("resultType") == _ASKS:
        return "not_done"
    return "failed" if result.get("isError") else "done"


# --- our own answers -------------------------------------------------------------------------


def answer_message(id_: Any, answer: ToolAnswer) -> bytes:
    """The result for the client: what was recorded, with a note for the model; or what to do next.

    Without its result, a tool that was done gets ``isError``: a client refuses a result without the
    structured content that the tool declares.
    """
    kept = answer.result if answer.has_result else None
    if isinstance(kept, dict) and kept.get("resultType", COMPLETE) != COMPLETE:
        # A task: the client asks the server how it ended. Its schema allows no more members.
        return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "result": kept})
    made: dict[str, Any] = {"content": []}
    if isinstance(kept, dict) and isinstance(kept.get("content"), list):
        made = dict(kept)
    elif answer.has_result:  # an operator recorded it
        text = kept if isinstance(kept, str) else msgspec.json.encode(kept).decode()
        made["content"] = [{"type": "text", "text": text}]
        if isinstance(kept, dict):
            made["structuredContent"] = kept
    made.setdefault("resultType", COMPLETE)
    made["content"] = [*made["content"], {"type": "text", "text": answer.text}]
    made["isError"] = not answer.has_result
    made["_meta"] = {**(made.get("_meta") or {}), **answer.meta}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": id_, "result": made})


def refusal_message(why: str) -> bytes:
    """For a message that cannot be read safely: nothing was sent to the server."""
    error = {"code": -32600, "message": f"{why}; nothing was run"}
    return msgspec.json.encode({"jsonrpc": "2.0", "id": None, "error": error})


def event_of(message: bytes) -> bytes:
    return b"event: message\r\ndata: " + message + b"\r\n\r\n"
