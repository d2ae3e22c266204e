"""Reads the setting TWICESAFE, once for each handler, and the scope of keys in Django.

In tests the real store is not used, like the real databases and mailboxes. Each test client keeps its keys
in memory, so that tests do not see each other's keys, or in `test_store`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.test import utils

from ... import AsyncReceiver, ConfigurationError, Policy, Receiver
from ..._core.http.key_field import credentials
from ..._core.http.message import HttpRequest
from ..._core.http.policy import DEFAULT_SCOPE, HttpPolicy
from ..._values.cipher import Cipher
from ..._values.settings import refuse_unknown
from ...encryption import KeyRing

__all__ = ["configured", "is_tested", "read", "setting"]

_NAMES = ("store", "policy", "encryption", "test_store")
_NEEDED = (
    'twicesafe needs the setting TWICESAFE = {"store": "sqlite:///keys.db"}: the URL of a '
    "store, and optionally a policy: a dict of HTTP settings or an HttpPolicy"
)


def configured(*, awaits: bool) -> tuple[HttpPolicy, Any]:
    """The policy, and a blocking or async receiver."""
    policy, store, encryption = read()
    opened = (AsyncReceiver if awaits else Receiver).open(
        store, policy=Policy(encryption=encryption)
    )
    return policy, opened


def read() -> tuple[HttpPolicy, str, Cipher | None]:
    """The policy, the URL of the store, which is not opened, and what encrypts responses."""
    found = setting()
    if "store" not in found:
        raise ImproperlyConfigured(_NEEDED)
    given = found.get("policy", {})
    policy = given if isinstance(given, HttpPolicy) else HttpPolicy().replace(**given)
    if policy.scope is DEFAULT_SCOPE:
        policy = policy.replace(scope=_user_or_client(policy.scope_secret))
    store = found.get("test_store", "memory://") if is_tested() else found["store"]
    encryption = found.get("encryption")
    return policy, store, KeyRing.load(encryption) if isinstance(encryption, str) else encryption


def setting() -> Mapping[str, Any]:
    """The setting TWICESAFE; empty: the project has none."""
    found = getattr(settings, "TWICESAFE", None)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        raise ImproperlyConfigured(f"{_NEEDED}; it is {type(found).__name__}, not a dict")
    try:
        refuse_unknown(map(str, found), _NAMES, "TWICESAFE setting")
    except ConfigurationError as error:
        raise ImproperlyConfigured(error.message) from error
    given = found.get("policy", {})
    if not isinstance(found.get("store", ""), str) or not isinstance(given, Mapping | HttpPolicy):
        raise ImproperlyConfigured(_NEEDED)
    return found


def is_tested() -> bool:
    """Whether `setup_test_environment` was called, as Django's test runner and pytest-django do."""
    return hasattr(utils._TestState, "saved_data")  # the same check as in Django


def _user_or_client(secret: bytes) -> Callable[[HttpRequest], tuple[str, str, str]]:
    def scope(request: HttpRequest) -> tuple[str, str, str]:
        host = request.native.get_host().lower()  # each of several sites may have a user 1
        user = getattr(request.native, "user", None)
        if user is not None and user.is_authenticated:
            return host, "user", str(user.pk)
        names = ("Authorization", f"cookie:{settings.SESSION_COOKIE_NAME}")
        return host, "client", credentials(request, names, secret)

    return scope
