"""The figures on the page are those of the generated set, on this machine too."""

from __future__ import annotations

from benchmarks.near_duplicates import DEFAULT, EACH, PAGE, figures, judged, page, pairs, rates


def test_the_page_has_the_figures_of_the_set():
    scored = judged(pairs())
    assert len(scored) == 5 * EACH == 10_000
    precision, recall = rates(scored, DEFAULT)
    assert precision > 0.9
    assert recall > 0.8
    text = PAGE.read_text("utf-8")
    assert page(text, figures(scored)) == text, "run python -m benchmarks.near_duplicates"
    assert all(pair.score is None for pair in scored if pair.kind == "another amount or date")
