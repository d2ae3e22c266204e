"""The model behind file, environment and command line: what wins, what is refused, and where."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta

from twicesafe import ConfigurationError, Policy
from twicesafe._values.settings import DURATION_PATTERN, seconds
from twicesafe.configuration import SECTIONS, problems, resolve, schema
from twicesafe.configuration._commands import RelayOptions, SweepOptions
from twicesafe.configuration._fields import check_fields
from twicesafe.configuration._kinds import Seconds, Url
from twicesafe.configuration._model import REQUIRED, Section
from twicesafe.configuration._sections import section_named


@pytest.fixture(params=["toml", "yaml"])
def write(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writes the settings file in both forms from the same data."""
    monkeypatch.chdir(tmp_path)

    def written(data: dict[str, Any]) -> Path:
        path = Path(f"twicesafe.{request.param}")
        if request.param == "yaml":
            path.write_text(json.dumps(data, indent=1))  # JSON is YAML
        else:
            lines = []
            for section, inside in data.items():
                lines.append(f"[{section}]")
                for name, value in inside.items():
                    if isinstance(value, dict):
                        lines += [f"{name}.{part} = {json.dumps(v)}" for part, v in value.items()]
                    else:
                        lines.append(f"{name} = {json.dumps(value)}")
            path.write_text("\n".join(lines))
        return path

    return written


def test_the_first_source_that_has_it_wins_and_is_named(write: Any):
    path = write({"relay": {"to": "nats://file", "batch": 7, "lease": "20s"}})
    environ = {"TWICESAFE_RELAY_BATCH": "8", "TWICESAFE_RELAY_LEASE": "30s"}
    found = resolve("relay", environ=environ, given={"relay": {"lease": 40, "to": None}})
    assert found.section("relay") == RelayOptions(to="nats://file", batch=8, lease=40)
    origins = {
        name: found.origin("relay", name) for name in ("to", "batch", "lease", "max_attempts")
    }
    assert [origin.kind for origin in origins.values()] == [
        "file",
        "environment",
        "option",
        "default",
    ]
    assert re.fullmatch(rf"{re.escape(str(path))}:\d", origins["to"].place)
    assert origins["batch"].place == "TWICESAFE_RELAY_BATCH"
    assert origins["lease"].place == "--lease"


def test_python_gets_the_same_policy(write: Any):
    write({"policy": {"retention": "7d", "takeover": "hold", "backoff": {"first": "2s"}}})
    environ = {"TWICESAFE_POLICY_LEASE": "5s", "TWICESAFE_POLICY_BACKOFF_FACTOR": "3"}
    policy = resolve("policy", environ=environ).section("policy")
    assert policy == Policy(retention="7d", takeover="hold", lease=5, backoff=policy.backoff)
    assert (policy.backoff.first, policy.backoff.factor) == (2, 3)


@pytest.mark.parametrize(
    "data, told",
    [
        ({"relays": {}}, "there is no section 'relays'; did you mean 'relay'?"),
        ({"relay": {"bach": 1}}, "no setting in [relay] 'bach'; did you mean 'batch'?"),
        ({"relay": {"batch": "many"}}, "[relay] batch='many' is not valid: use a whole number, 1 or more"),
        ({"relay": {"batch": 0}}, "[relay] batch=0 is not valid: use a whole number, 1 or more"),
        ({"relay": {"batch": True}}, "[relay] batch=True"),
        ({"relay": {"lease": "1 min"}}, "[relay] lease='1 min' is not a duration: did you mean '1m'?"),
        ({"relay": {"lease": 0.1}}, "[relay] lease=0.1 is not valid"),
        ({"policy": {"backoff": {"firts": 1}}}, "no setting in [policy.backoff] 'firts'; did you mean 'first'?"),
        ({"policy": {"takeover": "maybe"}}, "use one of retry, hold"),
        ({"http": {"release": ["x"]}}, "use a list of whole numbers"),
        ({"http": {"fingerprint": "none"}}, "use one of canonical, octets, true, false"),
        ({"proxy": {"store": "x"}}, "[proxy] store is set in [store]"),
    ],
)  # fmt: skip
def test_every_command_refuses_a_wrong_file_with_its_line(write: Any, data: Any, told: str):
    path = write(data)
    with pytest.raises(ConfigurationError) as caught:
        resolve("store", environ={})
    assert re.match(rf"{re.escape(str(path))}:\d+: ", str(caught.value))
    assert told in str(caught.value)


def test_the_line_is_that_of_the_setting(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text(
        "[policy]\nlease = 60\n\nmax_lease = 30\n[proxy]\n\n\nworkers = 0\nworker = 1\n"
    )
    assert [e.message.partition(": ")[0].removeprefix(str(path)) for e in problems(path, {})] == [
        ":8",
        ":9",
        ":4",
    ]
    path.write_text("[policy]\nlease = 60\n\nmax_lease = 30\n")
    (only,) = problems(path, {})
    assert only.message.startswith(f"{path}:4: [policy] max_lease=30")


def test_an_error_of_the_whole_model_names_where_its_setting_came_from(tmp_path: Path):
    path = tmp_path / "a.toml"
    path.write_text("[policy]\nlease = 60\n")
    environ = {"TWICESAFE_POLICY_MAX_LEASE": "30"}
    with pytest.raises(
        ConfigurationError, match=r"^TWICESAFE_POLICY_MAX_LEASE: \[policy\] max_lease=30"
    ):
        resolve("policy", config=path, environ=environ).section("policy")


@pytest.mark.parametrize(
    "variable, text, told",
    [
        ("TWICESAFE_RELAY_BACH", "1", "TWICESAFE_RELAY_BACH: 'bach'; did you mean 'batch'?"),
        (
            "TWICESAFE_RELAY_BATCH",
            "x",
            "TWICESAFE_RELAY_BATCH='x' is not valid: use a whole number",
        ),
        ("TWICESAFE_RELAY_LEASE", "1 min", "TWICESAFE_RELAY_LEASE='1 min' is not a duration"),
        ("TWICESAFE_POLICY_OUTAGE", "x", "use one of refuse, run"),
        ("TWICESAFE_HTTP_STRICT", "yes", "use true or false"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    tmp_path: Path, variable: str, text: str, told: str
):
    (tmp_path / "a.toml").write_text("")
    section = variable.split("_")[1].lower()
    with pytest.raises(ConfigurationError) as caught:
        resolve(section, config=tmp_path / "a.toml", environ={variable: text})
    assert told in str(caught.value)
    assert [str(e) for e in problems(tmp_path / "a.toml", {variable: text})] == [str(caught.value)]


def test_a_command_does_not_read_variables_of_others(tmp_path: Path):
    (tmp_path / "a.toml").write_text("")
    resolve("store", config=tmp_path / "a.toml", environ={"TWICESAFE_RELAY_BACH": "1"})


def test_secrets_are_not_shown(tmp_path: Path):
    path = tmp_path / "a.yaml"
    path.write_text(
        "store: {url: 'postgresql://me:hush@h/db?password=hush'}\nrelay: {to: 'amqp://u:hush@h'}\n"
        "http: {scope_secret: hush}\nproxy: {upstream: 'http://h'}\n"
    )
    rows = list(resolve(*SECTIONS, config=path, environ={}).shown())
    assert "hush" not in repr(rows)
    shown = {f"{row.section}.{row.name}": row.value for row in rows}
    assert shown["store.url"] == "postgresql://me:***@h/db"
    assert shown["http.scope_secret"] == "***"
    path.write_text("http: {scope_secret: [hush]}\n")
    (wrong,) = problems(path, {})
    assert "hush" not in str(wrong)


def test_defaults_are_those_that_apply(tmp_path: Path):
    """The proxy's own, and those of a profile, not only those of the class."""
    path = tmp_path / "a.toml"

    def http() -> dict[str, Any]:
        return {r.name: r.value for r in resolve("http", config=path, environ={}).shown()}

    path.write_text("")
    assert (http()["unknown_status"], http()["mismatch_status"]) == (502, 422)
    path.write_text('[http]\nprofile = "stripe"\n')
    assert (http()["unknown_status"], http()["mismatch_status"]) == (502, 400)


# ------------------------------------------------------------------ the model itself


def test_a_section_is_one_model_and_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """What docs and CONTRIBUTING promise to authors of commands."""

    @dataclass(frozen=True, kw_only=True)
    class IngestOptions:
        source: Url
        concurrency: Annotated[int, Meta(ge=1, le=64)] = 8
        idle: Seconds = 1
        topics: tuple[str, ...] = ()

        def __post_init__(self) -> None:
            check_fields(self)

    global INGEST
    INGEST = Section("ingest", IngestOptions, "Settings of `twicesafe ingest`.")
    monkeypatch.setitem(SECTIONS, "ingest", f"{__name__}:INGEST")
    section_named.cache_clear()
    path = tmp_path / "a.toml"
    path.write_text('[ingest]\nsource = "kafka://u:p@h"\ntopics = ["a"]\n')
    environ = {"TWICESAFE_INGEST_IDLE": "250ms", "TWICESAFE_INGEST_TOPICS": "x, y"}
    found = resolve("ingest", config=path, environ=environ)
    assert found.section("ingest") == IngestOptions(
        source="kafka://u:p@h", idle=0.25, topics=("x", "y")
    )
    assert next(iter(found.shown())).value == "kafka://***@h"
    assert schema()["properties"]["ingest"]["properties"]["concurrency"] == {
        "type": "integer", "minimum": 1, "maximum": 64, "default": 8,
    }  # fmt: skip
    path.write_text("[ingest]\nconcurrency = 65\n")
    (wrong,) = problems(path, {})
    assert "[ingest] concurrency=65 is not valid: use a whole number, from 1 to 64" in str(wrong)


def test_a_model_checks_itself_in_python():
    assert SweepOptions(every="5m").every == 300
    assert SweepOptions().every is None
    with pytest.raises(ConfigurationError, match=r"every=0.01 is not valid: .* 0.05 or more"):
        SweepOptions(every=0.01)
    with pytest.raises(ConfigurationError, match="limit=0"):
        SweepOptions(limit=0)


@pytest.mark.parametrize("name", SECTIONS)
def test_every_setting_has_a_meaning_a_variable_and_a_schema(name: str):
    section = section_named(name)
    notes, inner = section.notes(), set(section.inner)
    variables = [setting.variable for setting in section.settings.values()]
    assert len(variables) == len(set(variables))
    described = schema()["properties"][name]["properties"]
    for setting in section.settings.values():
        *above, last = setting.name.split(".")
        holder = described[above[0]]["properties"] if above else described
        assert notes[setting.name]
        assert holder[last]["description"] == notes[setting.name]
    assert set(described) == set(section.names) | inner


@pytest.mark.parametrize("name", SECTIONS)
def test_every_default_is_accepted_by_its_own_kind(name: str):
    for setting in section_named(name).settings.values():
        default = setting.field.default
        if default is not REQUIRED and not callable(default):
            setting.field.check(default)


def test_the_schema_is_plain_json():
    made = json.loads(json.dumps(schema()))
    assert made["properties"]["http"]["properties"]["unknown_status"]["default"] == 502
    assert "default" not in made["properties"]["store"]["properties"]["url"]
    assert made["properties"]["proxy"]["additionalProperties"] is False


@given(
    st.one_of(
        st.text(max_size=20), st.from_regex(r"(\d{1,3}(\.\d)?(w|d|h|m|s|ms)?){0,3}", fullmatch=True)
    )
)
def test_the_schema_and_the_parser_agree_on_durations(text: str):
    try:
        seconds(text)
        valid = True
    except ConfigurationError as error:
        valid = "100 years" in str(error)
    assert bool(re.search(DURATION_PATTERN, text, re.ASCII) and not text.endswith("\n")) == valid


def test_a_variable_of_no_section_is_named_with_the_nearest_one(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    environ = {"TWICESAFE_STOR_URL": "sqlite:///k.db", "TWICESAFE_FOO": "x", "TWICESAFER": "y"}
    nearest, strange = (str(error) for error in reversed(problems(environ=environ)))
    assert "TWICESAFE_STOR_URL; did you mean 'TWICESAFE_STORE_URL'?" in nearest
    assert "no setting has the variable TWICESAFE_FOO" in strange
    resolve("sweep", environ=environ)
    assert [record.message for record in caplog.records] == [strange, nearest]


def test_an_empty_store_url_is_found_by_the_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (wrong,) = problems(environ={"TWICESAFE_STORE_URL": ""})
    assert "TWICESAFE_STORE_URL: [store] url=" in str(wrong)
    assert "it is empty" in str(wrong)
