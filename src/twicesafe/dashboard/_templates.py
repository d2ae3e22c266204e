"""The pages as HTML: Jinja2 templates that escape everything, except the charts that we draw ourselves."""

from __future__ import annotations

from functools import cache
from typing import Any

import jinja2
from markupsafe import Markup

from .._values.quantities import counted

__all__ = ["render"]


@cache
def _environment() -> jinja2.Environment:
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("twicesafe.dashboard"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["drawn"] = Markup  # only for what `_charts` made: it has escaped its own words
    made.filters["counted"] = counted
    made.filters["with_code"] = _with_code
    return made


def _with_code(text: str) -> Markup:
    """Words in backticks as code; everything is escaped."""
    parts = text.split("`")
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if n % 2 else part for n, part in enumerate(parts)
    )


def render(name: str, **shown: Any) -> str:
    return _environment().get_template(f"{name}.html").render(**shown)
