"""Settings of the proxy: command line, environment, file, default; and nonsense by its name."""

from __future__ import annotations

import contextlib
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec
import pytest

from twicesafe._proxy import ProxySettings, load
from twicesafe._proxy.settings import HTTP_SECTION, PROXY_SECTION, http_policy
from twicesafe.errors import ConfigurationError
from twicesafe.http import BodyHash, HeaderField, HttpPolicy, JsonMember, QueryParameter

HOOKS = set(HTTP_SECTION.without)
HTTP, PROXY = HTTP_SECTION.names, PROXY_SECTION.names
UP = {"upstream": "http://127.0.0.1:9000"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "twicesafe.toml"
    path.write_text("")
    return path


def test_the_command_line_goes_before_the_environment_before_the_file(file: Path):
    file.write_text(
        "[store]\nurl = 'memory://'\n[proxy]\nupstream = 'http://file'\nworkers = 1\ngrace = 7\n"
        "listen = 'file:1'\n[http]\nwait = 3\nmax_key = 9\n"
    )
    environ = {
        "TWICESAFE_PROXY_UPSTREAM": "http://environ",
        "TWICESAFE_PROXY_LISTEN": "environ:2",
        "TWICESAFE_HTTP_WAIT": "2.5",
    }
    made = load(file, {"upstream": "http://given", "listen": None}, environ)
    assert (made.upstream, made.listen, made.grace) == ("http://given", "environ:2", 7)
    assert made.store == "memory://"
    assert (made.policy().wait, made.policy().max_key) == (2.5, 9)
    made = load(file, {"store": "sqlite:///x"}, {"TWICESAFE_STORE_URL": "sqlite:///y"})
    assert made.store == "sqlite:///x"


def test_the_file_of_the_working_directory_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Path
):
    monkeypatch.chdir(tmp_path)
    file.write_text("[proxy]\nupstream = 'http://here'\n")
    assert load(environ={}).upstream == "http://here"


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("PROXY_WORKERS", "3", 3),
        ("PROXY_UPSTREAM_TIMEOUT", "1.5", 1.5),
        ("PROXY_FORWARDED", "false", False),
        ("PROXY_TRUSTED", "10.0.0.0/8, ::1", ("10.0.0.0/8", "::1")),
        ("HTTP_STRICT", "true", True),
        ("HTTP_METHODS", "POST,PUT", frozenset({"POST", "PUT"})),
        ("HTTP_RELEASE", "429, 503", frozenset({429, 503})),
        ("HTTP_REQUIRED", "true", True),
        ("HTTP_REQUIRED", "POST /a, /b", ("POST /a", "/b")),
        ("HTTP_SCOPE", "Authorization,cookie:session", ("Authorization", "cookie:session")),
        ("HTTP_SCOPE_SECRET", "s3cret", b"s3cret"),
        ("HTTP_REPLAY_HEADER", "", None),
        ("HTTP_RETENTION", "60", 60),
        ("HTTP_TAKEOVER", "retry", "retry"),
        ("HTTP_OUTAGE", "run", "run"),
        ("HTTP_KEY_FROM", "query:id,json:a.b,header:X,body",
         (QueryParameter("id"), JsonMember("a.b"), HeaderField("X"), BodyHash())),
    ],
)  # fmt: skip
def test_variables_are_read_as_what_their_setting_is(
    file: Path, name: str, text: str, value: object
):
    made = load(file, UP, {f"TWICESAFE_{name}": text})
    section, _, setting = name.lower().partition("_")
    assert getattr(made if section == "proxy" else made.policy(), setting) == value


@pytest.mark.parametrize("profile", ["draft", "stripe", "paypal", "webhook:github"])
def test_profiles(profile: str):
    base, _, sender = profile.partition(":")
    wanted = getattr(HttpPolicy, base)(*[sender] if sender else []).replace(unknown_status=502)
    made = http_policy({"profile": profile})
    for field in fields(HttpPolicy):
        value = getattr(made, field.name)
        assert callable(value) or value == getattr(wanted, field.name)


@pytest.mark.parametrize(
    "text, told",
    [
        ("[proxy]\nworker = 2", "did you mean 'workers'"),
        ("[http]\nmax_kye = 2", "did you mean 'max_key'"),
        ("[http]\nredact = 'x'", "Python object"),
        ("[http]\nprofile = 'stirpe'", "profile='stirpe'"),
        ("[http]\nscope = 'Authorization'", "use a list"),
        ("[http]\nscope = ['X-Tenant']", "any client can send"),
        ("[http]\nkey_from = ['cookie:a']", "key_from='cookie:a'"),
        ("[http]\nmax_body = -1", "max_body=-1"),
        ("[proxy]\nworkers = 0", "workers=0"),
        ("[proxy]\nworkers = true", "workers=True"),
        ("[proxy]\ngrace = -1", "grace=-1"),
        ("[proxy]\nconnect_timeout = 0", "connect_timeout=0"),
        ("[proxy]\nforwarded = 'no'", "true or false"),
        ("[proxy]\ntrusted = ['home']", "trusted='home'"),
        ("[proxy]\nlisten = '::1:80'", "host:port"),
        ("[proxy]\nlisten = 'a:99999'", "host:port"),
        ("[proxy]\nupstream = 'http://u:p@a'", "more than host"),
        ("[proxy]\nupstream = 'http://a:port'", "upstream"),
        ("[proxy]\nupstream = 'http://u:a/b@[c'", r"upstream='http://\*\*\*@[c'"),
        ("[proxy]\nadmin = '127.0.0.1:8080'", "public"),
        ("[proxy]\nupstream = 'http://127.0.0.1:8080'", "call itself"),
        ("[proxy]\nupstream_ca = 'nowhere.pem'", "no such file"),
        ("[proxy]\nworkers = 2\n[store]\nurl = 'memory://'", "not shared between processes"),
        ("[proxy]\nupstream = 'http://a/b c'", "upstream"),
        ("[proxy]\nupstream = 'http://a:0'", "upstream"),
        ("[proxy]\ntrusted = '10.0.0.0/8'", "use a list"),
        ("[proxy]\ntrusted = [1]", "use a list"),
        ("proxy = 1", "must be a section"),
        ("store = 1", "must be a section"),
        ("[proxy", "is not TOML"),
    ],
)
def test_a_wrong_setting_is_reported_by_its_name(file: Path, text: str, told: str):
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=told.replace("(", r"\(").replace("[", r"\[")):
        load(file, {} if "upstream =" in text else UP, {})


def test_a_file_without_certificates_is_reported(file: Path):
    with pytest.raises(ConfigurationError, match="certificates in PEM form"):
        load(file, {**UP, "upstream_ca": str(file)}, {})


@pytest.mark.parametrize(
    "name, text",
    [
        ("PROXY_WORKER", "1"),
        ("PROXY_WORKERS", "many"),
        ("HTTP_STRICT", "yes"),
        ("HTTP_REDACT", "x"),
    ],
)
def test_variables_that_cannot_be_used_are_reported(file: Path, name: str, text: str):
    with pytest.raises(ConfigurationError, match=f"TWICESAFE_{name}"):
        load(file, UP, {f"TWICESAFE_{name}": text})


def test_a_file_that_is_not_there_is_reported(tmp_path: Path):
    with pytest.raises(ConfigurationError, match="cannot read"):
        load(tmp_path / "nowhere.toml", UP, {})


def test_settings_travel_to_workers_as_they_are(file: Path):
    file.write_text("[http]\nrequired = ['/a']\nrelease = [503]\n[proxy]\ntrusted = ['::1']\n")
    made = load(file, UP, {})
    again: Any = msgspec.json.decode(msgspec.json.encode(made), type=ProxySettings)
    assert again == made
    assert again.policy() == made.policy()


def test_every_setting_has_a_place():
    assert set(PROXY) | {"store", "encryption", "http", "mcp"} == {
        field.name for field in fields(ProxySettings)
    }
    assert set(HTTP) | HOOKS == {field.name for field in fields(HttpPolicy)} | {"profile"}


WRONG = (
    "1",
    "-1",
    "1.5",
    "true",
    "''",
    "'x'",
    "[]",
    "[1]",
    "['x']",
    "[[1]]",
    "{a=1}",
    "2020-01-01",
    "nan",
)


@pytest.mark.parametrize("name", [*(f"proxy.{n}" for n in PROXY), *(f"http.{n}" for n in HTTP), "store.url"])  # fmt: skip
def test_a_value_of_any_kind_is_taken_or_refused_by_its_name(file: Path, name: str):
    """Also at a reload, where anything but a refusal would be lost in a task."""
    section, _, setting = name.partition(".")
    for value in WRONG:
        file.write_text(f"[{section}]\n{setting} = {value}\n")
        with contextlib.suppress(ConfigurationError):
            load(file, {} if setting == "upstream" else UP, {})
