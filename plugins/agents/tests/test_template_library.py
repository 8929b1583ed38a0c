"""The private parts of the template library that the renderer uses have the expected shape."""

from __future__ import annotations

import inspect
import re
import tomllib
from importlib.metadata import version

from dotpromptz_handlebars import Block, Mustache, Partial, Text
from dotpromptz_handlebars._render import compile_template, render_program

from tests.repo import tree


def _call(name: str, *args: str, **hashed: str) -> dict[str, object]:
    return {"name": name, "args": list(args), "hash": hashed, "params": [], "literal": False}


def test_the_library_is_pinned_to_the_installed_version():
    """A range would install a version whose parser has not been compared with ours."""
    project = tomllib.loads((tree.ROOT / "plugins/agents/pyproject.toml").read_text())["project"]
    pins = [need for need in project["dependencies"] if re.match(r"dotpromptz-handlebars\b", need)]
    assert pins == [f"dotpromptz-handlebars=={version('dotpromptz-handlebars')}"]


def test_the_private_functions_have_the_expected_parameters():
    assert list(inspect.signature(compile_template).parameters) == ["source", "max_depth"]
    assert list(inspect.signature(render_program).parameters) == [
        "program",
        "context",
        "data",
        "helpers",
        "partials",
        "escape_html",
        "strict",
        "max_depth",
    ]


def test_the_parsed_form_has_the_expected_nodes():
    template = "a{{b.c}}{{json d indent=2}}{{#each e}}x{{else}}y{{/each}}{{> p}}"
    assert compile_template(template, max_depth=40) == [
        Text("a"),
        Mustache(_call("b.c"), raw=False),
        Mustache(_call("json", "d", indent="2"), raw=False),
        Block(_call("each", "e"), body=[Text("x")], inverse=[Text("y")]),
        Partial("p", context_path=None, hash={}, indent=""),
    ]


def test_a_helper_is_called_for_a_node_that_was_not_parsed():
    """The counting nodes exist only in the tree, under names that no template can contain."""
    seen: list[object] = []

    def count(args: list[object], _: object) -> str:
        seen.extend(args)
        return ""

    program = [Mustache(_call("\x01count", "3"), raw=True), *compile_template("b", max_depth=40)]
    text = render_program(
        program,
        {},
        data=None,
        helpers={"\x01count": count},
        partials={},
        escape_html=False,
        strict=False,
        max_depth=40,
    )
    assert (text, seen) == ("b", [3])
