"""The outbox port: the reply of each request, and stores that have no outbox."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from twicesafe._core.outbox import requests as outbox_requests
from twicesafe._core.outbox.requests import OutboxRequest, lane_of
from twicesafe._engines.sql.outbox_programs import OutboxPrograms
from twicesafe.errors import UnsupportedByStoreError
from twicesafe.stores import Request, open_async_store, open_store

REQUESTS = [
    kind
    for kind in vars(outbox_requests).values()
    if isinstance(kind, type) and issubclass(kind, OutboxRequest) and kind is not OutboxRequest
]


@pytest.mark.parametrize("kind", REQUESTS, ids=lambda kind: kind.__name__)
def test_the_program_of_a_request_gives_the_reply_that_its_type_promises(kind: Any):
    (request,) = kind.__orig_bases__
    (promised,) = get_args(request)
    program = get_type_hints(getattr(OutboxPrograms, kind.op))["return"]
    given = get_args(program)[-1]
    assert given == (type(None) if promised is None else promised)


def test_a_store_performs_no_outbox_request():
    of_records = {kind.op for kind in get_args(Request)}
    assert len(REQUESTS) == 9
    assert not of_records & {kind.op for kind in REQUESTS}


@pytest.mark.parametrize("opening", [open_store, open_async_store])
def test_a_store_without_an_outbox_says_which_ones_have_one(opening: Any):
    with pytest.raises(UnsupportedByStoreError, match=r"memory:// cannot hold an outbox.*sqlite"):
        assert opening("memory://").outbox


def test_the_lane_of_a_key_never_changes():
    """Rows that an earlier version wrote stay in the lane of their key."""
    assert lane_of("k", "1").hex() == "6de6d57ddef36938d584045d15717ab1"
    assert lane_of(None, "1").hex() == "f92e36dc2db498a2498928d31bd3f2b4"
