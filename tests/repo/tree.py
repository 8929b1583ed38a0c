"""The repository as data: files, modules and imports. Reads, never imports."""

from __future__ import annotations

import ast
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "sandkasten"


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
        built = {".venv", "build", "dist", "_bin", "target", "__pycache__", "results", ".git"}
        every = (p for p in ROOT.rglob("*") if p.is_file())
        return tuple(sorted(p for p in every if not built & set(p.relative_to(ROOT).parts)))
    paths = (ROOT / name.decode() for name in listed.split(b"\0") if name)
    return tuple(sorted(p for p in paths if p.is_file()))


@cache
def modules() -> dict[str, Path]:
    """Return every module of the package by its dotted name."""
    found: dict[str, Path] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(SRC).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(module: str, source: str, *, is_package: bool = False) -> list[Import]:
    """Return every import in the source, at the top, in a function or for type checkers only."""
    found: list[Import] = []
    for node in ast.walk(ast.parse(source)):
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


def _is_module(name: str) -> bool:
    path = SRC / Path(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def text(path: Path) -> str | None:
    """The file as text, or None when it is not UTF-8."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
