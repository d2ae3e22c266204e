"""Stores by URL: ``sqlite:///keys.db``, ``memory://``, ``postgresql://…``.

The scheme chooses the file that knows the engine, imported on first use. Query parameters
configure the store; unknown ones are refused by name. Other packages add schemes through the
entry-point group ``twicesafe.stores`` (``scheme = "module:Class"``; the async class is ``Async`` +
its name in the same module, or named after a comma).
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import parse_qsl, quote, unquote_plus, urlencode, urlsplit

from .._values.hidden_keys import HiddenKeys
from .._values.settings import expect, seconds, shown, suggestion
from ..errors import ConfigurationError, UsageError
from ._base import AsyncStore, Store

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "SCHEMES",
    "SERVERS",
    "SWITCH",
    "Samples",
    "check_driver_options",
    "check_store",
    "default_url",
    "expect_once",
    "expect_seconds",
    "identifier",
    "is_embedded",
    "is_missing",
    "mask",
    "name_of",
    "open_async_store",
    "open_store",
    "options_of",
    "outbox_script_of",
    "place_of",
    "plain_url",
    "script_of",
    "target_of",
    "typed",
]

SERVERS: Final = ("region", "endpoint", "socket", "host", "hostaddr", "port", "service")
"""Options that say which server a URL names. None of them is a secret."""
PLACES: Final = (*SERVERS, "dbname", "schema", "table", "prefix", "db", "collection")
"""Options that say which store it is there."""

SCHEMES: Final[dict[str, str]] = {
    "memory": "twicesafe.stores.memory:MemoryStore",
    "sqlite": "twicesafe._engines.sqlite:SqliteStore",
    "postgresql": "twicesafe._engines.postgresql:PostgresStore",
    "postgres": "twicesafe._engines.postgresql:PostgresStore",
    "postgresql+asyncpg": "twicesafe._engines.postgresql:PostgresStore,AsyncpgStore",
    "mysql": "twicesafe._engines.mysql:MysqlStore",
    "mariadb": "twicesafe._engines.mysql:MysqlStore",
    "redis": "twicesafe._engines.redis:RedisStore",
    "rediss": "twicesafe._engines.redis:RedisStore",
    "redis+sentinel": "twicesafe._engines.redis:RedisStore",
    "rediss+sentinel": "twicesafe._engines.redis:RedisStore",
    "redis+cluster": "twicesafe._engines.redis:RedisStore",
    "rediss+cluster": "twicesafe._engines.redis:RedisStore",
    "etcd": "twicesafe._engines.etcd:EtcdStore",
    "etcds": "twicesafe._engines.etcd:EtcdStore",
    "valkey": "twicesafe._engines.redis:RedisStore",
    "valkeys": "twicesafe._engines.redis:RedisStore",
    "dynamodb": "twicesafe._engines.dynamodb:DynamodbStore",
    "mongodb": "twicesafe._engines.mongodb:MongodbStore",
    "mongodb+srv": "twicesafe._engines.mongodb:MongodbStore",
}


_DRIVERS: Final[dict[str, tuple[str, ...]]] = {
    "postgresql": ("psycopg", "psycopg_async", "psycopg2", "psycopg2cffi", "pg8000"),
    "mysql": ("pymysql", "asyncmy", "aiomysql", "mysqldb", "mysqlconnector"),
    "mariadb": ("pymysql", "asyncmy", "aiomysql", "mysqldb", "mysqlconnector"),
    "sqlite": ("pysqlite", "aiosqlite"),
}
"""Drivers in SQLAlchemy's URLs. The store ignores them and chooses its own driver. The exception is
``postgresql+asyncpg``, which chooses the driver of the async store and is a scheme."""


_HIDDEN_KEYS: Final = "hidden_keys="
"""The option that every store has; the stores themselves do not see it."""


def plain_url(url: str) -> str:
    """The URL as the store's class gets it: without the driver in a SQLAlchemy URL, so that both libraries
    can use the same URL, and without the option ``hidden_keys``."""
    url = _parted(url)[0]
    scheme, colon, rest = url.partition(":")
    base, _, driver = scheme.partition("+")
    known = scheme not in SCHEMES and driver in _DRIVERS.get(base, ())
    return f"{base}:{rest}" if colon and known else url


def check_store(owner: object, store: object) -> None:
    """Raise if a constructor got a URL, or a store of the other kind (blocking, async)."""
    name = type(owner).__name__
    if isinstance(store, str):
        raise UsageError(
            f"{name}(…) takes a store, and this is a URL: use {name}.open({mask(store)!r})"
        )
    wrong = Store if name.startswith("Async") else AsyncStore
    if isinstance(store, wrong):
        kind, other = (
            ("a blocking", name.removeprefix("Async"))
            if wrong is Store
            else ("an async", f"Async{name}")
        )
        raise UsageError(f"{type(store).__name__} is {kind} store: use {other}(store)")
    if not hasattr(store, "perform"):
        hint = "use its .store" if hasattr(store, "store") else f"use {name}.open(URL)"
        raise UsageError(f"{name}(…) takes a store, not {type(store).__name__}: {hint}")


def open_store(url: str) -> Store:
    """Open the blocking store at this URL."""
    opener, hidden = _class_for(url, ""), _hidden_keys_of(url)
    store: Store = opener.open(plain_url(url))
    store.hidden_keys, store.place = hidden, place_of(url)
    return store


def open_async_store(url: str) -> AsyncStore:
    """Open the async store at this URL. Not a coroutine."""
    opener, hidden = _class_for(url, "Async"), _hidden_keys_of(url)
    store: AsyncStore = opener.open(plain_url(url))
    store.hidden_keys, store.place = hidden, place_of(url)
    return store


def _hidden_keys_of(url: str) -> HiddenKeys | None:
    sources = _parted(url)[1]
    if len(sources) > 1:
        raise ConfigurationError("hidden_keys is in this URL twice: a store has one secret")
    return HiddenKeys.load(unquote_plus(sources[0])) if sources else None


def _parted(url: str) -> tuple[str, list[str]]:
    """The URL without ``hidden_keys``, and what is said there."""
    place, mark, query = url.partition("?")
    if _HIDDEN_KEYS not in query:
        return url, []
    parts = query.split("&")
    kept = "&".join(part for part in parts if not part.startswith(_HIDDEN_KEYS))
    sources = [part.removeprefix(_HIDDEN_KEYS) for part in parts if part.startswith(_HIDDEN_KEYS)]
    return f"{place}{mark if kept else ''}{kept}", sources


def is_missing(url: str) -> bool:
    """Whether this store is a missing file, which opening would create."""
    missing: bool = _class_for(url, "").missing(plain_url(url))
    return missing


def is_embedded(url: str) -> bool:
    """Whether this store has no server: it is in this process, or a file."""
    embedded: bool = _class_for(url, "").recalls
    return embedded


def script_of(url: str) -> str:
    """The SQL that creates the schema of this store; empty: it has none. Does not connect."""
    script: str = _class_for(url, "").script(plain_url(url))
    return script


def outbox_script_of(url: str) -> str:
    """The SQL that creates the outbox tables of this store; empty: it supports no outbox."""
    script: str = _class_for(url, "").outbox_script(plain_url(url))
    return script


def default_url() -> str:
    """SQLite in the user's data folder."""
    try:
        folder = _data_folder() / "twicesafe"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory is known
        raise ConfigurationError(
            f"there is no data folder for the default store ({error}); give a store URL"
        ) from error
    return f"sqlite:///{quote(str(folder / 'twicesafe.db'))}"


def _data_folder() -> Path:
    from pathlib import Path

    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")


def mask(url: str) -> str:
    """The URL without its secrets and options; a user is shown only if a password is hidden.

    A user alone may be a token, and a password may contain characters that a URL should not: so
    everything from ``://`` to the last ``@`` is hidden.
    """
    head, _, query = url.partition("?")
    scheme, mark, rest = head.partition("://")
    if not mark:
        scheme, rest = "", head
    if rest.startswith("/"):
        return head
    secret, at, place = rest.rpartition("@")
    place = place.partition("#")[0]
    if at:
        user, _, password = secret.partition(":")
        shown = f"{user}:***" if password and plain_url(f"{scheme}:")[:-1] in SCHEMES else "***"
        return f"{scheme}{mark}{shown}@{place}"
    return f"{scheme}{mark}***" if "@" in query and "/" not in rest else f"{scheme}{mark}{place}"


def place_of(url: str, options: Sequence[str] = PLACES) -> str:
    """The options that say which of several stores at one address it is, or on which server."""
    given = parse_qsl(url.partition("?")[2])
    return urlencode(sorted(each for each in given if each[0] in options), safe="/:,")


def name_of(url: str) -> str:
    """The masked URL with these options: two stores have different names."""
    place = place_of(url)
    return f"{mask(url)}?{place}" if place else mask(url)


def options_of(url: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The query parameters of a store URL, converted to the types of their defaults."""
    chosen = dict(known)
    given = parse_qsl(url.partition("?")[2], keep_blank_values=True)
    expect_once(given, known)
    for name, text in given:
        if name not in known:
            raise ConfigurationError(
                f"this store has no option {name[:40]!r}; {suggestion(name, known)}"
            )
        chosen[name] = typed(text, known[name], f"option {name}")
    expect(chosen.get("pool", 1) >= 1, "pool", chosen.get("pool"), "use 1 or more connections")
    return chosen


def expect_once(given: Iterable[tuple[str, str]], known: Iterable[str]) -> None:
    """Refuse a known option that is given twice: one of its values would have no effect.

    The values are not shown: they may be passwords.
    """
    names = [name for name, _ in given if name in known]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"option {name} is in this URL twice: give it once")


def expect_seconds(options: Mapping[str, Any], name: str, *, or_zero: bool = False) -> None:
    """Refuse an option that is not above 0 and at most an hour; ``or_zero``: 0 is allowed, too."""
    value = options[name]
    remedy = "use 0 to 3600 seconds" if or_zero else "use seconds above 0, at most 3600"
    expect(0 < value <= 3600 or (or_zero and value == 0), name, value, remedy)


def typed(text: str, default: Any, name: str) -> Any:
    """Text converted to the type of the default; a float is a duration, in seconds."""
    if isinstance(default, float):
        return seconds(text, name)
    if isinstance(default, bool):
        words = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        expect(text.lower() in words, name, text[:40], "use true or false")
        return words[text.lower()]
    if isinstance(default, int):
        plain = text.isascii() and text.isdigit() and len(text) <= 18
        expect(plain, name, text[:40], f"use a whole number, such as {default}")
        return int(text)
    return text


SWITCH: Final = ("true", "false", "yes", "no", "1", "0")
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_FRACTION: Final = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")


Samples: TypeAlias = Mapping[str, float | tuple[str, ...] | None]
"""For each option of a driver: a number as an example, or all words that it accepts; None: not checked."""


def check_driver_options(given: Iterable[tuple[str, str]], samples: Samples) -> None:
    """Refuse a value that a driver would refuse only when it connects, or would replace by another one."""
    for name, text in given:
        sample = samples.get(name)
        if isinstance(sample, tuple):
            expect(text in sample, f"option {name}", text[:40], f"use one of {', '.join(sample)}")
        elif sample is not None:
            form = _WHOLE if isinstance(sample, int) else _FRACTION
            remedy = f"use a {'whole ' if isinstance(sample, int) else ''}number, such as {sample}"
            expect(form.fullmatch(text), f"option {name}", text[:40], remedy)


_WEB: Final = ("http", "https")
"""Schemes whose paths may contain an @."""

_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,47}", re.ASCII)


def identifier(name: object, what: str = "table") -> str:
    """A name that is safe in SQL. Any other name is refused, never quoted."""
    if not isinstance(name, str) or not _IDENTIFIER.fullmatch(name):
        raise ConfigurationError(
            f"{what} name {shown(name)} is refused: use 1 to 48 of a-z, 0-9 and _, not starting "
            "with a digit"
        )
    return name


def _class_for(url: str, prefix: str) -> Any:
    _check_text(url, "store")
    target = target_of(plain_url(url), SCHEMES, "store")
    module_name, _, names = target.partition(":")
    name, _, other = names.partition(",")
    return getattr(
        importlib.import_module(module_name), (other or prefix + name) if prefix else name
    )


def target_of(url: str, schemes: Mapping[str, str], what: str) -> str:
    """The class for this URL's scheme: one of ours, or one that another package registers."""
    _check_text(url, what)
    scheme, colon, _ = url.partition(":")
    _check_place(url)
    if colon and scheme in schemes:
        return schemes[scheme]
    from importlib.metadata import entry_points

    added = {point.name: point.value for point in entry_points(group=f"twicesafe.{what}s")}
    if colon and scheme in added:
        return added[scheme]
    base, plus, driver = scheme.partition("+")
    if what == "store" and plus and base in _DRIVERS and "@" not in scheme:
        raise ConfigurationError(
            f"{scheme[:40]}: there is no driver {driver[:30]!r}; write {base}://…: twicesafe chooses "
            f"the driver ({suggestion(driver, _DRIVERS[base])})"
        )
    problem = (
        f"no {what} for {scheme[:30]!r}" if colon and "@" not in scheme else f"no {what} for this"
    )
    if not url:
        problem = "the URL is empty (is its environment variable set?)"
    elif not colon and what == "store":
        problem = "this is not a URL (for a SQLite file, write sqlite:///keys.db)"
    names = [f"{name}:" for name in [*schemes, *added]]
    meant = suggestion(f"{scheme.lower()}:" if colon and "@" not in scheme else "", names, " ")
    raise ConfigurationError(
        f"{problem}{f' ({meant})' if meant.strip() else ''}: a {what} URL starts with one of "
        f"{', '.join(names)}"
    )


def _check_text(given: object, what: str) -> None:
    if isinstance(given, str):
        return
    problem = f"open(…) takes a URL, not {type(given).__name__}"
    if isinstance(given, os.PathLike):
        raise UsageError(f"{problem}: for a file, write 'sqlite:///keys.db'")
    if hasattr(given, "render_as_string"):  # SQLAlchemy's URL, whose str() has no password
        raise UsageError(f"{problem}: use url.render_as_string(hide_password=False)")
    raise UsageError(f"{problem}: give a {what} to the class itself, as in Receiver(store)")


def _check_place(url: str) -> None:
    """Refuse a URL whose password would be read as a host, and then printed in an error."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigurationError(
            f"{mask(url)} cannot be parsed: put an IPv6 address in [brackets], and percent-encode special "
            "characters in a password"
        ) from None
    after = parts.path + parts.fragment + parts.query.partition("=")[0]
    if parts.netloc and "@" in after and "@" not in parts.netloc and parts.scheme not in _WEB:
        raise ConfigurationError(
            f"{mask(url)}: there is an @ after the host; percent-encode / # ? and @ in a user, a "
            "password or a name (%2F %23 %3F %40)"
        )
