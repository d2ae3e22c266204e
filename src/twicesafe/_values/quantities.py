"""Quantities as people write them (rates, shares and sizes; durations are in `settings`), and as text for people.

    per_second("500/s", "rate")      500.0        also "30/m", "2M/d"; a number is per second
    share("2%", "duplicates")        0.02         also "0.02", "1e-6"; a number is a share
    size("4KiB", "result")           4096         also "200B", "1.5MB"; a number is bytes

A wrong text raises `ConfigurationError`, which names the setting and the nearest right form.
"""

from __future__ import annotations

import math
import re
from typing import Final, TypeAlias

from ..errors import ConfigurationError
from .settings import expect, shown

__all__ = [
    "Rate",
    "Share",
    "Size",
    "bytes_text",
    "counted",
    "duration_text",
    "per_second",
    "percent_text",
    "share",
    "share_text",
    "size",
]

Rate: TypeAlias = float | str
Share: TypeAlias = float | str
Size: TypeAlias = float | str

_NUMBER: Final = r"(\d+(?:\.\d+)?(?:e[+-]?\d{1,3})?)"
_LONGEST_TEXT: Final = 40

_PERIODS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_MANY: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}
_RATE: Final = re.compile(rf"{_NUMBER}([kMG]?)/([smhdw])", re.ASCII)
_LOOSE_RATE: Final = re.compile(rf"{_NUMBER}(k|m|g)?(?:/|per|rp|tp)?([a-z]*)", re.ASCII)

_SHARE: Final = re.compile(rf"{_NUMBER}(%?)", re.ASCII | re.IGNORECASE)

_SIZES: Final = {
    "": 1.0, "B": 1.0, "kB": 1e3, "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40,
}  # fmt: skip
_SIZE: Final = re.compile(rf"{_NUMBER}([A-Za-z]*)", re.ASCII)


def per_second(value: object, name: str = "rate") -> float:
    """A rate per second. Raises a `ConfigurationError` that names the setting if it is not a rate."""
    if isinstance(value, str):
        match = _RATE.fullmatch(value[:_LONGEST_TEXT])
        if match is None:
            raise _wrong(value, name, "a rate", _meant_rate(value), "'500/s', '30/m' or '2M/d'")
        value = float(match[1]) * _MANY[match[2]] / _PERIODS[match[3]]
    return _number(value, name, "a rate per second")


def share(value: object, name: str = "share") -> float:
    """A share from 0 to 1."""
    if isinstance(value, str):
        match = _SHARE.fullmatch(value[:_LONGEST_TEXT])
        if match is None:
            raise _wrong(value, name, "a share", _meant_share(value), "'2%' or '0.02'")
        found = float(match[1]) / (100 if match[2] else 1)
        if found > 1 and not match[2]:
            raise _wrong(value, name, "a share", f"{match[1]}%" if found <= 100 else "", "'2%'")
        value = found
    found = _number(value, name, "a share from 0 to 1")
    expect(found <= 1, name, value, "use a share from 0 to 1, or text like '2%'")
    return found


def size(value: object, name: str = "size") -> float:
    """A number of bytes."""
    if isinstance(value, str):
        match = _SIZE.fullmatch(value[:_LONGEST_TEXT])
        if match is None or match[2] not in _SIZES:
            raise _wrong(value, name, "a size", _meant_size(value), "'200B', '4KiB' or '1.5MB'")
        value = float(match[1]) * _SIZES[match[2]]
    return _number(value, name, "a size in bytes")


def _number(value: object, name: str, what: str) -> float:
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not plain or not math.isfinite(value):  # type: ignore[arg-type]
        raise ConfigurationError(f"{name} must be {what}, not {shown(value)}")
    found = float(value)  # type: ignore[arg-type]
    expect(found >= 0, name, value, f"use {what}, 0 or more")
    return found


def _wrong(text: str, name: str, what: str, meant: str, forms: str) -> ConfigurationError:
    hint = f"write {meant!r}" if meant else f"write it like {forms}"
    return ConfigurationError(f"{name}={text[:_LONGEST_TEXT]!r} is not {what}: {hint}")


def _meant_rate(text: str) -> str:
    match = _LOOSE_RATE.fullmatch(re.sub(r"[\s,_]+", "", text[:_LONGEST_TEXT].lower()))
    if match is None:
        return ""
    number, many, unit = match.groups()
    many = {"k": "k", "m": "M", "g": "G"}.get(many or "", "")
    return f"{number}{many}/{unit[:1] if unit[:1] in _PERIODS else 's'}"


def _meant_share(text: str) -> str:
    words = re.sub(r"\s+", "", text[:_LONGEST_TEXT].lower()).replace(",", ".")
    match = re.fullmatch(rf"{_NUMBER}(?:%|percent|pct|per100)", words)
    return f"{match[1]}%" if match else ""


def _meant_size(text: str) -> str:
    match = _SIZE.fullmatch(re.sub(r"[\s,_]+", "", text[:_LONGEST_TEXT]))
    if match is None:
        return ""
    unit = match[2].lower().removesuffix("ytes").removesuffix("yte") or "b"
    known = {name.lower(): name for name in _SIZES if name}
    found = known.get(unit) or known.get(f"{unit}b", "")
    return f"{match[1]}{found}" if found else ""


# --- as text -------------------------------------------------------------------------------------


def counted(number: int, thing: str) -> str:
    """1 message, 2 messages."""
    return f"{number:,} {thing}" + ("" if number == 1 else "s")


def bytes_text(number: float) -> str:
    """512 B, 3.41 MB: powers of 1000, as disks are sold."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:,.3g} TB"


def share_text(value: float) -> str:
    """A share as percent, as short as it can be: 2 %, 0.01 %, 1e-07 %."""
    return f"{value * 100:.3g} %"


def percent_text(value: float) -> str:
    """A share as percent, with as many digits as are needed to tell it from 0 % and 100 %."""
    percent = value * 100
    for digits in range(1, 13):
        shown = f"{percent:.{digits}f}"
        if percent in (0.0, 100.0) or float(shown) not in (0.0, 100.0):
            return f"{shown.rstrip('0').rstrip('.')} %"
    return f"{percent:.2g} %"


def duration_text(value: float, up: bool = False) -> str:
    """A duration in the form in which settings take it, in two units: 7d, 1h30m, 250ms.

    ``up``: not shorter than the value, for a window that must reach its target.
    """
    if math.isinf(value):
        return "never"
    if up and value >= 1:
        step = 3600 if value >= 86400 else 60 if value >= 3600 else 1
        value = math.ceil(value / step) * step
    if value < 1:
        return f"{round(value * 1000)}ms"
    left, found = round(value), []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            found.append(f"{count}{unit}")
    return "".join(found[:2]) or "0s"
