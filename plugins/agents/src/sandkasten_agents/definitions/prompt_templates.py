"""Handlebars templates of agents: compiled once, checked completely, rendered within a budget.

The language is that of dotprompt: `if`, `unless`, `each`, `with`, `lookup`, and the helpers `role`,
`history`, `media`, `section`, `json`, `ifEquals` and `unlessEquals`. Partials are rejected: a
template reads only the values passed to it. `log` is not available. Values are never interpreted as
templates or as marks: the marks that `role` and similar helpers leave in the output contain a
random word of this rendering, which no value can know. A path that does not resolve renders as an
empty string, as in Handlebars.

An error in the template raises InvalidAgent with its line. Rendering is bounded by steps and by
characters of output; exceeding a bound raises InvalidAgent. The library has neither limits nor a
hook for them, so a counting node is inserted at the start of every body, and every value is printed
by a helper of this module. Both use the library's parsed form, which is not public: its version is
pinned exactly.
"""

from __future__ import annotations

import json
import re
import secrets
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from dotpromptz_handlebars import (
    Block,
    HelperOptions,
    InlinePartial,
    Mustache,
    Partial,
    PartialBlock,
    SafeString,
    TemplateRecursionError,
    Text,
)
from dotpromptz_handlebars._render import compile_template, render_program

from sandkasten.errors import InvalidAgent
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import did_you_mean, shown
from sandkasten_agents.definitions.json_schemas import count_values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dotpromptz_handlebars import Node

    Helper = Callable[[list[Any], HelperOptions], Any]

MAX_CHARACTERS: Final = 1024 * 1024
# A node takes about 10 µs, so this is one or two seconds on a slow machine.
MAX_STEPS: Final = 100_000
MAX_TAGS: Final = 2000
MAX_TAG_CHARACTERS: Final = 4096
# Each level takes five Python frames, and the caller has used some already.
MAX_DEPTH: Final = 40
_MAX_INDENT: Final = 8
# Number of values traversed, or of keys of a mapping copied, in the time of one step.
_PARTS: Final = 32
_NAMES: Final = 512

ROLES: Final = {
    "system": "system",
    "user": "user",
    "model": "assistant",
    "assistant": "assistant",
}
HELPERS: Final = frozenset(
    {"role", "history", "media", "section", "json", "ifEquals", "unlessEquals", "lookup"}
)
_ROLE_ARGUMENTS: Final = frozenset(f"{quote}{role}{quote}" for role in ROLES for quote in "'\"")
_MARK_WITHIN: Final = re.compile(r"\(\s*[\"']?(?:role|history|media|section)\b")
_BLOCKS: Final = frozenset({"if", "unless", "each", "with"})
# Start and end of a block; a lone {{^}} is an else.
_EDGE: Final = re.compile(r"\{\{~?\s*([#^/])\s*[^\s~}]")
# Helper names that no template can contain: control characters are rejected before.
_COUNT, _SHOW = "\x00count", "\x00show"


@dataclass(frozen=True, slots=True)
class Template:
    program: list[Node]
    words: frozenset[str]
    """All words in tags, used to find which variables the template reads."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Mark that a helper left in the output: role, history, media or section, and its values."""

    kind: str
    values: tuple[str, ...] = ()


class _BudgetExceeded(Exception):
    pass


@dataclass(slots=True)
class _Budget:
    steps: int = MAX_STEPS
    characters: int = MAX_CHARACTERS

    def take(self, steps: int, characters: int) -> None:
        self.steps -= steps
        self.characters -= characters
        if self.steps < 0 or self.characters < 0:
            raise _BudgetExceeded


def checked_template(text: str, *, first_line: int = 1) -> Template:
    """Compile and check the template. InvalidAgent gives the line in the file."""
    try:
        return _compiled(text)
    except (ValueError, IndexError, RecursionError) as exc:
        line = first_line + _line_of(text, exc)
        problem = str(exc) or type(exc).__name__
        if isinstance(exc, TemplateRecursionError):
            problem = f"blocks are nested more than {MAX_DEPTH} levels deep"
        hint = exc.hint if isinstance(exc, _Refused) else "check its braces and blocks"
        raise InvalidAgent(
            f"the template is invalid on line {line}: {problem[:200]}", hint=hint, line=line
        ) from exc


class _Refused(ValueError):
    def __init__(self, message: str, hint: str, tag: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.tag = re.compile(r"\{\{\{?~?\s*" + tag)
        """Start of the tag that the error is about."""


@lru_cache(maxsize=32)
def _compiled(text: str) -> Template:
    tags = text.count("{{")
    if tags > MAX_TAGS:
        raise _Refused(f"it has {tags} tags, but at most {MAX_TAGS} are allowed", "write fewer")
    program = compile_template(text, max_depth=MAX_DEPTH)
    words: set[str] = set()
    return Template(_counted(program, words), frozenset(words))


def _counted(nodes: list[Node], words: set[str]) -> list[Node]:
    """Return the nodes with a counting node first and values printed by our helper."""
    inner: list[Node] = []
    # Entering a body costs as much as three of its nodes.
    steps, characters = 3, 0
    for node in nodes:
        steps += 1
        if isinstance(node, Text):
            characters += len(node.value)
            inner.append(node)
            continue
        if isinstance(node, Partial | PartialBlock | InlinePartial):
            raise _Refused(
                "partials are not supported",
                "write the content inline, or pass it as a variable",
                r"#?[>*]",
            )
        if isinstance(node, Mustache | Block):
            steps += _checked_call(node.call, words, block=isinstance(node, Block)) // 64
            inner.append(_shown(node) if isinstance(node, Mustache) else _block(node, words))
    return [_tag(_COUNT, str(steps), str(characters)), *inner]


def _block(node: Block, words: set[str]) -> Block:
    return Block(node.call, _counted(node.body, words), _counted(node.inverse, words))


def _checked_call(call: dict[str, Any], words: set[str], *, block: bool) -> int:
    """Return the length of a call. Unknown helpers are rejected now, not when they are reached."""
    name, tokens = str(call["name"]), [*call["args"], *call["hash"].values()]
    length = len(name) + sum(map(len, tokens))
    if length > MAX_TAG_CHARACTERS:
        raise _Refused(
            f"a tag has more than {MAX_TAG_CHARACTERS} characters",
            "pass the content as a variable",
            r"[#^]?\s*" + re.escape(name[:40]),
        )
    here = r"[#^]?\s*" + re.escape(name)
    called = bool(tokens) or bool(call.get("literal"))
    if called and name not in HELPERS and not (block and name in _BLOCKS):
        hint = did_you_mean(name, HELPERS | _BLOCKS)
        raise _Refused(f"unknown helper {shown(name)}", hint, here)
    if block and name in _BLOCKS and len(call["args"]) != 1:
        raise _Refused(f"#{name} takes one value", f"write {{{{#{name} value}}}}", here)
    # A value must not decide whose message the text becomes.
    named = len(call["args"]) == 1 and call["args"][0] in _ROLE_ARGUMENTS
    if (name == "role" and not named) or any(map(_MARK_WITHIN.search, tokens)):
        raise _Refused(
            "role takes exactly one role name",
            f'write {{{{role "user"}}}}; known: {", ".join(ROLES)}',
            r"[^}]*\brole\b",
        )
    for token in (name, *tokens):
        # Paths and nested calls alike: enough to know which names are used.
        for mark in "()[]./@\"'=|":
            token = token.replace(mark, " ")
        words.update(token.split())
    return length


def _shown(node: Mustache) -> Mustache:
    call = node.call
    name = str(call["name"])
    if name in HELPERS or call["args"] or call["hash"]:
        hashed = [f"{key}={value}" for key, value in call["hash"].items()]
        return _tag(_SHOW, "(" + " ".join([name, *call["args"], *hashed]) + ")")
    return _tag(_SHOW, name)


def _tag(name: str, *args: str) -> Mustache:
    call = {"name": name, "args": list(args), "hash": {}, "params": [], "literal": False}
    return Mustache(call, raw=True)


def render_template(template: Template, values: Mapping[str, Any]) -> list[str | Mark]:
    """Render into strings and marks in order. `values` is plain JSON data."""
    word = secrets.token_hex(16)
    marks: list[Mark] = []
    helpers = _helpers(_Budget(), word, marks)
    try:
        text = render_program(
            template.program,
            dict(values),
            data=None,
            helpers=helpers,
            partials={},
            escape_html=False,
            strict=False,
            max_depth=2 * MAX_DEPTH,
        )
    except _BudgetExceeded as exc:
        raise InvalidAgent(
            f"the template produces more than {MAX_CHARACTERS} characters, or takes more than "
            f"{MAX_STEPS} steps, with these values",
            hint="pass shorter lists, or put large data into a file in the sandbox",
        ) from exc
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as exc:
        problem = str(exc) or type(exc).__name__
        raise InvalidAgent(
            f"the template cannot be rendered: {problem[:200]}",
            hint="compare its tags with the values passed",
        ) from exc
    pieces: list[str | Mark] = []
    for at, piece in enumerate(text.split(word)):
        # The random word surrounds each mark, so every other piece is the number of a mark.
        pieces.append(piece if at % 2 == 0 else marks[int(piece)])
    return [piece for piece in pieces if piece != ""]


def _helpers(budget: _Budget, word: str, marks: list[Mark]) -> dict[str, Helper]:
    def mark(kind: str, *values: str) -> SafeString:
        marks.append(Mark(kind, values))
        return SafeString(f"{word}{len(marks) - 1}{word}")

    def count(args: list[Any], _: HelperOptions) -> str:
        budget.take(args[0], args[1])
        return ""

    def charge(value: Any) -> None:
        """Charge in advance for helpers that traverse a complete list or mapping."""
        if isinstance(value, dict | list):
            budget.take(count_values(value, budget.steps * _PARTS) // _PARTS, 0)

    def show(args: list[Any], _: HelperOptions) -> SafeString:
        charge(args[0])
        text = as_text(args[0])
        budget.take(1 + len(text) // 4096, len(text))
        return SafeString(text)

    def as_json(args: list[Any], options: HelperOptions) -> str:
        indent = options.hash_value("indent") or 0
        if isinstance(indent, bool) or not isinstance(indent, int) or indent > _MAX_INDENT:
            raise ValueError(f"the indent of json must be a number up to {_MAX_INDENT}")
        charge(args[0] if args else None)
        separators = None if indent else (",", ":")
        text = json.dumps(
            args[0] if args else None,
            ensure_ascii=False,
            indent=indent or None,
            separators=separators,
        )
        budget.take(1 + len(text) // 256, 0)
        return text if args else ""

    def role(args: list[Any], _: HelperOptions) -> SafeString:
        name = args[0] if args else None
        if name not in ROLES:
            raise ValueError(f"unknown role {shown(str(name))}; known: {', '.join(ROLES)}")
        return mark("role", ROLES[name])

    def media(_: list[Any], options: HelperOptions) -> SafeString:
        url = str(options.hash_value("url"))
        return mark("media", url, str(options.hash_value("contentType"))) if url else SafeString("")

    def same(args: list[Any]) -> bool:
        if len(args) < 2:
            raise ValueError("ifEquals and unlessEquals take two values")
        # A comparison traverses both values as far as they are equal.
        charge(args[0])
        budget.take(1 + (len(args[0]) // 4096 if isinstance(args[0], str) else 0), 0)
        return bool(args[0] == args[1])

    def charged(helper: Helper) -> Helper:
        def call(args: list[Any], options: HelperOptions) -> Any:
            # For each helper call the library copies the mapping that is the current context.
            if isinstance(options.context, dict):
                budget.take(len(options.context) // _NAMES, 0)
            return helper(args, options)

        return call

    helpers: dict[str, Helper] = {
        _COUNT: count,
        _SHOW: show,
        "json": as_json,
        "role": role,
        "media": media,
        "history": lambda _, __: mark("history"),
        "section": lambda args, _: mark("section", *(str(arg) for arg in args[:1])),
        "ifEquals": lambda args, o: o.fn() if same(args) else o.inverse(),
        "unlessEquals": lambda args, o: o.inverse() if same(args) else o.fn(),
        "lookup": lambda args, _: _looked_up(args),
    }
    return {name: charged(helper) for name, helper in helpers.items()}


def _looked_up(args: list[Any]) -> Any:
    collection, key = (args + [None, None])[:2]
    if isinstance(collection, dict):
        return collection.get(key) if isinstance(key, str) else None
    if isinstance(collection, list) and isinstance(key, int) and not isinstance(key, bool):
        return collection[key] if 0 <= key < len(collection) else None
    return None


def as_text(value: Any) -> str:
    """Print a value as Handlebars does, but a mapping as JSON instead of a placeholder."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, list):
        return ",".join(as_text(item) for item in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _line_of(text: str, exc: BaseException) -> int:
    """Return the line of the error, from 0. The library does not report it, so search for it."""
    if isinstance(exc, _Refused):
        match = exc.tag.search(text)
        return text.count("\n", 0, match.start() if match else 0)
    problem = str(exc)
    if problem.startswith("unclosed") and "block" not in problem:
        at = text.find("{{", text.rfind("}}") + 1)
        return text.count("\n", 0, at if at >= 0 else len(text))
    if problem == "unclosed block":
        return _line_of_open_block(text)
    lines = text.split("\n")
    low, high = 1, len(lines)
    while low < high:
        middle = (low + high) // 2
        if _trouble("\n".join(lines[:middle])) == problem:
            high = middle
        else:
            low = middle + 1
    return low - 1


def _trouble(text: str) -> str:
    try:
        compile_template(text, max_depth=MAX_DEPTH)
    except (ValueError, IndexError, RecursionError) as exc:
        return str(exc)
    return ""


def _line_of_open_block(text: str) -> int:
    """Return the line of the innermost block that is still open at the end."""
    opened: list[int] = []
    for edge in _EDGE.finditer(text):
        if edge[1] in "#^":
            opened.append(edge.start())
        elif opened:
            opened.pop()
    return text.count("\n", 0, opened[-1] if opened else len(text))
