"""Everything that must hold before a release: one line each, and status 1 if one of them does not.

version      _version.py, the changelog and the tags agree
api          the version grew by as much as the changes of the public API ask for
clean        nothing is uncommitted: what is built is what git has
build        two builds of the commit are equal to the byte; sums and a bill of materials
licences     every dependency states one
pages        the generated pages are those of the code
install      the wheel works in an empty environment, on every Python that is found
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

from . import building, sbom
from .api import Surface
from .verdict import compare, level_of, next_version

__all__ = ["CHECKS", "FailedCheckError", "run"]

SHOWN = 8
"""Changes of the API that are listed."""

SMOKE = """
import sys, tempfile, twicesafe
with tempfile.TemporaryDirectory() as folder, twicesafe.Receiver.open(f"sqlite:///{folder}/k.db") as receiver:
    first, again = (receiver.process("tx-1", lambda: {"paid": 1}) for _ in range(2))
assert (first.replayed, again.replayed, again.value) == (False, True, {"paid": 1})
assert {"redis", "psycopg", "typer", "cryptography"}.isdisjoint(sys.modules)
print(twicesafe.__version__)
"""


class FailedCheckError(Exception):
    """A check that does not hold, and why."""


def run(root: Path, out: Path) -> int:
    failed = 0
    for name, check in CHECKS.items():
        try:
            said = check(root, out)
        except FailedCheckError as error:
            failed += 1
            print(f"✗ {name:9} {error}")
        else:
            print(f"✓ {name:9} {said}")
        sys.stdout.flush()
    print("not ready" if failed else "ready: tag the commit, then upload what is in dist/")
    return 1 if failed else 0


# --- the checks ----------------------------------------------------------------------------------


def version_of(root: Path) -> str:
    found = re.search(r'"([^"]+)"', (root / "src/twicesafe/_version.py").read_text("utf-8"))
    if found is None or re.fullmatch(r"\d+\.\d+\.\d+", found[1]) is None:
        raise FailedCheckError("_version.py must have a version like 1.2.3")
    return found[1]


def check_version(root: Path, _: Path) -> str:
    version = version_of(root)
    headings = re.findall(
        r"^## \[(\d[^\]]*)\] - (\S+)$", (root / "CHANGELOG.md").read_text("utf-8"), re.M
    )
    if not headings or headings[0][0] != version:
        raise FailedCheckError(f"the first version in CHANGELOG.md must be [{version}]")
    if re.fullmatch(r"\d{4}-\d\d-\d\d", headings[0][1]) is None:
        raise FailedCheckError(
            f"CHANGELOG.md: [{version}] needs the date of its release, not {headings[0][1]!r}"
        )
    if f"v{version}" in _tags(root):
        raise FailedCheckError(f"there is a tag v{version} already: raise the version")
    return f"{version}, {headings[0][1]}"


def check_api(root: Path, _: Path) -> str:
    version, tags = version_of(root), _tags(root)
    now = surface_of(root / "src")
    if not tags:
        return f"{len(now)} public names; there is no tag to compare them with"
    last = tags[0]
    with tempfile.TemporaryDirectory() as folder:
        before = surface_of(building.sources(root, Path(folder), last) / "src")
    changes = compare(before, now)
    level = level_of(changes, last.removeprefix("v"))
    least = next_version(last.removeprefix("v"), level)
    listed = "; ".join(change.what for change in changes[:SHOWN]) or "no changes"
    if tuple(int(part) for part in version.split(".")) < least:
        wanted = ".".join(map(str, least))
        raise FailedCheckError(
            f"since {last} the API asks for {wanted} ({level}), not {version}: {listed}"
        )
    return f"{len(changes)} changes since {last}, a {level} version is enough: {listed}"


def surface_of(source: Path) -> Surface:
    """The API of these sources, read in a process that has only them."""
    environ = {**os.environ, "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent.parent}"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "release.api", "twicesafe"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise FailedCheckError(f"its API cannot be read: {done.stderr.strip().splitlines()[-1]}")
    found: Surface = json.loads(done.stdout)
    return found


def check_clean(root: Path, _: Path) -> str:
    changed = building.git(root, "status", "--porcelain").decode().splitlines()
    if changed:
        raise FailedCheckError(
            f"{len(changed)} files are not committed, such as {changed[0].strip()}"
        )
    return building.git(root, "rev-parse", "--short", "HEAD").decode().strip()


def check_build(root: Path, out: Path) -> str:
    try:
        built = building.build(root, out)
    except building.DifferentBuildsError as error:
        raise FailedCheckError(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise FailedCheckError(
            f"the build failed: {(error.stderr or b'').decode()[-200:]}"
        ) from error
    sbom.write(root, built, out)
    building.write_sums(out)
    return ", ".join(f"{path.name} {building.digest(path)[:12]}…" for path in built)


def check_licences(root: Path, _: Path) -> str:
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]
    found = sbom.packages(project)
    unknown = [package.name for package in found if package.licence == sbom.UNKNOWN]
    if unknown:
        raise FailedCheckError(f"no licence is stated by {', '.join(unknown)}")
    return f"{len(found)} packages, each states a licence"


def check_pages(root: Path, _: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "tests/house/test_reference.py"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        said = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise FailedCheckError(
            f"a generated page is not that of the code: run python docs/generate.py ({said})"
        )
    return "the reference is that of the code"


def check_install(root: Path, out: Path) -> str:
    wheels = sorted(out.glob("*.whl"))
    if not wheels:
        raise FailedCheckError("there is no wheel: the build failed")
    works = {name: _installed(python, wheels[0], root) for name, python in pythons()}
    if not works:
        raise FailedCheckError("no Python from 3.11 to 3.14 was found")
    wrong = {name: said for name, said in works.items() if said != version_of(root)}
    if wrong:
        name, said = next(iter(wrong.items()))
        raise FailedCheckError(f"on Python {name}: {said}")
    missing = [f"3.{minor}" for minor in range(11, 15) if f"3.{minor}" not in works]
    rest = f"; not found here: {', '.join(missing)}" if missing else ""
    return f"works on Python {', '.join(works)}{rest}"


def pythons() -> Iterator[tuple[str, str]]:
    """Every Python that we support and that runs here: on the path, or under pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in range(11, 15):
        name = f"3.{minor}"
        own = sys.executable if sys.version_info[:2] == (3, minor) else None
        under = (str(path) for path in sorted(pyenv.glob(f"{name}*/bin/python{name}")))
        for found in (own, *under, shutil.which(f"python{name}")):
            if found is not None and _runs(found, name):
                yield name, found
                break


def _runs(python: str, name: str) -> bool:
    """A name on the path may be a placeholder for a version that is not chosen here."""
    asked = [python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip() == name


def _installed(python: str, wheel: Path, root: Path) -> str:
    """Install the wheel into an empty environment and use it there; returns what it said."""
    with tempfile.TemporaryDirectory() as folder:
        inside = str(Path(folder) / "venv" / "bin" / "python")
        pins = str(root / "requirements" / "runtime.txt")
        steps = (
            [python, "-m", "venv", str(Path(folder) / "venv")],
            [inside, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", pins],
            [inside, "-m", "pip", "install", "--quiet", "--no-deps", str(wheel)],
            [inside, "-W", "error", "-I", "-c", SMOKE],
        )
        said = ""
        for step in steps:
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True, check=False)
            if done.returncode:
                return (done.stderr.strip().splitlines() or ["it failed"])[-1]
            said = done.stdout.strip()
        return said


def _tags(root: Path) -> list[str]:
    """Version tags, the newest first."""
    return building.git(root, "tag", "--list", "v[0-9]*", "--sort=-v:refname").decode().split()


CHECKS: dict[str, Callable[[Path, Path], str]] = {
    "version": check_version,
    "api": check_api,
    "clean": check_clean,
    "build": check_build,
    "licences": check_licences,
    "pages": check_pages,
    "install": check_install,
}
