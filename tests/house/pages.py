"""Reads the fenced blocks of a Markdown page and runs them, as a reader would, top to bottom.

As a program: ``python pages.py PAGE COMMAND…`` runs one page in the current folder. All its Python
blocks share one ``__main__``, so a later block uses what an earlier one made; ``await`` is allowed at
the top level, on one event loop per page; blocks of ``>>>`` are compared. In console blocks, lines that
start with ``$ twicesafe`` are run with COMMAND and must succeed, and ``$ export NAME=value`` holds for
the rest of the page. A comment directly before a block changes that:

    <!-- no-run: reason -->     skip the block
    <!-- exact -->              compare what the commands print with what the page shows
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^(?P<indent>[ \t]*)(?P<mark>`{3,}|~{3,})[ \t]*(?P<info>[^`\n]*)$")
COMMENT = re.compile(r"^\s*<!--\s*(?P<text>.*?)\s*-->\s*$")
NO_RUN = re.compile(r"no-run(?::\s*(?P<reason>.*))?$")

PYTHON = {"python", "py", "pycon"}
CONSOLE = {"console"}


class PageError(Exception):
    """The page itself is wrong, and says so before anything runs."""


@dataclass(frozen=True)
class Block:
    """One fenced block; ``line`` is the line of the page on which its text begins."""

    language: str
    text: str
    line: int
    no_run: str | None
    exact: bool

    @property
    def is_python(self) -> bool:
        return self.language in PYTHON

    @property
    def is_console(self) -> bool:
        return self.language in CONSOLE


@dataclass(frozen=True)
class Command:
    """One ``$`` line of a console block with what the page shows under it."""

    words: str
    shown: str
    line: int


def blocks(markdown: str) -> list[Block]:
    found = []
    lines = iter(enumerate(markdown.splitlines(), 1))
    comments: list[str] = []
    for number, line in lines:
        opening = FENCE.match(line)
        if opening is None:
            comment = COMMENT.match(line)
            if comment:
                comments.append(comment["text"])
            elif line.strip():
                comments = []
            continue
        body = list(_until_closed(lines, opening["mark"], number))
        info = opening["info"].strip()
        language = re.split(r"[\s{,]", info.lstrip("{. "), maxsplit=1)[0].lower()
        found.append(_block(language, body, opening["indent"], number + 1, comments))
        comments = []
    return found


def _until_closed(lines: Iterator[tuple[int, str]], mark: str, opened: int) -> Iterator[str]:
    for _, line in lines:
        bare = line.strip()
        if bare.startswith(mark) and set(bare) == {mark[0]}:
            return
        yield line
    raise PageError(f"the block that opens on line {opened} is never closed")


def _block(language: str, body: list[str], indent: str, line: int, comments: list[str]) -> Block:
    text = "".join(f"{row.removeprefix(indent)}\n" for row in body)
    no_run, exact = None, False
    for comment in comments:
        if skipped := NO_RUN.match(comment):
            if not skipped["reason"]:
                raise PageError(f"the block on line {line} is not run and does not say why")
            no_run = skipped["reason"]
        elif comment == "exact":
            exact = True
    return Block(language, text, line, no_run, exact)


def commands(block: Block) -> list[Command]:
    """The ``$`` lines of a console block; a line that ends in a backslash goes on."""
    found: list[Command] = []
    words, shown, began, open_ended = "", [], 0, False
    for number, row in enumerate(block.text.splitlines(), block.line):
        if open_ended:
            words += " " + row.strip().removeprefix("> ").strip()
        elif row.startswith("$ "):
            if words:
                found.append(Command(words, "\n".join(shown), began))
            words, shown, began = row[2:].strip(), [], number
        else:
            shown.append(row)
            continue
        open_ended = words.endswith("\\")
        words = words.removesuffix("\\").strip()
    if words:
        found.append(Command(words, "\n".join(shown), began))
    return found


# ------------------------------------------------------------------ running, in its own process


def _run_page(page: Path, command: list[str]) -> None:
    import asyncio

    import __main__  # what the blocks fill, and what their functions belong to

    names = vars(__main__)
    for name in [n for n in names if not n.startswith("__")]:
        del names[name]
    ran = 0
    with asyncio.Runner() as runner:
        for block in blocks(page.read_text("utf-8")):
            if block.no_run is not None:
                continue
            if block.is_python:
                _run_python(page, block, names, runner)
                ran += 1
            elif block.is_console:
                ran += _run_console(page, block, command)
    print(f"{page}: {ran} ran")


def _run_python(page: Path, block: Block, names: dict[str, object], runner: object) -> None:
    import ast
    import doctest
    import inspect

    if block.language == "pycon" or block.text.lstrip().startswith(">>>"):
        test = doctest.DocTestParser().get_doctest(
            block.text, names, page.name, str(page), block.line - 1
        )
        checker = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        if checker.run(test, clear_globs=False).failed:
            raise SystemExit(f"{page}:{block.line}: the shown answers are not the given ones")
        names.update(test.globs)
        return
    # Empty lines before it give tracebacks the line numbers of the page.
    source = "\n" * (block.line - 1) + textwrap.dedent(block.text)
    code = compile(source, str(page), "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    answer = eval(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        runner.run(answer)  # type: ignore[attr-defined]


def _run_console(page: Path, block: Block, program: list[str]) -> int:
    import os
    import shlex
    import subprocess

    ran = 0
    for command in commands(block):
        words = shlex.split(command.words, comments=True)
        setting = {}
        if words[0] == "export":
            os.environ.update(word.split("=", 1) for word in words[1:])
            continue
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, _, value = words.pop(0).partition("=")
            setting[name] = value
        if not words or words[0] != "twicesafe":
            continue
        if shell := {"|", ">", ">>", "<", "&&", "||", ";", "&"} & set(words):
            raise SystemExit(f"{page}:{command.line}: no shell here to understand {shell}")
        done = subprocess.run(
            [*program, *words[1:]],
            env={**os.environ, **setting},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        where = f"{page}:{command.line}: `{command.words}`"
        if done.returncode:
            raise SystemExit(
                f"{where} ended with status {done.returncode}\n{done.stdout}{done.stderr}"
            )
        if block.exact and _trimmed(done.stdout) != _trimmed(command.shown):
            raise SystemExit(f"{where} printed\n{done.stdout}\nand the page shows\n{command.shown}")
        ran += 1
    return ran


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


if __name__ == "__main__":
    import sys

    # From its importable name, so that `__main__` is left to the page.
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    from tests.house import pages as itself

    itself._run_page(Path(sys.argv[1]), sys.argv[2:])
