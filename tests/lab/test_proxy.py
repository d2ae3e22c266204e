"""The fault proxy does what it says, at the byte that was asked for."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from lab.field.proxy import ACTS, Fault, Proxy


@pytest.fixture
def echo() -> Iterator[Proxy]:
    """A proxy in front of a server that says everything twice."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(plug: socket.socket) -> None:
        with plug:
            while data := plug.recv(1000):
                plug.sendall(data * 2)

    def listen() -> None:
        try:
            while True:
                plug, _ = listener.accept()
                threading.Thread(target=_quietly, args=(serve, plug), daemon=True).start()
        except OSError:
            return

    threading.Thread(target=listen, daemon=True).start()
    with Proxy(listener.getsockname()[1]) as proxy:
        yield proxy
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()


def _quietly(act, *args) -> None:
    try:
        act(*args)
    except OSError:
        return


def ask(proxy: Proxy, text: bytes = b"abcd") -> bytes:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=0.3) as plug:
        found = b""
        try:
            plug.sendall(text)
            while len(found) < 2 * len(text) and (data := plug.recv(1000)):
                found += data
        except (ConnectionError, TimeoutError) as error:
            return found + b" " + type(error).__name__.encode()
    return found


def test_without_a_fault_all_passes(echo: Proxy):
    assert ask(echo) == b"abcdabcd"
    assert echo.faults == 0


@pytest.mark.parametrize("after", range(9))
def test_a_reply_is_cut_at_the_byte(echo: Proxy, after: int):
    fault = echo.arm(Fault("reply", after))
    assert ask(echo) == b"abcdabcd"[:after]
    assert fault.happened
    assert ask(echo) == b"abcdabcd"  # once


def test_a_request_is_cut_at_the_byte(echo: Proxy):
    fault = echo.arm(Fault("request", 3))
    assert b"d" not in ask(echo).partition(b" ")[0]
    assert fault.happened
    assert ask(echo) == b"abcdabcd"


@pytest.mark.parametrize(
    "act, seen",
    [
        ("half-close", b"abc"),
        ("silence", b"abc TimeoutError"),
        ("delay", b"abcdabcd"),
        ("throttle", b"abcdabcd"),
    ],
)
def test_other_faults(echo: Proxy, act: str, seen: bytes):
    echo.arm(Fault("reply", 3, act, 0.05))
    assert ask(echo) == seen
    assert ask(echo) == b"abcdabcd"


def test_a_reset_is_rude(echo: Proxy):
    echo.arm(Fault("reply", 0, "reset"))
    assert ask(echo) == b" ConnectionResetError"


def test_all_faults_are_known():
    assert set(ACTS) == {"close", "reset", "half-close", "silence", "delay", "throttle"}


def test_held_bytes_come_later(echo: Proxy):
    echo.held = True
    assert ask(echo) == b" TimeoutError"
    echo.held = False
    assert ask(echo) == b"abcdabcd"
