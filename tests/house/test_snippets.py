"""Every snippet of the README and of the docs runs, page by page, as a reader would try it."""

from __future__ import annotations

import ast
import codeop
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.house.pages import Block, Command, PageError, blocks, commands
from tests.house.repository import ROOT, name, pages

RUNNER = ROOT / "tests" / "house" / "pages.py"

# The installed command, whatever its script is called on this platform.
ENTRY = """
import sys
from importlib.metadata import entry_points
[main] = entry_points(group="console_scripts", name="twicesafe")
sys.argv[0] = "twicesafe"
sys.exit(main.load()())
"""
COMMAND = [sys.executable, "-c", ENTRY]


def run(page: Path, folder: Path, command: list[str] = COMMAND) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", str(RUNNER), str(page), *command],
        cwd=folder,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def blocks_that_are_not_run() -> Iterator[pytest.param]:
    for page in pages():
        try:
            found = blocks(page.read_text("utf-8"))
        except (OSError, PageError):
            continue  # test_page_runs says so
        for block in found:
            if block.no_run is not None:
                yield pytest.param(block.no_run, id=f"{name(page)}:{block.line}")


NOT_RUN = list(blocks_that_are_not_run())


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in pages()])
def test_page_runs(page: Path, tmp_path: Path):
    done = run(page, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", [pytest.param(page, id=name(page)) for page in pages()])
def test_a_block_can_be_pasted_into_a_console(page: Path):
    refused = [
        f"line {block.line}: {line}"
        for block in blocks(page.read_text("utf-8"))
        if block.is_python and not block.text.lstrip().startswith(">>>")
        for line in unpasteable(textwrap.dedent(block.text))
    ]
    assert not refused, f"add an empty line before: {refused}"


def unpasteable(text: str) -> Iterator[str]:
    """The line at which a console stops: it needs an empty line at the end of a compound statement.

    An empty line *inside* of a class or a function is not reported: from Python 3.13 on, a console
    takes a pasted block as a whole, and there is no other way to write it.
    """
    compiler = codeop.CommandCompiler()
    compiler.compiler.flags |= ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    pasted: list[str] = []
    for line in [*text.splitlines(), ""]:
        pasted.append(line)
        try:
            complete = compiler("\n".join(pasted), "<console>", "single")
        except SyntaxError:
            if not line.startswith(" "):
                yield line
            return
        if complete is not None:
            pasted = []


def test_what_cannot_be_pasted_is_found():
    assert list(unpasteable("for n in (1, 2):\n    print(n)\nassert n\n")) == ["assert n"]
    assert list(unpasteable("for n in (1, 2):\n    print(n)\n\nawait n\n")) == []


if NOT_RUN:  # so that the end of a run lists them, with their reasons

    @pytest.mark.parametrize("reason", NOT_RUN)
    def test_block_that_is_not_run(reason: str):
        pytest.skip(f"the page says: {reason}")


# ------------------------------------------------------------------ the reader and the runner


def page(folder: Path, text: str) -> Path:
    path = folder / "page.md"
    path.write_text(textwrap.dedent(text).replace("'''", "```"))
    return path


def test_blocks_are_found_with_their_lines_and_comments():
    text = (
        textwrap.dedent("""\
        # Title
        '''python
        a = 1
        '''
        <!-- no-run: needs a broker -->

        ''' python title="x.py"
        b
        '''
        - item
            '''py
            if 1:
                c
            '''
        <!-- exact -->
        '''console
        $ twicesafe stats
        '''
        ''''markdown
        '''python
        not code
        '''
        ''''
        """)
        .replace("'''", "```")
        .replace("'", "`")
    )
    assert blocks(text) == [
        Block("python", "a = 1\n", 3, None, exact=False),
        Block("python", "b\n", 8, "needs a broker", exact=False),
        Block("py", "if 1:\n    c\n", 12, None, exact=False),
        Block("console", "$ twicesafe stats\n", 17, None, exact=True),
        Block("markdown", "```python\nnot code\n```\n", 20, None, exact=False),
    ]


def test_a_comment_belongs_to_the_block_right_after_it():
    [block] = blocks("<!-- no-run: old -->\n\nSome words.\n\n```python\nx\n```\n")
    assert block.no_run is None


@pytest.mark.parametrize("text", ["```python\nx\n", "<!-- no-run -->\n```python\nx\n```\n"])
def test_a_broken_page_is_refused(text: str):
    with pytest.raises(PageError):
        blocks(text)


def test_commands_are_read_with_what_they_show():
    [block] = blocks("```console\n$ a \\\n>   --b\nout\nmore\n$ c\n```\n")
    assert commands(block) == [Command("a --b", "out\nmore", 2), Command("c", "", 6)]


def test_blocks_of_a_page_share_names_and_a_loop_and_the_folder(tmp_path: Path):
    text = """\
        '''python
        import asyncio, dataclasses
        @dataclasses.dataclass
        class Order:
            id: "int"
        loop = asyncio.get_running_loop() if False else None
        async def double(x): return 2 * x
        '''
        '''python
        four = await double(2)
        first = asyncio.get_running_loop()
        '''
        <!-- no-run: would stop everything -->
        '''python
        raise SystemExit(9)
        '''
        '''python
        await asyncio.sleep(0)
        assert first is asyncio.get_running_loop()
        assert Order.__module__ == __name__ == "__main__"
        import sys, typing, pathlib
        assert typing.get_type_hints(Order) == {"id": int}
        assert sys.modules["__main__"].Order is Order
        assert set(dir()).isdisjoint({"pages", "blocks", "Path", "itself"})
        pathlib.Path("left.txt").write_text(str(four))
        '''
        >>> not a block
        '''python
        >>> four
        4
        '''
        """
    done = run(page(tmp_path, text), tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "left.txt").read_text() == "4"


@pytest.mark.parametrize(
    "code, told",
    [
        ("x = 1\nraise ValueError('no')", 'page.md", line 5'),
        ("x = missing", 'page.md", line 4'),
        ("await nothing()", 'page.md", line 4'),
        ("import warnings\nwarnings.warn('old')", "UserWarning: old"),
        (">>> 1 + 1\n3", "page.md:4"),
    ],
)
def test_a_failing_block_is_reported_with_its_line(tmp_path: Path, code: str, told: str):
    made = tmp_path / "page.md"
    made.write_text(f"# T\n\n```python\n{code}\n```\n")
    done = run(made, tmp_path)
    assert done.returncode != 0
    assert told in done.stdout + done.stderr


ECHO = [
    sys.executable,
    "-c",
    "import os, sys; print(*sys.argv[1:], os.environ.get('A', '')); sys.exit('fail' in sys.argv)",
]


@pytest.mark.parametrize(
    "text, good",
    [
        ("$ twicesafe stats\nanything", True),
        ("$ twicesafe fail", False),
        ("$ pip install twicesafe", True),
        ("$ A=1 twicesafe fail", False),
        ("$ twicesafe stats | head", False),
    ],
)
def test_commands_run_and_must_succeed(tmp_path: Path, text: str, *, good: bool):
    made = tmp_path / "page.md"
    made.write_text(f"```console\n{text}\n```\n")
    assert (run(made, tmp_path, ECHO).returncode == 0) == good


@pytest.mark.parametrize(
    "text, good",
    [
        ("$ twicesafe a 'b c'\na b c", True),
        ("$ twicesafe a\nb", False),
        ("$ A=1 twicesafe x\nx 1", True),
        ("$ export A=2\n$ twicesafe x\nx 2", True),
    ],
)
def test_exact_output_is_compared(tmp_path: Path, text: str, *, good: bool):
    made = tmp_path / "page.md"
    made.write_text(f"<!-- exact -->\n```console\n{text}\n```\n")
    assert (run(made, tmp_path, ECHO).returncode == 0) == good
