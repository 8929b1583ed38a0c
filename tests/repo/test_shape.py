"""Rules for the source tree: names, sizes, docstrings, hygiene."""

from __future__ import annotations

import ast
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.repo import tree

if TYPE_CHECKING:
    from collections.abc import Iterable

VAGUE = {"utils", "util", "helpers", "helper", "common", "manager", "base", "misc", "stuff"}
MOST_LINES = 700
MOST_MODULES = 25
# Adapters repeat the public noun that they adapt: `images`, `workspaces`, `keys`.
RIM = ("api/routes/", "cli/", "client/", "sync.py")
# Every backend has these, and every plugin of routes or commands; a reader looks for them by name.
CONVENTIONS = {
    *("backend.py", "capabilities.py", "cell.py", "plugin.py", "probe.py", "selftest.py"),
    *("command_plugin.py", "route_plugin.py"),
}
NOUNS = {"spelling"}
EMPTY_NAMES = ("one", "found", "told", "said", "made")
"""Names that say nothing about a value: write `record`, `reply`, `match`, `error` instead."""
NAMED_FOLDERS = (
    *("client/src", "src", "server/src"),
    *("contract/src", "examples", "scripts", "benchmarks"),
    *(str(path.relative_to(tree.ROOT)) for path in tree.ROOT.glob("plugins/*/src")),
)
"""Folders in which no variable, parameter or function has such a name."""

_REGISTRIES = (
    "py" + "pi.org",
    "python" + "hosted.org",
    "npm" + "js.org",
    "npm" + "js.com",
    "static.crates" + ".io",
    "index.crates" + ".io",
    "crates.io" + "-index",
    "deb.debian" + ".org",
    "security.debian" + ".org",
    "node" + "source.com",
    "proxy.golang" + ".org",
)


def _unfinished(source: str) -> list[int]:
    """Return lines that mark unfinished code. Ellipsis bodies of Protocols are allowed."""
    marks = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "XX" + "X")) + r")\b")
    found = {n for n, line in enumerate(source.splitlines(), 1) if marks.search(line)}
    name = "NotImplemented" + "Error"
    # Parsing every module takes seconds, and hardly any has the word.
    for node in ast.walk(ast.parse(source)) if name in source else ():
        if isinstance(node, ast.Name) and node.id == name:
            found.add(node.lineno)
    return sorted(found)


def test_no_file_has_a_vague_name():
    named = [p for p in tree.files() if p.suffix in {".py", ".rs", ".ts"}]
    vague = [p for p in named if {p.stem, p.parent.name} & VAGUE]
    assert vague == []


def _clashes(paths: Iterable[str]) -> dict[str, list[str]]:
    """Return base names that several modules have, adapters at the rim left out."""
    named = defaultdict(list)
    for path in paths:
        if not path.startswith(RIM) and Path(path).name not in CONVENTIONS:
            named[Path(path).name].append(path)
    return {name: sorted(found) for name, found in named.items() if len(found) > 1}


def test_module_names_are_unique_outside_the_adapters():
    assert _clashes(_package_paths()) == {}


@pytest.mark.parametrize(
    ("paths", "clashes"),
    [
        (["engine/x.py", "store/x.py"], {"x.py": ["engine/x.py", "store/x.py"]}),
        (["engine/x.py", "cli/commands/x.py", "api/routes/x.py"], {}),
        (["backends/local/probe.py", "backends/oci/probe.py"], {}),
    ],
)
def test_repeated_module_name_is_found(paths, clashes):
    assert _clashes(paths) == clashes


def test_no_module_is_named_by_a_gerund():
    gerunds = [p for p in _package_paths() if p.endswith("ing.py") and Path(p).stem not in NOUNS]
    assert gerunds == []


def _empty_names(source: str) -> list[tuple[int, str]]:
    """Return line and name of each variable, parameter and function with one of EMPTY_NAMES.

    Methods and fields are left out: they are read behind the object that has them.
    """
    # Parsing every module takes seconds, and few have such a word where a name is bound.
    words = "|".join(EMPTY_NAMES)
    if not re.search(
        rf"\b(?:{words})\b(?=\s*(?:[-+=:,)(\]|*/%&^]|in\b|if\b|$))", source, re.MULTILINE
    ):
        return []
    parsed = ast.parse(source)
    members: set[ast.AST] = set()
    for node in ast.walk(parsed):
        if isinstance(node, ast.ClassDef):
            for statement in node.body:
                members.add(statement)
                members.update(getattr(statement, "targets", []))
                members.add(getattr(statement, "target", statement))
    bound: list[tuple[int, str]] = []
    for node in ast.walk(parsed):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                pass
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                pass
            case ast.ExceptHandler(name=name) | ast.MatchAs(name=name) | ast.MatchStar(name=name):
                pass
            case ast.MatchMapping(rest=name):
                pass
            case _:
                continue
        if name in EMPTY_NAMES and node not in members:
            bound.append((node.lineno, str(name)))
    return sorted(bound)


def test_variables_are_named_by_what_they_are():
    folders = [tree.ROOT / folder for folder in NAMED_FOLDERS]
    assert [folder for folder in folders if not folder.is_dir()] == []
    empty = {
        str(path.relative_to(tree.ROOT)): names
        for path in tree.files()
        if path.suffix == ".py" and any(path.is_relative_to(folder) for folder in folders)
        if (names := _empty_names(path.read_text()))
    }
    assert empty == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("found = 1\n", [1]),
        ("for key, one in x:\n    pass\n", [1]),
        ("x = [\n    one\n    for one in y\n]\n", [3]),
        ("def f(a, *, told=None): ...\n", [1]),
        ("def f():\n    def made(): ...\n", [2]),
        ("x = lambda one: one\n", [1]),
        ("with a as (\n    said\n):\n    pass\n", [2]),
        ("try: ...\nexcept E as told: ...\n", [2]),
        ("if (found := f()): ...\n", [1]),
        ("match x:\n    case [one, *made]: ...\n", [2, 2]),
        ("match x:\n    case {**found}: ...\n    case A(told=y): ...\n", [2]),
        ("class A:\n    found: int\n    made = 1\n    def told(self): ...\n", []),
        ("class A:\n    def f(self, one): ...\n", [2]),
        ("x.found = y.one\nf(told=1)\n", []),
        ('found_at, someone = 1, 2\n"""one: found"""\n', []),
    ],
)
def test_a_name_that_says_nothing_is_recognised(source, lines):
    assert [line for line, _ in _empty_names(source)] == lines


def test_no_folder_has_more_modules_than_a_reader_can_scan():
    sizes = Counter(str(Path(path).parent) for path in _package_paths())
    assert {folder: n for folder, n in sizes.items() if n > MOST_MODULES} == {}


def _package_paths() -> list[str]:
    """Return every module below its package; those of a plugin with its name in front."""
    return [
        re.sub("^sandkasten(_runtime|_server)?/", "", str(path.relative_to(source)))
        for source in tree.SOURCES
        for path in sorted(source.rglob("*.py"))
        if path.name != "__init__.py"
    ]


def test_no_module_is_too_long():
    programs = (tree.ROOT / "runner" / "src").rglob("*.rs")
    long = {
        str(path.relative_to(tree.ROOT)): lines
        for path in (*tree.modules().values(), *programs)
        if (lines := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert long == {}


def _has_docstring(source: str) -> bool:
    # Everything from the first statement on is left out: parsing all of it takes seconds.
    return re.match(r'(#.*\n|\s)*"""\s*[^\s"]', source) is not None


def test_every_module_has_a_docstring():
    modules = tree.modules().items()
    assert [name for name, path in modules if not _has_docstring(path.read_text())] == []


@pytest.mark.parametrize(
    ("source", "has"),
    [
        ('"""Return it."""\nx = 1\n', True),
        ('#!/usr/bin/python3\n# A comment.\n\n"""\nReturn it.\n"""\n', True),
        ('""" """\n', False),
        ('x = """Return it."""\n', False),
        ('import os\n\n"""Return it."""\n', False),
        ("", False),
    ],
)
def test_a_missing_docstring_is_recognised(source, has):
    assert _has_docstring(source) is has
    assert bool(ast.get_docstring(ast.parse(source))) is has


def test_nothing_is_left_unfinished():
    found = {
        str(path.relative_to(tree.ROOT)): lines
        for path in tree.modules().values()
        if (lines := _unfinished(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("x = 1\n# TO" + "DO: later\n", [2]),
        ("def f():\n    raise NotImplemented" + "Error\n", [2]),
        ("todo_list = []\n", []),
        ("class P(Protocol):\n    def f(self) -> int: ...\n", []),
    ],
)
def test_unfinished_code_is_recognised(source, lines):
    assert _unfinished(source) == lines


def _foreign_words(content: str, root: Path = tree.ROOT) -> list[str]:
    """Hosts of package registries and paths that exist on one machine only."""
    # `main` alone: in a sandbox, /work is the workspace and has a main.py.
    paths = ["/work/" + "main/", "/work/" + "shared", "/root/" + "."]
    # A checkout in /tmp/x says nothing: that is what people call things in examples.
    if len(root.parts) > 4:
        paths.append(str(root))
    return [word for word in (*_REGISTRIES, *paths) if word in content]


def test_no_file_names_a_registry_or_a_path_of_one_machine():
    found = {
        str(path.relative_to(tree.ROOT)): words
        for path in tree.files()
        if (content := tree.text(path))
        and (words := _foreign_words(content))
        # The presets of network rules are names of public registries, and the source documents
        # have paths inside of sandboxes.
        and path.name != "network_rules.py"
        and "seeds" not in path.parts
    }
    assert found == {}


def test_a_registry_host_and_a_machine_path_are_recognised():
    assert _foreign_words("https://files.python" + "hosted.org/x") == ["python" + "hosted.org"]
    home = Path("/home/somebody/src/sandkasten")
    assert _foreign_words(f"see {home}/x", home) == [str(home)]
    assert _foreign_words("see /tmp/x/y", Path("/tmp/x")) == []
    assert _foreign_words("pip install sandkasten; /workspace/x; /work/main.py; /root") == []


def test_nothing_tells_a_user_to_install_the_other_project_of_that_name():
    # It would replace files of this one. Records of the past keep their words.
    by_name = re.compile(r"pip install [^\n]{0,40}?[ '\"=]sandkasten(?![-_=\w/])")
    assert by_name.search("hint: pip install 'sandkasten[docker]'")
    assert by_name.search("pip install -U sandkasten")
    assert not by_name.search("hint: pip install 'sandkasten-runtime[docker]'")
    assert not by_name.search("pip install ./sandkasten_runtime-*.whl")
    told = [
        str(path.relative_to(tree.ROOT))
        for path in tree.files()
        if path.parent.name not in {"repo", "decisions"} and path.name != "CHANGELOG.md"
        if (content := tree.text(path)) and by_name.search(content)
    ]
    assert told == []


def test_the_built_binaries_name_no_path_of_the_machine_that_built_them():
    folder = tree.ROOT / "src" / "sandkasten_runtime" / "_bin"
    binaries = sorted(folder.iterdir())
    assert [b.name for b in binaries] == [
        "sandkasten",
        "sandkasten-egress",
        "sandkasten-gate",
        "sandkasten-launch",
        "sandkasten-runner",
        "sandkasten-unpack",
    ]
    # Of a file: strings without an end can stand side by side and look like a path.
    source = re.compile(re.escape(os.path.expanduser("~").encode()) + rb"/[\w./-]*\.rs")
    for binary in binaries:
        content = binary.read_bytes()
        assert str(tree.ROOT).encode() not in content, binary.name
        assert source.search(content) is None, binary.name


def test_every_dunder_all_names_existing_symbols_once():
    wrong: dict[str, list[str]] = {}
    for module, path in tree.modules().items():
        source = path.read_text()
        if "__all__" not in source or module == "sandkasten":
            continue
        parsed = ast.parse(source)
        listed = _all_of(parsed)
        if listed is None:
            continue
        bound = _bound_names(parsed)
        bad = [name for name in listed if name not in bound or listed.count(name) > 1]
        if bad:
            wrong[module] = bad
    assert wrong == {}


def _all_of(parsed: ast.Module) -> list[str] | None:
    for node in parsed.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            assert isinstance(node, ast.Assign | ast.AnnAssign)
            assert node.value is not None
            return list(ast.literal_eval(node.value))
    return None


def _bound_names(parsed: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(parsed):
        match node:
            case ast.Import() | ast.ImportFrom():
                names |= {(a.asname or a.name).split(".")[0] for a in node.names}
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                names.add(node.name)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
    return names


def _marks_of_a_merge(source: str) -> list[int]:
    mark = re.compile(r"(" + "<" * 7 + "|" + ">" * 7 + r") \S")
    return [n for n, line in enumerate(source.splitlines(), 1) if mark.match(line)]


def test_no_file_has_merge_conflict_markers():
    found = {
        str(path.relative_to(tree.ROOT)): lines
        for path in tree.files()
        if (content := tree.text(path)) and (lines := _marks_of_a_merge(content))
    }
    assert found == {}
    assert _marks_of_a_merge("a\n" + "<" * 7 + " HEAD\nb\n" + ">" * 7 + " other\n") == [2, 4]
