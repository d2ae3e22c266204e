"""Errors: each says what happened and whose move it is, pickles, and never shows a key in full."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from twicesafe import Key, errors

KEY = Key("super-secret-key", ("secret-tenant",))

EXTRA: dict[str, dict[str, Any]] = {
    "StillInProgressError": {"retry_after": 1.5},
    "FingerprintMismatchError": {"fields": ("amount", "to")},
    "RememberedFailureError": {"type_name": "Declined", "original_message": "no money"},
}
CLASSES = [getattr(errors, name) for name in errors.__all__]


@pytest.mark.parametrize("cls", CLASSES)
def test_pickle_round_trip(cls: Any) -> None:
    error = cls("what happened", key=KEY, **EXTRA.get(cls.__name__, {}))
    error.add_note("a note")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), error.again()):
        assert type(again) is cls
        assert str(again) == str(error)
        assert again.args == error.args
        assert again.__dict__ == error.__dict__
        assert again.key == KEY
        assert again.__notes__ == ["a note"]


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_has_key_retryable_and_status(cls: Any) -> None:
    error = cls("what happened")
    assert error.key is None
    assert isinstance(error.retryable, bool)
    assert 400 <= error.http_status < 600
    assert issubclass(cls, errors.TwicesafeError)
    assert cls.__doc__


@pytest.mark.parametrize("cls", CLASSES)
def test_only_the_short_form_of_a_key_is_shown(cls: Any) -> None:
    error = cls("what happened", key=KEY)
    for text in (str(error), repr(error)):
        assert "secret" not in text
    assert str(error) == f"key {KEY.short}: what happened"
    assert len(KEY.short) == 8


def test_statuses_and_retryable_are_those_of_the_design() -> None:
    expected = {
        errors.StillInProgressError: (409, True),
        errors.FingerprintMismatchError: (422, False),
        errors.TooManyWaitersError: (409, True),
        errors.StoreUnavailableError: (503, True),
        errors.InvalidKeyError: (400, False),
        errors.MissingKeyError: (400, False),
        errors.NotHomeError: (503, True),
        errors.LeaseLostError: (409, True),
        errors.HeldError: (409, False),
        errors.ParkedError: (409, False),
        errors.ResultUnavailableError: (410, False),
    }
    assert {cls: (cls.http_status, cls.retryable) for cls in expected} == expected


def test_the_tree() -> None:
    parents = {
        errors.UsageError: (
            errors.InvalidKeyError,
            errors.MissingKeyError,
            errors.ConfigurationError,
            errors.UnsupportedByStoreError,
        ),
        errors.DuplicateError: (
            errors.StillInProgressError,
            errors.FingerprintMismatchError,
            errors.RememberedFailureError,
            errors.HeldError,
            errors.ParkedError,
            errors.TooManyWaitersError,
        ),
        errors.StoreError: (
            errors.StoreUnavailableError,
            errors.SchemaVersionError,
            errors.CorruptRecordError,
        ),
        errors.ResultError: (
            errors.NotStorableError,
            errors.TooLargeError,
            errors.ResultUnavailableError,
        ),
    }
    for parent, children in parents.items():
        for child in children:
            assert issubclass(child, parent)
    assert issubclass(errors.InvalidKeyError, ValueError)
    assert issubclass(errors.ConfigurationError, ValueError)


def test_about_names_the_key_once() -> None:
    error = errors.StoreUnavailableError("down")
    assert error.about(KEY) is error
    assert error.key == KEY
    assert error.about(Key("other")).key == KEY


def test_an_unstorable_value_stays_in_its_process() -> None:
    error = errors.NotStorableError("no", key=KEY, value=lambda: 1)
    assert callable(error.value)
    assert pickle.loads(pickle.dumps(error)).value is None


def test_again_keeps_the_cause_and_is_another_object() -> None:
    error = errors.StoreUnavailableError("down")
    error.__cause__ = OSError("wire")
    twin = error.again()
    assert twin is not error
    assert twin.__cause__ is error.__cause__
    twin.about(KEY)
    assert error.key is None
