"""Settings are checked in one place: durations as text, and names that were misspelt."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import twicesafe
from twicesafe import (
    AsyncReceiver,
    Backoff,
    ConfigurationError,
    InvalidKeyError,
    Key,
    OutboxRelay,
    Policy,
    Receiver,
)
from twicesafe._cli.settings import settle
from twicesafe._engines.sqlite.settings import OPTIONS
from twicesafe._proxy.settings import load
from twicesafe._values.settings import refuse_unknown, seconds
from twicesafe.client import RetryPolicy
from twicesafe.client.httpx import RetryTransport
from twicesafe.dashboard import Access
from twicesafe.encryption import KeyRing
from twicesafe.health import Thresholds, health_app
from twicesafe.http import HttpPolicy
from twicesafe.observers import LogObserver
from twicesafe.outbox.publishers._urls import driver_url
from twicesafe.stores import Capabilities
from twicesafe.stores._urls import options_of
from twicesafe.strategies import EventLog, Table


def settings_of_users() -> Iterator[Any]:
    """The public dataclasses that users make, and not only read: they check their own values."""
    rooms = [f"twicesafe.{room.name}" for room in pkgutil.iter_modules(twicesafe.__path__)]
    found = {Access, Capabilities}
    for place in ["twicesafe", *(room for room in rooms if "._" not in room)]:
        module = importlib.import_module(place)
        public = [getattr(module, name) for name in getattr(module, "__all__", ())]
        found |= {each for each in public if hasattr(each, "__post_init__") and is_dataclass(each)}
    return iter(sorted(found, key=lambda each: each.__name__))


SETTINGS = list(settings_of_users())


@pytest.mark.parametrize(
    "given, meant",
    [
        ("90", 90),
        ("0.5", 0.5),
        ("90s", 90),
        ("250ms", 0.25),
        ("1.5h", 5400),
        ("1h30m", 5400),
        ("7d", 7 * 86400),
        ("2w", 14 * 86400),
        ("1w2d3h4m5s6ms", 604800 + 2 * 86400 + 3 * 3600 + 4 * 60 + 5 + 0.006),
        ("0s", 0),
        (timedelta(minutes=1), 60),
        (5, 5),
    ],
)
def test_a_duration(given: Any, meant: float):
    assert seconds(given, "lease") == pytest.approx(meant)


@pytest.mark.parametrize(
    "given, fix",
    [
        ("5 mins", "did you mean '5m'?"),
        ("30 sec", "did you mean '30s'?"),
        ("2 Days", "did you mean '2d'?"),
        ("7D", "did you mean '7d'?"),
        ("30m1h", "did you mean '1h30m'?"),
        ("1 hour and 30 minutes", "did you mean '1h30m'?"),
        ("100 millis", "did you mean '100ms'?"),
        ("soon", "use seconds"),
        ("", "use seconds"),
        ("-5s", "use seconds"),
        ("5x", "use seconds"),
        ("1m1m", "use seconds"),
        ("nan", "use seconds"),
        ("1e3", "use seconds"),
        ("9" * 5000, "use seconds"),
        ("٣s", "use seconds"),
    ],
)
def test_what_is_no_duration_is_refused_with_the_fix(given: str, fix: str):
    with pytest.raises(ConfigurationError) as told:
        seconds(given, "lease")
    assert told.value.message.startswith(f"lease={given[:40]!r} is not a duration: {fix}")
    assert len(told.value.message) < 250


def test_a_duration_of_more_than_a_century():
    with pytest.raises(ConfigurationError, match="retention='9999w' is not valid: use at most 100"):
        seconds("9999w", "retention")


def test_every_setting_takes_durations_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    policy = Policy(lease="45s", retention="7d", wait="250ms", backoff=Backoff(first="1s"))
    assert (policy.lease, policy.retention, policy.wait) == (45, 604800, 0.25)
    assert policy.backoff.first == 1
    assert HttpPolicy(retention="2d").retention == 172800
    assert seconds(RetryPolicy(deadline="2m").deadline) == 120
    assert options_of("sqlite:///x.db?timeout=250ms", OPTIONS)["timeout"] == 0.25
    assert driver_url("nats://h?timeout=3s", {"timeout": 5.0})[1] == {"timeout": 3}
    file = tmp_path / "twicesafe.toml"
    file.write_text(
        '[policy]\nretention = "7d"\n[policy.backoff]\nfirst = "2s"\n'
        '[proxy]\nupstream = "http://127.0.0.1:9000"\ngrace = "1m"\n[http]\nretention = "3d"\n'
    )
    found = settle("memory://", file).policy
    assert (found.retention, found.backoff.first) == (604800, 2)
    variables = {
        "TWICESAFE_PROXY_SWEEP": "10m",
        "TWICESAFE_HTTP_WAIT": "1s",
        "TWICESAFE_HTTP_MAX_BODY": "5",
    }
    proxy = load(file, environ=variables)
    assert (proxy.grace, proxy.sweep) == (60, 600)
    assert (proxy.policy().retention, proxy.policy().wait) == (3 * 86400, 1)
    assert proxy.policy().max_body == 5


def test_a_wrong_duration_names_its_variable(tmp_path: Path):
    with pytest.raises(
        ConfigurationError,
        match=r"^TWICESAFE_PROXY_GRACE='1 min' is not a duration: did you mean '1m'",
    ):
        load(environ={"TWICESAFE_PROXY_GRACE": "1 min"})


def test_a_name_that_was_misspelt():
    with pytest.raises(ConfigurationError, match="no policy setting 'leese'; did you mean 'lease'"):
        Policy(leese=5)  # type: ignore[call-arg]
    with pytest.raises(ConfigurationError, match="no option 'x'; known: a, b"):
        refuse_unknown(["x"], ["a", "b"], "option")


def test_all_settings_of_users_are_found():
    assert {Access, Backoff, Capabilities, HttpPolicy, Policy, RetryPolicy, Thresholds} < set(
        SETTINGS
    )


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.__name__)
def test_a_misspelt_setting_of_any_class_gets_a_suggestion(settings: Any):
    name = next(iter(settings.__dataclass_fields__))
    misspelt = name[0] + name[2:] + name[1]
    with pytest.raises(ConfigurationError, match=f"'{misspelt}'; did you mean '{name}'"):
        settings(**{misspelt: 1})


@pytest.mark.parametrize("value", ["500ms", True, -1, None])
def test_a_threshold_is_a_number(value: Any):
    with pytest.raises(ConfigurationError, match=re.escape(f"held={value!r} is not valid")):
        Thresholds(held=value)


def test_a_scope_that_is_no_tuple_is_refused_by_name():
    for scope in (3, None, object()):
        with pytest.raises(InvalidKeyError, match="scope must be a tuple of strings, not"):
            Key("x", scope)  # type: ignore[arg-type]


@pytest.mark.parametrize("observers", [print, 3, "log", [LogObserver], [3]], ids=repr)
def test_observers_are_a_list_of_objects(observers: Any):
    with pytest.raises(ConfigurationError, match=r"observers=.*use a list of observers"):
        Receiver.open("memory://", observers=observers)
    with pytest.raises(ConfigurationError, match=r"observers=.*use a list of observers"):
        OutboxRelay.open("sqlite:///keys.db", print, observers=observers)


async def _observe(event: object) -> None: ...


class _Observes:
    async def __call__(self, event: object) -> None: ...


@pytest.mark.parametrize(
    "observer", [_observe, partial(_observe), _Observes()], ids=["function", "partial", "object"]
)
def test_an_observer_that_must_be_awaited_is_refused(observer: Any):
    """Each event made a coroutine that nothing awaited: the observer never ran."""
    for kind in (Receiver, AsyncReceiver):
        with pytest.raises(ConfigurationError, match="nothing awaits an observer"):
            kind.open("memory://", observers=[observer])


@pytest.mark.parametrize("cache", ["1000", True, -1, 1.5, None])
def test_the_size_of_the_cache_is_a_whole_number(cache: Any):
    with pytest.raises(ConfigurationError, match=re.escape(f"cache={cache!r} is not valid")):
        Receiver.open("memory://", cache=cache)


def test_a_signer_a_key_ring_and_thresholds_are_checked_at_once():
    with pytest.raises(ConfigurationError, match="signer='str' is not valid: use a KeySigner"):
        RetryPolicy(signer="secret")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="keys='str' is not valid: use a dictionary"):
        KeyRing("secret")  # type: ignore[arg-type]
    with (
        Receiver.open("memory://") as receiver,
        pytest.raises(ConfigurationError, match=r"use Thresholds\(…\)"),
    ):
        receiver.health({"held": 3})  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["memory://", None, 3])
def test_a_health_page_of_something_else_is_refused_before_the_first_probe(given: Any):
    with pytest.raises(ConfigurationError, match="health_app needs a Receiver or an AsyncReceiver"):
        health_app(given)


def test_a_client_with_a_policy_or_budget_of_another_kind_is_refused_before_its_first_request():
    with pytest.raises(ConfigurationError, match=r"use a RetryPolicy\(…\)"):
        RetryTransport(policy=Policy())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"use a Budget\(…\)"):
        RetryTransport(budget=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [Table, EventLog])
def test_a_table_name_that_is_no_text_is_refused_by_name(kind: Any):
    with pytest.raises(ConfigurationError, match="table name 3 is refused"):
        kind(3)
