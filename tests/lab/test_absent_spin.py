"""Without spin the model is skipped by name; in CI that is a failure."""

from __future__ import annotations

import pytest

from lab import model


def test_it_is_skipped_by_name(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CI", raising=False)
    check = model.check(0)
    assert "no spin" in check.skipped
    assert check.as_expected


def test_ci_must_not_skip_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(RuntimeError, match="no spin"):
        model.check(0)
