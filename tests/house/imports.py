"""Reads what a package imports, without importing it.

An import is *eager* when loading the module performs it, and *lazy* inside a function. What stands
under ``if TYPE_CHECKING:`` is never performed and does not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Import:
    """One import statement: who asks, for what, and when it is performed."""

    importer: str
    target: str
    line: int
    eager: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.target}"


@dataclass(frozen=True)
class Package:
    """All modules of a package and all their imports, with names as dotted paths."""

    name: str
    modules: frozenset[str]
    imports: tuple[Import, ...]

    @classmethod
    def read(cls, folder: Path) -> Package:
        files = {_dotted(folder, path): path for path in sorted(folder.rglob("*.py"))}
        modules = frozenset(files)
        imports = [
            found
            for module, path in files.items()
            for found in _imports(module, path, folder.name, modules)
        ]
        return cls(folder.name, modules, tuple(imports))

    def is_inside(self, module: str) -> bool:
        return module == self.name or module.startswith(self.name + ".")

    def inside(self) -> list[Import]:
        return [found for found in self.imports if self.is_inside(found.target)]

    def outside(self) -> list[Import]:
        return [found for found in self.imports if not self.is_inside(found.target)]

    def loaded_by(self, module: str) -> set[str]:
        """Every module of the package that loading this one loads too."""
        eager: dict[str, set[str]] = {}
        for found in self.inside():
            if found.eager:
                eager.setdefault(found.importer, set()).add(found.target)
        reached: set[str] = set()
        todo = [module]
        while todo:
            here = todo.pop()
            if here in reached:
                continue
            reached.add(here)
            todo += eager.get(here, ())
            if "." in here:  # loading a.b loads a first
                todo.append(here.rpartition(".")[0])
        return reached


def _dotted(folder: Path, path: Path) -> str:
    parts = path.relative_to(folder.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(module: str, path: Path, package: str, modules: frozenset[str]) -> Iterator[Import]:
    tree = ast.parse(path.read_text("utf-8"), str(path))
    home = module if path.stem == "__init__" else module.rpartition(".")[0]
    for node, eager in _performed(tree, eager=True):
        for target in _targets(node, home, package, modules):
            yield Import(module, target, node.lineno, eager)


def _performed(node: ast.AST, *, eager: bool) -> Iterator[tuple[ast.stmt | ast.expr, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and _is_type_checking(child.test):
            for orelse in child.orelse:
                yield from _performed(ast.Module([orelse], []), eager=eager)
        elif isinstance(child, ast.Import | ast.ImportFrom | ast.Call):
            yield child, eager
            yield from _performed(child, eager=eager)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            # Decorators and defaults run when the module loads, the body does not.
            for early in (*child.decorator_list, child.args):
                yield from _performed(ast.Tuple([early], ast.Load()), eager=eager)  # type: ignore[list-item]
            yield from _performed(ast.Module(child.body, []), eager=False)
        elif isinstance(child, ast.Lambda):
            yield from _performed(child, eager=False)
        else:
            yield from _performed(child, eager=eager)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def _targets(node: ast.AST, home: str, package: str, modules: frozenset[str]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield alias.name
        case ast.ImportFrom(module=base, names=names, level=level):
            start = _absolute(base or "", level, home)
            for alias in names:
                # `from package import module` asks for the module, anything else for its home.
                full = f"{start}.{alias.name}"
                yield full if full in modules else start
        case ast.Call(func=func, args=[ast.Constant(value=str(text)), *_]) if _is_import(func):
            level = len(text) - len(text.lstrip("."))
            yield _absolute(text.lstrip("."), level, home)


def _absolute(base: str, level: int, home: str) -> str:
    if not level:
        return base
    parts = home.split(".")
    start = ".".join(parts[: len(parts) - level + 1])
    return f"{start}.{base}" if base else start


def _is_import(func: ast.expr) -> bool:
    named = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return named in {"import_module", "__import__"}
