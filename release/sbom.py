"""The bill of materials: CycloneDX 1.6 as JSON, and the licences of all dependencies as a table.

The required dependencies and those of every extra, with what they need in turn, at the versions of this environment (which
the lock file pins). Made twice from one commit, it is the same to the byte.
"""

from __future__ import annotations

import importlib.metadata as installed
import json
import re
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from .building import digest, epoch

__all__ = ["Package", "document", "licence_of", "packages", "table", "write"]

UNKNOWN = "not stated"


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    licence: str
    needs: tuple[str, ...]
    extras: frozenset[str] = field(default_factory=frozenset)
    """The extras that bring it; with "" it is required."""

    @property
    def purl(self) -> str:
        return f"pkg:pypi/{self.name}@{self.version}"


def write(root: Path, built: Iterable[Path], out: Path) -> list[Path]:
    """``sbom.cdx.json`` and ``LICENCES.md`` into the folder."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    version = installed.version(project["name"])
    found = packages(project)
    made = document(project, version, found, list(built), epoch(root))
    sbom, licences = out / "sbom.cdx.json", out / "LICENCES.md"
    sbom.write_text(json.dumps(made, indent=2, sort_keys=True) + "\n", "utf-8")
    licences.write_text(table(project["name"], version, found), "utf-8")
    return [sbom, licences]


# --- what is needed ------------------------------------------------------------------------------


def packages(project: dict[str, Any]) -> list[Package]:
    """Every package that an installation can bring, with or without extras."""
    wanted: dict[str, set[str]] = {}
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for name in _closure(lines):
            wanted.setdefault(name, set()).add(extra)
    return [
        Package(
            name,
            installed.version(name),
            licence_of(installed.distribution(name)),
            tuple(sorted(set(_needs(name, ())))),
            frozenset(extras),
        )
        for name, extras in sorted(wanted.items())
    ]


def _closure(lines: Iterable[str]) -> set[str]:
    found: set[str] = set()
    open_ = [(canonicalize_name(r.name), tuple(r.extras)) for r in map(Requirement, lines)]
    seen = set()
    while open_:
        name, extras = open_.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found.add(name)
        for line in installed.requires(name) or ():
            needed = Requirement(line)
            if _applies(needed, extras):
                open_.append((canonicalize_name(needed.name), tuple(needed.extras)))
    return found


def _needs(name: str, extras: tuple[str, ...]) -> Iterator[str]:
    for line in installed.requires(name) or ():
        needed = Requirement(line)
        if _applies(needed, extras):
            yield canonicalize_name(needed.name)


def _applies(needed: Requirement, extras: tuple[str, ...]) -> bool:
    if needed.marker is None:
        return True
    return any(needed.marker.evaluate({"extra": extra}) for extra in ("", *extras))


def licence_of(distribution: Any) -> str:
    """The licence that a package states: an SPDX expression, the words of its metadata, or the title of its file."""
    metadata = distribution.metadata
    expression = metadata.get("License-Expression")
    if expression:
        return str(expression)
    named = [
        text.rpartition(" :: ")[2]
        for text in metadata.get_all("Classifier") or ()
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    if named:
        return " and ".join(sorted(named))
    stated = str(metadata.get("License") or "").strip()
    if not _is_short(stated):
        stated = next(filter(_is_short, map(_title, _licence_files(distribution))), UNKNOWN)
    return stated


def _licence_files(distribution: Any) -> Iterator[str]:
    for file in distribution.files or ():
        if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            yield file.read_text("utf-8")


def _title(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _is_short(text: str) -> bool:
    return 0 < len(text) <= 60 and "\n" not in text


# --- the documents -------------------------------------------------------------------------------

_SPDX = re.compile(r"[A-Za-z0-9.+-]+( (AND|OR|WITH) [A-Za-z0-9.+-]+)*")


def document(
    project: dict[str, Any], version: str, found: list[Package], built: list[Path], at: int
) -> dict[str, Any]:
    """CycloneDX 1.6. Its serial number follows from its content, so that it can be made again."""
    own = f"pkg:pypi/{project['name']}@{version}"
    by_name = {package.name: package for package in found}
    required = sorted(
        p.purl for p in found if "" in p.extras and _is_direct(p, project["dependencies"])
    )
    files = [
        {
            "type": "file",
            "bom-ref": path.name,
            "name": path.name,
            "hashes": [{"alg": "SHA-256", "content": digest(path)}],
        }
        for path in built
    ]
    made: dict[str, Any] = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(at, UTC).isoformat(),
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": project["name"],
                "version": version,
                "purl": own,
                "description": project["description"],
                "licenses": _licences(project["license"]),
            },
        },
        "components": files + [_component(package) for package in found],
        "dependencies": [
            {"ref": own, "dependsOn": required},
            *(
                {
                    "ref": package.purl,
                    "dependsOn": sorted(by_name[n].purl for n in package.needs if n in by_name),
                }
                for package in found
            ),
        ],
    }
    content = json.dumps(made, sort_keys=True)
    made["serialNumber"] = f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"
    return made


def _is_direct(package: Package, lines: Iterable[str]) -> bool:
    return package.name in {canonicalize_name(Requirement(line).name) for line in lines}


def _component(package: Package) -> dict[str, Any]:
    extras = sorted(package.extras - {""})
    return {
        "type": "library",
        "bom-ref": package.purl,
        "name": package.name,
        "version": package.version,
        "purl": package.purl,
        "scope": "required" if "" in package.extras else "optional",
        "licenses": _licences(package.licence),
        "properties": [{"name": "twicesafe:extra", "value": extra} for extra in extras],
    }


def _licences(licence: str) -> list[dict[str, Any]]:
    if licence == UNKNOWN:
        return []
    if _SPDX.fullmatch(licence):
        return [{"expression": licence}]
    return [{"license": {"name": licence}}]


def table(name: str, version: str, found: list[Package]) -> str:
    lines = [
        f"# Licences of what {name} {version} can bring",
        "",
        "| package | version | licence | brought by |",
        "|---|---|---|---|",
    ]
    for package in found:
        extras = ", ".join(extra or "always" for extra in sorted(package.extras))
        lines.append(f"| {package.name} | {package.version} | {package.licence} | {extras} |")
    return "\n".join(lines) + "\n"
