"""No tracked file tells where it was made, where packages come from, or a promise we cannot keep."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

from tests.house.repository import name, tracked_files

# Written in pieces, so that this file passes its own test.
REGISTRIES = re.compile(
    "|".join(
        re.escape(host)
        for host in (
            "pypi" + ".org",
            "python" + "hosted.org",
            "registry." + "npmjs.org",
            "registry." + "yarnpkg.com",
            "conda." + "anaconda.org",
            "jfrog" + ".io",
            "pkg." + "dev/",
            "code" + "artifact.",
        )
    )
    + r"|https?://[^\s\"'>)]*/"
    + "simple"
    + r"\b"
    + r"|--(?:extra-)?index"
    + "-url|--find"
    + "-links",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(
    r"(?<![\w.-])/(?:" + "|".join(("ro" + "ot", "ho" + "me", "wo" + "rk", "Us" + "ers")) + r")/"
    r"|[A-Za-z]:\\+" + "Us" + "ers"
)

PROMISE = re.compile(r"\bexactly" + r"(?P<join>[\s_*-]+)once\b", re.IGNORECASE)

# Where the phrase may stand because its sentence says that it cannot be promised, or quotes it.
DENIALS = ["README.md", "docs/*"]

# Where it may stand because a neighbour carries that name (written as one word there).
NAMED_SO = [
    "pyproject.toml", "requirements/bench.txt", "benchmarks/*", "docs/*",
    "tests/*", "lab/peers/*", "lab/results/peers.json",
]  # fmt: skip

NEGATION = re.compile(
    r"\b(?:no|not|never|nobody|none|nothing|cannot|can't|impossible|neither|without|instead)\b"
    r"|n't\b|n’t\b",
    re.IGNORECASE,
)
QUOTED = re.compile(r"[\"“«`][^\"”»`\n]*\Z")


def registries(text: str) -> list[str]:
    return [found[0] for found in REGISTRIES.finditer(text)]


def machine_paths(text: str) -> list[str]:
    return [found[0] for found in MACHINE_PATHS.finditer(text)]


def promises(file: str, text: str) -> list[str]:
    """Sentences of a file that hold the phrase without a right to it."""
    wrong = []
    for found in PROMISE.finditer(text):
        sentence, before = _sentence(text, found.start(), found.end())
        is_name = found["join"] in {"-", "_"} and _matches(file, NAMED_SO)
        denies = NEGATION.search(sentence) or QUOTED.search(before)
        if not is_name and not (denies and _matches(file, DENIALS)):
            wrong.append(" ".join(sentence.split()))
    return wrong


def _matches(file: str, patterns: list[str]) -> bool:
    return any(fnmatch(file, pattern) for pattern in patterns)


def _sentence(text: str, start: int, end: int) -> tuple[str, str]:
    """The sentence around a place, and its part before that place."""
    ends = re.compile(r"[.!?](?=\s)|\n\s*\n|\n(?=[#|>-])")
    begin = max((m.end() for m in ends.finditer(text, 0, start)), default=0)
    stop = ends.search(text, end)
    return text[begin : stop.start() if stop else len(text)], text[begin:start]


def read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return path.read_bytes().decode("latin-1")


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {name(path): read(path) for path in tracked_files()}


def test_no_file_names_a_registry(texts: dict[str, str]):
    assert {file: found for file, text in texts.items() if (found := registries(text))} == {}


def test_no_file_names_a_place_on_a_machine(texts: dict[str, str]):
    assert {file: found for file, text in texts.items() if (found := machine_paths(text))} == {}


def test_no_file_promises_the_impossible(texts: dict[str, str]):
    assert {file: found for file, text in texts.items() if (found := promises(file, text))} == {}


# ------------------------------------------------------------------ the rules themselves


@pytest.mark.parametrize(
    "text",
    [
        "https://" + "pypi" + ".org/project/x",
        "HTTPS://files.Python" + "Hosted.org/a.whl",
        "-i http://mirror.example/" + "simple",
        "--index" + "-url x",
    ],
)
def test_a_registry_is_seen(text: str):
    assert registries(text)


@pytest.mark.parametrize(
    "text",
    ["cd /" + "root/x", "sqlite:////" + "home/me/a.db", "'/" + "work/main'", "C:\\" + "Users\\me"],
)
def test_a_machine_is_seen(text: str):
    assert machine_paths(text)


@pytest.mark.parametrize(
    "text", ["docs/" + "home/x", "src/" + "work/", "$" + "HOME/x", "/" + "homes"]
)
def test_other_paths_are_left_alone(text: str):
    assert machine_paths(text) == []


ONCE = "exactly" + " once"


@pytest.mark.parametrize(
    "file, text",
    [
        ("README.md", f"Runs {ONCE}."),
        ("README.md", f"Nothing is lost. It runs {ONCE}."),
        ("README.md", "Runs exactly\nonce".replace("exactly", "Exactly")),
        ("docs/a/b.md", f"We give you *{ONCE}* delivery."),
        ("src/twicesafe/_values/keys.py", f"Never {ONCE}."),
        ("src/twicesafe/_values/keys.py", ONCE.replace(" ", "-")),
        ("README.md", ONCE.replace(" ", "-") + " delivery for all"),
    ],
)
def test_a_promise_is_seen(file: str, text: str):
    assert promises(file, text)


@pytest.mark.parametrize(
    "file, text",
    [
        ("README.md", f"Nobody can run it {ONCE}."),
        ("README.md", f"One line.\nIt cannot\npromise {ONCE} delivery."),
        ("docs/explanation/limits.md", f"Why “{ONCE}” is a wish."),
        ("pyproject.toml", '"' + ONCE.replace(" ", "-") + '>=0.2"'),
        ("benchmarks/peers.py", "import " + ONCE.replace(" ", "_")),
        ("src/twicesafe/_values/keys.py", "at most once, exactly one"),
    ],
)
def test_a_denial_and_a_name_are_left_alone(file: str, text: str):
    assert promises(file, text) == []
