"""``import twicesafe`` loads code and does nothing else.

Watched from a fresh interpreter through an audit hook: no socket, no process, no thread, no file but
Python's own, and no third-party package but the one runtime dependency. Asking for a store is what
loads its driver.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

# msgspec loads typing_extensions where it is installed; it does not ask for it.
ALLOWED_THIRD_PARTY = {"twicesafe", "msgspec", "typing_extensions"}

# Loaded only by the modules that need them, although Python ships them or our tests install them.
NOT_BY_IMPORT = {
    "sqlite3", "psycopg", "psycopg_pool", "asyncpg", "redis", "valkey", "pymysql", "asyncmy",
    "aiomysql", "boto3", "pymongo", "httpx", "httpx2", "starlette", "uvicorn", "typer", "click", "rich",
    "pydantic", "attr", "attrs", "pytest", "hypothesis", "unittest", "multiprocessing",
    "http.client", "ssl", "asyncio", "pathlib", "random", "concurrent.futures",
}  # fmt: skip

WATCH = """
import json, sys

CODE = (".py", ".pyc", ".so", ".pyd", ".pth")
FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn",
             "sqlite3.", "_thread.start", "tempfile.", "urllib.", "ctypes.dlopen", "os.mkdir",
             "os.remove", "os.rename", "os.putenv", "signal.")
seen = []

def is_code(path):
    path = path.decode() if isinstance(path, bytes) else str(path)
    return path.endswith(CODE) or ".dist-info" in path or path.endswith((".zip", "pyvenv.cfg"))

def hook(event, args):
    if event == "open":
        path, mode, flags = args
        writes = (mode is not None and set(mode) & set("wax+")) or (flags or 0) & 3
        if writes or not is_code(path):
            seen.append([event, repr(path), repr(mode)])
    elif event.startswith(FORBIDDEN):
        seen.append([event, *map(repr, args)])

before = set(sys.modules)
sys.addaudithook(hook)
{statement}
watched, seen = seen, []
loaded = set(sys.modules) - before

threads = len(sys._current_frames())
third = sorted({{
    name.partition(".")[0]
    for name in loaded
    if "site-packages" in (getattr(getattr(sys.modules[name], "__spec__", None), "origin", None) or "")
}} | {{name.partition(".")[0] for name in loaded if name.startswith("twicesafe")}})
print(json.dumps({{"events": watched, "third": third, "threads": threads, "loaded": sorted(loaded)}}))
"""


def watch(statement: str) -> dict:
    done = subprocess.run(
        [sys.executable, "-B", "-W", "error", "-c", WATCH.format(statement=statement)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imported() -> dict:
    return watch("import twicesafe")


def test_it_touches_nothing(imported: dict):
    assert imported["events"] == []


def test_it_starts_no_thread(imported: dict):
    assert imported["threads"] == 1


def test_it_loads_no_third_party_package_but_one(imported: dict):
    assert set(imported["third"]) <= ALLOWED_THIRD_PARTY


def test_it_loads_no_driver(imported: dict):
    assert NOT_BY_IMPORT & set(imported["loaded"]) == set()


def test_the_testing_kit_and_the_edges_wait_to_be_asked(imported: dict):
    inner = {name.split(".")[1] for name in imported["loaded"] if name.startswith("twicesafe.")}
    assert inner & {"testing", "cli", "demo", "asgi", "wsgi", "dashboard", "proxy"} == set()


# ------------------------------------------------------------------ the watcher itself


@pytest.mark.parametrize(
    "statement, event",
    [
        ("import socket; socket.socket().close()", "socket."),
        ("open('/dev/null').close()", "open"),
        ("import os; os.close(os.open('/dev/null', os.O_WRONLY))", "open"),
        ("import os; open(os.__file__, 'a').close()", "open"),
        ("import subprocess; subprocess.run(['true'])", "subprocess."),
        ("import sqlite3; sqlite3.connect(':memory:').close()", "sqlite3."),
        ("import tempfile; tempfile.mkdtemp()", "tempfile."),
    ],
)
def test_the_watcher_sees(statement: str, event: str):
    assert any(seen[0].startswith(event) for seen in watch(statement)["events"])


def test_the_watcher_lets_plain_imports_pass():
    seen = watch("import json, decimal, msgspec")
    assert seen["events"] == []
    assert set(seen["third"]) - {"typing_extensions"} == {"msgspec"}


def test_the_watcher_counts_threads():
    code = textwrap.dedent("""
        import threading
        gate = threading.Event()
        threading.Thread(target=gate.wait, daemon=True).start()
    """)
    assert watch(code)["threads"] == 2
