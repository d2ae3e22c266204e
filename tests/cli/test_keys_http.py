"""``twicesafe keys resolve`` for a request: the answer is a response, given again as it was typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.line import Line
from twicesafe import Key, Receiver, State
from twicesafe.http import HttpPolicy, StoredResponse

ACT = ("--by", "ana", "--why", "seen at the bank")
KEY = Key("stuck", ("http", "anonymous"))
NAMED = ("stuck", "--scope", "http", "--scope", "anonymous")


@pytest.fixture
def layer(receiver: Receiver) -> Receiver:
    """A receiver as the HTTP layer has it, with one key held."""
    made = receiver.options(policy=HttpPolicy().receiver_policy())
    with made.claim(KEY, returns=StoredResponse) as claim:
        claim.hold("UpstreamTimedOut")
    return made


def answer(layer: Receiver) -> StoredResponse:
    with layer.claim(KEY, returns=StoredResponse) as claim:
        response: StoredResponse = claim.result
    return response


@pytest.mark.parametrize("named", [NAMED, ("--id", KEY.id.hex()[:12])])
def test_a_response_is_recorded_as_it_was_typed(
    line: Line, layer: Receiver, named: tuple[str, ...]
):
    fields = ("--header", "Content-Type: application/json", "--header", "Location: /charges/7")
    ran = line("keys", "resolve", *named, "--status", "201", *fields, "--body", '{"n":7}', *ACT)
    assert (ran.status, ran.err) == (0, "")
    assert answer(layer) == StoredResponse(
        201, ((b"content-type", b"application/json"), (b"location", b"/charges/7")), b'{"n":7}'
    )
    assert [(e.by, e.action) for e in layer.audit(KEY)] == [("ana", "resolve")]


def test_a_body_may_be_in_a_file_or_absent(line: Line, layer: Receiver, tmp_path: Path):
    octets = bytes(range(256))
    (tmp_path / "body").write_bytes(octets)
    file = ("--body-file", str(tmp_path / "body"))
    assert line("keys", "resolve", *NAMED, "--status", "200", *file, *ACT).status == 0
    assert answer(layer) == StoredResponse(200, (), octets)


def test_a_body_on_the_command_line_is_bytes(line: Line, layer: Receiver):
    typed = b"caf\xe9".decode(errors="surrogateescape")
    assert line("keys", "resolve", *NAMED, "--status", "200", "--body", typed, *ACT).status == 0
    assert answer(layer) == StoredResponse(200, (), b"caf\xe9")


def test_no_body_is_an_empty_one(line: Line, layer: Receiver):
    assert line("keys", "resolve", *NAMED, "--status", "204", *ACT).status == 0
    assert answer(layer) == StoredResponse(204, (), b"")


def test_or_the_next_retry_may_run(line: Line, layer: Receiver):
    assert line("keys", "release", *NAMED, *ACT).status == 0
    record = layer.record(KEY)
    assert record is not None
    assert record.state is State.RELEASED


@pytest.mark.parametrize(
    "words, told",
    [
        (("--status", "99"), "200"),
        (("--status", "200", "--value", "1"), "use --body instead of --value"),
        (("--body", "x"), "--status"),
        (("--header", "A: b"), "--status"),
        (("--status", "200", "--header", "no colon"), "Name: value"),
        (("--status", "200", "--header", "A b: c"), "token"),
        (("--status", "200", "--header", "A: b\r\nc"), "line break"),
        (("--status", "200", "--header", "Content-Length: 5"), "frames a message"),
        (("--status", "200", "--body", "x", "--body-file", "y"), "give one body"),
        (("--status", "200", "--body-file", "nowhere"), "cannot read"),
    ],
)
def test_what_is_no_response_is_refused_and_changes_nothing(
    line: Line, layer: Receiver, words: tuple[str, ...], told: str
):
    ran = line("keys", "resolve", *NAMED, *words, *ACT)
    assert ran.status == 2
    assert told in " ".join(ran.err.split())
    record = layer.record(KEY)
    assert record is not None
    assert record.state is State.HELD
