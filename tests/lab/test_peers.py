"""The table of peers says what was seen, and our own column is seen again here."""

from __future__ import annotations

from lab.peers import page
from lab.peers.__main__ import column
from lab.peers.page import Cell
from lab.peers.peer import OURS, PEERS
from lab.peers.scenarios import SCENARIOS

LEASE = 0.4


def test_the_page_is_made_of_what_was_seen():
    assert page.as_markdown(page.read()) == page.PAGE.read_text("utf-8")


def test_what_was_published_is_a_whole_run():
    seen = page.read()
    wanted = {
        (store, scenario, name)
        for name, peer in PEERS.items()
        for store in peer.stores
        for scenario in SCENARIOS
    }
    assert {(cell.store, cell.scenario, cell.peer) for cell in seen.cells} == wanted
    assert set(PEERS) <= set(seen.versions)
    assert all(cell.said and "|" not in cell.said for cell in seen.cells)


def test_a_page_does_not_hide_what_became_of_ours():
    seen = page.read()
    first = seen.cells[0]
    seen.cells[0] = Cell(first.store, first.scenario, OURS, "ran twice; 2 runs")
    assert "| ran twice; 2 runs |" in page.as_markdown(seen)


def test_our_column_is_seen_again_on_postgresql(postgres):
    _seen_again("postgres")


def test_our_column_is_seen_again_on_valkey(valkey):
    _seen_again("valkey")


def _seen_again(store: str) -> None:
    seen = page.read()
    for cell in column(OURS, store, lease=LEASE):
        wanted, said = seen.said(store, cell.scenario, OURS), cell.said
        for lease in (LEASE, 2 * LEASE):
            if said != wanted and "StoreUnavailableError" in said:  # a claim took the whole lease
                said = next(column(OURS, store, [cell.scenario], lease)).said
        assert said == wanted, cell.scenario
