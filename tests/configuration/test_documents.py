"""Settings files: what is read, and the line of each setting."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twicesafe import ConfigurationError
from twicesafe.configuration import resolve
from twicesafe.configuration._documents import read_document
from twicesafe.configuration._toml_lines import toml_lines

TRICKY = r'''# a comment = with a sign
[store] # and one here
url = "sqlite:///a.db?x=[1]#y" # not = a key

[policy]
"lease" = 5
retention = """
wait = 3
[proxy]
\""" '''
TRICKY_END = '''"""
backoff.first = 1
[ proxy . "listen" ]
x = 1
[http]
required = [ # a list
  "POST /a", # one = two
  'x = [',
  """
  y = 2
  """,
]
scope_secret = \'\'\'
a = '
\'\'\'
inline = { a = 1, b = "}" }
last = 2020-01-01 00:00:00
'''


def test_keys_are_found_and_nothing_that_looks_like_one():
    found = toml_lines(TRICKY + TRICKY_END)
    text = (TRICKY + TRICKY_END).splitlines()
    assert {".".join(names): text[line - 1] for names, line in found.items()} == {
        "store": "[store] # and one here",
        "store.url": 'url = "sqlite:///a.db?x=[1]#y" # not = a key',
        "policy": "[policy]",
        "policy.lease": '"lease" = 5',
        "policy.retention": 'retention = """',
        "policy.backoff": "backoff.first = 1",
        "policy.backoff.first": "backoff.first = 1",
        "proxy": '[ proxy . "listen" ]',
        "proxy.listen": '[ proxy . "listen" ]',
        "proxy.listen.x": "x = 1",
        "http": "[http]",
        "http.required": "required = [ # a list",
        "http.scope_secret": "scope_secret = '''",
        "http.inline": 'inline = { a = 1, b = "}" }',
        "http.last": "last = 2020-01-01 00:00:00",
    }


names = st.from_regex(r"[a-z_]{1,8}", fullmatch=True)
values = st.sampled_from(
    [
        "1",
        '"x = 1"',
        "[\n  1,\n  2, # a = 3\n]",
        '"""\na = 1\n"""',
        "'''\n[x]\n'''",
        "{ a = 1 }",
        "true",
    ]
)
tables = st.dictionaries(names, st.dictionaries(names, values, max_size=4), max_size=4)


@given(tables, st.sampled_from(["\n", "\r\n"]))
def test_every_key_has_the_line_on_which_it_was_written(made: dict[str, dict[str, str]], end: str):
    lines: list[str] = []
    expected: dict[tuple[str, ...], int] = {}
    for table, inside in made.items():
        lines += ["# a comment", f"[{table}]"]
        expected[table,] = len(lines)
        for name, value in inside.items():
            first, *more = f"{name} = {value}".split("\n")
            lines.append(first)
            expected[table, name] = len(lines)
            lines += more
    assert toml_lines(end.join(lines)) == expected


def test_yaml_is_the_same_data(tmp_path: Path):
    toml, yaml = tmp_path / "a.toml", tmp_path / "a.yaml"
    toml.write_text('[store]\nurl = "x"\n[policy]\nlease = 5\n[policy.backoff]\nfirst = "1s"\n')
    yaml.write_text("store:\n  url: x\npolicy:\n  lease: 5\n\n  backoff:\n    first: 1s\n")
    one, other = read_document(toml), read_document(yaml)
    assert one.data == other.data
    assert one.place("policy", "backoff", "first") == f"{toml}:6"
    assert other.place("policy", "backoff", "first") == f"{yaml}:7"
    assert other.place("policy", "unknown") == f"{yaml}:3"


@pytest.mark.parametrize(
    "name, text, told",
    [
        ("a.toml", "[store]\nurl = \n", "a.toml:2: this is not TOML"),
        ("a.toml", "[store", "a.toml:1: this is not TOML"),
        ("a.yaml", "store:\n  url: [1\n", "a.yaml:3: this is not YAML"),
        ("a.yaml", "store:\n\turl: 1\n", "a.yaml:2: this is not YAML"),
        ("a.yaml", "a: 1\n---\nb: 1\n", "not YAML: expected a single document"),
        ("a.yaml", "- a\n", "a.yaml:1: write sections"),
        (
            "a.yaml",
            "store: {url: a}\nstore: {url: b}\n",
            "a.yaml:2: store is set twice, first in line 1",
        ),
        ("a.yaml", "store: !!python/object/apply:os.system [echo]\n", "a.yaml:1: this is not YAML"),
        ("a.yml", "a: 2020-99-99\n", "this is not YAML"),
        ("a.yml", "? [1, 2]\n: 3\n", "this is not YAML"),
    ],
)
def test_a_broken_file_names_its_line(tmp_path: Path, name: str, text: str, told: str):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        read_document(path)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "name, text", [("a.toml", '[store]\nurl = "x"\n'), ("a.yaml", "store:\n  url: x\n")]
)
def test_the_mark_that_editors_write_first_is_no_part_of_the_file(
    tmp_path: Path, name: str, text: str
):
    (tmp_path / name).write_text(text, "utf-8-sig")
    assert read_document(tmp_path / name).data == {"store": {"url": "x"}}


def test_a_file_that_is_not_text(tmp_path: Path):
    (tmp_path / "a.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        read_document(tmp_path / "a.toml")


def test_two_files_in_one_folder_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert read_document(None).data == {}
    Path("twicesafe.yml").write_text("")
    assert read_document(None).path == Path("twicesafe.yml")
    Path("twicesafe.toml").write_text("")
    with pytest.raises(ConfigurationError, match=r"twicesafe.toml and twicesafe.yml"):
        read_document(None)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory: Any, text: str):
    for suffix in ("toml", "yaml"):
        path = tmp_path_factory.getbasetemp() / f"any.{suffix}"
        path.write_text(text, "utf-8", newline="")
        with contextlib.suppress(ConfigurationError):  # and no other error
            read_document(path)


def test_yaml_without_its_driver_names_the_extra(tmp_path: Path):
    (tmp_path / "a.yaml").write_text("store:\n")
    code = textwrap.dedent(f"""
        import sys
        sys.modules["yaml"] = None
        from pathlib import Path
        from twicesafe.configuration._documents import read_document
        try:
            read_document(Path({str(tmp_path / "a.yaml")!r}))
        except Exception as error:
            print(type(error).__name__, error)
    """)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("ConfigurationError the package yaml cannot be imported")
    assert "pip install 'twicesafe[cli]'" in done.stdout


@pytest.mark.attack("D21")
@pytest.mark.parametrize("name", ["deep.toml", "deep.yaml"])
def test_a_file_that_is_nested_too_deeply_is_refused(name: str, tmp_path: Path):
    path = tmp_path / name
    path.write_text(("a = " if name.endswith("toml") else "a: ") + "[" * 100_000 + "]" * 100_000)
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        read_document(path)


@pytest.mark.attack("D21")
@pytest.mark.parametrize(
    "section, setting",
    [
        ("store", "url"),
        ("policy", "retention"),
        ("policy", "max_attempts"),
        ("policy", "encryption"),
        ("proxy", "trusted"),
        ("proxy", "upstream"),
        ("http", "methods"),
        ("http", "include"),
        ("relay", "batch"),
        ("dashboard", "listen"),
    ],
)
def test_references_to_references_are_not_written_out(section: str, setting: str, tmp_path: Path):
    """Each list holds the one before it twice: written out, the last has 2**50 entries."""
    path = tmp_path / "bomb.yaml"
    bomb = "&a0 [x, x]"
    for number in range(1, 50):
        bomb = f"&a{number} [{bomb}, *a{number - 1}]"
    path.write_text(f"{section}:\n  {setting}: {bomb}\n")
    with pytest.raises(ConfigurationError) as raised:
        resolve(section, config=path, environ={})
    assert setting in str(raised.value)
    assert len(str(raised.value)) < 2000
