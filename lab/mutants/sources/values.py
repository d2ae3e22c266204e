"""Source mutants of the values: keys that meet, keys that are cut."""

from __future__ import annotations

from .registry import break_source

KEYS = "tests/unit/test_keys.py"

break_source(
    "scope parts are glued",
    bug="a scope part goes into the identity without its length: (a, bc) and (ab, c) are one key",
    file="_values/keys.py",
    old="return _LENGTHS[size] + data",
    new="return data",
    tests=[f"{KEYS}::test_look_alikes_differ"],
)
break_source(
    "derived keys forget their parent",
    bug="the key of a step is the same for all operations",
    file="_values/keys.py",
    old='b"twicesafe.derive.1\\0" + self.id + _prefixed(step, "step")',
    new='b"twicesafe.derive.1\\0" + _prefixed(step, "step")',
    tests=[f"{KEYS}::test_derive_is_deterministic_and_distinct"],
)
break_source(
    "versions look like ids",
    bug='id "7" of version 2 and id "v2:7" without a version are one message key',
    file="_values/keys.py",
    old='f"{type}@v{version}:{id}"',
    new='f"{type}:v{version}:{id}"',
    tests=[f"{KEYS}::test_from_message"],
)
break_source(
    "true is a key",
    bug="a bool is taken for the number 1 or 0",
    file="_values/keys.py",
    old="isinstance(key, int) and not isinstance(key, bool)",
    new="isinstance(key, int)",
    tests=[f"{KEYS}::test_as_key"],
)
