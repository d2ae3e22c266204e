"""The token login: sessions, wrong tokens that cost time, and what a token may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import Visitor, words
from twicesafe import Receiver
from twicesafe.dashboard import Access
from twicesafe.dashboard._login import LASTS, MOST, Login, Throttle
from twicesafe.dashboard._serving import application
from twicesafe.dashboard._settings import DashboardSettings, is_loopback
from twicesafe.errors import ConfigurationError

TOKEN, READING = "correct-horse-battery", "only-looking-at-things"


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def login(clock: Any = None) -> Login:
    given = {TOKEN: Access(level="all"), READING: Access(level="read-only")}
    return Login(given, *(() if clock is None else (clock,)))


def test_a_session_has_the_access_of_its_token_and_ends():
    clock = Clock()
    made = login(clock)
    cookie = made.enter(TOKEN, "10.0.0.1")
    assert cookie is not None
    assert made.access(cookie).level == "all"
    reader = made.enter(READING, "10.0.0.1")
    assert made.access(reader).level == "read-only"
    clock.now += LASTS
    assert made.access(cookie).level == "forbidden"
    again = made.enter(TOKEN, "10.0.0.1")
    made.leave(again)
    assert made.access(again).level == "forbidden"


@pytest.mark.parametrize("cookie", [None, "", "x", TOKEN, "\udcff"])
def test_what_is_no_session_is_no_access(cookie: str | None):
    assert login().access(cookie).level == "forbidden"


@pytest.mark.parametrize("token", ["", "x", TOKEN[:-1], TOKEN + " ", "é" * 20, "\udcff"])
def test_a_wrong_token_is_no_session(token: str):
    assert login().enter(token, "10.0.0.1") is None


def test_sessions_are_bounded():
    made = login()
    first = made.enter(TOKEN, "10.0.0.1")
    for _ in range(MOST):
        made.enter(TOKEN, "10.0.0.1")
    assert made.access(first).level == "forbidden"


@pytest.mark.attack("D18")
def test_guessing_takes_longer_and_longer():
    clock = Clock()
    throttle, tried, began = Throttle(clock), 0, clock.now
    while clock.now - began < 3600:  # an hour of guesses, each as soon as it is allowed
        clock.now += throttle.wait("10.0.0.1") + 0.001
        throttle.failed("10.0.0.1")
        tried += 1
    assert tried < 30
    assert throttle.wait("10.0.0.2") == 0  # another address is not affected


@pytest.mark.attack("D18")
def test_guessing_for_days_does_not_begin_anew():
    """The thousandth pause was too large for a float: an error 500, and the address was forgotten."""
    clock = Clock()
    throttle = Throttle(clock)
    for _ in range(1100):
        clock.now += throttle.wait("10.0.0.1")
        throttle.failed("10.0.0.1")
    assert throttle.wait("10.0.0.1") == Throttle.LONGEST


@pytest.mark.attack("D18")
def test_many_addresses_do_not_help():
    clock = Clock()
    throttle = Throttle(clock)
    for n in range(Throttle.IN_ALL):
        throttle.failed(f"10.0.{n // 256}.{n % 256}")
    assert throttle.wait("10.9.9.9") > 0
    clock.now += 61
    assert throttle.wait("10.9.9.9") == 0
    for n in range(6):
        throttle.failed(f"2001:db8::{n}")  # one network of IPv6
    assert throttle.wait("2001:db8::ffff") > 0


def test_failures_are_bounded_and_forgotten():
    clock = Clock()
    throttle = Throttle(clock)
    for n in range(5000):
        clock.now += 2
        throttle.failed(f"10.{n % 100}.{n // 100}.1")
    assert len(throttle._failures) <= Throttle.ADDRESSES
    for _ in range(8):
        throttle.failed("10.0.0.1")
    clock.now += 10 * Throttle.LONGEST
    throttle.failed("10.0.0.1")
    assert throttle.wait("10.0.0.1") == 0


@pytest.mark.attack("D18")
async def test_log_in_and_out(receiver: Receiver):
    visitor = Visitor(application(receiver, DashboardSettings(), login()))
    answer = await visitor.get("/keys")
    assert (answer.status_code, answer.headers["location"]) == (303, "/login")
    wrong = await visitor.send("/login", "/login", secret="guess")
    assert wrong.status_code == 403
    assert "This token is not right" in words(wrong)
    entered = await visitor.send("/login", "/login", secret=TOKEN)
    assert entered.status_code == 303
    (cookie,) = entered.headers.get_list("set-cookie")
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert (await visitor.get("/keys")).status_code == 200
    left = await visitor.send("/logout", "/keys")
    assert left.status_code == 303
    assert (await visitor.get("/keys")).status_code == 303
    await visitor.client.aclose()


@pytest.mark.attack("D18")
@pytest.mark.parametrize(
    "headers, is_secure",
    [
        ({}, False),
        ({"origin": "http://localhost"}, False),
        ({"origin": "https://localhost"}, True),
        ({"x-forwarded-proto": "https"}, True),
    ],
)
async def test_behind_a_proxy_that_ends_tls_the_session_is_for_tls_only(
    receiver: Receiver, headers: dict[str, str], is_secure: bool
):
    visitor = Visitor(application(receiver, DashboardSettings(), login()))
    await visitor.get("/login")
    form = {"token": visitor.client.cookies["twicesafe_form"], "secret": TOKEN}
    entered = await visitor.client.post("/login", data=form, headers=headers)
    assert entered.status_code == 303
    (cookie,) = entered.headers.get_list("set-cookie")
    assert ("Secure" in cookie) is is_secure
    await visitor.client.aclose()


@pytest.mark.attack("D18")
async def test_brute_force_is_stopped(receiver: Receiver):
    visitor = Visitor(application(receiver, DashboardSettings(), login(Clock())))
    statuses = [
        (await visitor.send("/login", "/login", secret=f"g{n}")).status_code for n in range(8)
    ]
    assert statuses == [403] * 5 + [429] * 3
    stopped = await visitor.send("/login", "/login", secret=TOKEN)
    assert stopped.status_code == 429  # the right one has to wait too, so a guess tells nothing
    assert int(stopped.headers["retry-after"]) >= 1
    await visitor.client.aclose()


@pytest.mark.attack("D18")
async def test_a_login_form_from_elsewhere_is_refused(receiver: Receiver):
    visitor = Visitor(application(receiver, DashboardSettings(), login()))
    sent = await visitor.client.post("/login", data={"secret": TOKEN})
    assert sent.status_code == 403
    assert "twicesafe_session" not in sent.headers.get("set-cookie", "")
    await visitor.client.aclose()


@pytest.mark.attack("D18")
@pytest.mark.parametrize("name", ["x-forwarded-for", "forwarded", "x-real-ip", "via"])
async def test_without_a_login_nothing_is_passed_on(receiver: Receiver, name: str):
    """A proxy on this machine makes every visitor look local."""
    visitor = Visitor(application(receiver, DashboardSettings(), None))
    assert (await visitor.get("/")).status_code == 200
    assert (await visitor.get("/", **{name: "203.0.113.7"})).status_code == 403
    await visitor.client.aclose()


# --- settings --------------------------------------------------------------------------------


def test_tokens_come_from_a_file_that_is_private(tmp_path: Path):
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    made = DashboardSettings(token_file=str(path)).login()
    assert made is not None
    assert made.enter(TOKEN, "10.0.0.1") is not None
    path.chmod(0o644)
    with pytest.raises(ConfigurationError, match="every user of this machine"):
        DashboardSettings(token_file=str(path)).login()
    with pytest.raises(ConfigurationError, match="cannot be read"):
        DashboardSettings(token_file=str(tmp_path / "none")).login()


@pytest.mark.parametrize(
    "given, said",
    [
        ({"token": "short"}, "at least 16"),
        ({"token": TOKEN, "read_token": TOKEN}, "are the same"),
    ],
)
def test_weak_tokens_are_refused(given: dict[str, str], said: str):
    with pytest.raises(ConfigurationError, match=said):
        DashboardSettings(**given).login()


@pytest.mark.parametrize(
    "given",
    [
        {"token": TOKEN, "token_file": "x"},
        {"token": "short"},
        {"listen": "8090"},
        {"hosts": ("https://x",)},
        {"listen": "a:b"},
    ],
)
def test_wrong_settings_are_refused_before_it_listens(given: Any):
    with pytest.raises(ConfigurationError):
        DashboardSettings(**given)


def test_secrets_are_not_shown():
    from twicesafe.configuration import resolve

    found = resolve("dashboard", given={"dashboard": {"token": TOKEN}})
    assert TOKEN not in str(list(found.shown()))


def test_read_only_is_for_every_token():
    made = DashboardSettings(token=TOKEN, read_only=True).login()
    assert made is not None
    assert made.access(made.enter(TOKEN, "10.0.0.1")).level == "read-only"


@pytest.mark.parametrize("address, is_it", [("127.0.0.1", True), ("::1", True), ("127.8.8.8", True),
                                            ("0.0.0.0", False), ("10.0.0.1", False), ("name", False)])  # fmt: skip
def test_loopback(address: str, is_it: bool):
    assert is_loopback(address) is is_it


def test_it_answers_for_its_own_names():
    assert DashboardSettings(listen="10.0.0.5:80", hosts=("ops",)).names[3:] == ("ops", "10.0.0.5")
    assert DashboardSettings(listen="0.0.0.0:80").names[3:] == ()
