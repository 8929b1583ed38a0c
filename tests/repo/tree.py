"""The repository as data: files, modules and imports. Reads, never imports."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_CORE = (ROOT, ROOT / "client", ROOT / "server")
SOURCES = (*(path / "src" for path in _CORE), *sorted(ROOT.glob("plugins/*/src")))
"""The directories with a package each, the runtime's first."""


@dataclass(frozen=True, slots=True)
class Import:
    """`target` is the dotted module named; `line` where."""

    module: str
    target: str
    line: int


@cache
def files() -> tuple[Path, ...]:
    """Return what git tracks or would track; in an unpacked archive, all that is not built."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        top = {".venv", "build", "dist", ".git"}
        built = {"_bin", "target", "__pycache__", "results"}
        every = [p.relative_to(ROOT) for p in ROOT.rglob("*") if p.is_file()]
        rest = [p for p in every if p.parts[0] not in top and not built & set(p.parts)]
        return tuple(sorted(ROOT / p for p in rest))
    paths = (ROOT / name.decode() for name in listed.split(b"\0") if name)
    return tuple(sorted(p for p in paths if p.is_file()))


@cache
def modules() -> dict[str, Path]:
    """Return every module of every distribution by its dotted name."""
    found: dict[str, Path] = {}
    for source in SOURCES:
        for path in sorted(source.rglob("*.py")):
            parts = path.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, source: str, *, is_package: bool = False) -> list[Import]:
    """Return every import in the source, at the top, in a function or for type checkers only."""
    found: list[Import] = []
    for node in _statements(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(module, alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            target = node.module or ""
            if node.level:
                parts = module.split(".")
                above = node.level - 1 if is_package else node.level
                base = parts[: len(parts) - above]
                target = ".".join([*base, *([node.module] if node.module else [])])
            # `from a import b` names the module a.b, or else the module a.
            inner = [f"{target}.{alias.name}" for alias in node.names]
            named = sorted({name if _is_module(name) else target for name in inner})
            found += [Import(module, name, node.lineno) for name in named]
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements inside a node. Expressions, most of a tree, contain none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(node, name, None)
        for statement in inner if isinstance(inner, list) else ():
            yield statement
            yield from _statements(statement)


def _is_module(name: str) -> bool:
    return name in _modules_and_packages()


@cache
def _modules_and_packages() -> frozenset[str]:
    parts = (module.split(".") for module in modules())
    return frozenset(".".join(words[:end]) for words in parts for end in range(1, len(words) + 1))


def text(path: Path) -> str | None:
    """The file as text, or None when it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
