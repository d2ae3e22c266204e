"""The description that a package index shows: the README, with links that work there.

In the repository the README links to its own files. An index has none of them, so such a link would lead
nowhere. With a ``Documentation`` address in ``[project.urls]``, links to pages and pictures lead to the built site;
without one, and for files that the site does not have, the words stay and the link goes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!https?://|#)(?P<target>[^)]+)\)")


class Description(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        site = metadata.get("urls", {}).get("Documentation", "")
        text = (Path(self.root) / "README.md").read_text("utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": described(text, site)}


def described(readme: str, site: str = "") -> str:
    def there(found: re.Match[str]) -> str:
        address = _address(found["target"], site)
        if address:
            return f"{found['picture']}[{found['words']}]({address})"
        return "" if found["picture"] else found["words"]

    return LINK.sub(there, readme)


def _address(target: str, site: str) -> str:
    """Where the built site has this file; empty: nowhere."""
    path, hash_, anchor = target.partition("#")
    if not site or not path.startswith("docs/"):
        return ""
    page = re.sub(r"(?<![^/])index\.md$", "", path.removeprefix("docs/"))
    page = re.sub(r"\.md$", "/", page)
    return f"{site.rstrip('/')}/{page}{hash_}{anchor}"
