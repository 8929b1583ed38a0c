"""Split a Dockerfile into instructions: comments, directives, continued lines, heredocs. Pure.

Knows no instruction but where a here-document may be. Raises InvalidRequest, which names the line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from sandkasten.errors import InvalidRequest
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.spelling import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

MAX_BYTES: Final = 1024 * 1024
_DIRECTIVE: Final = re.compile(r"#\s*([A-Za-z][A-Za-z0-9]*)\s*=\s*(\S.*)\Z")
_HEREDOC: Final = re.compile(r"\d*<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_.]*)\2\Z")
_FRONTEND: Final = re.compile(r"(?:docker\.io/)?docker/dockerfile(?:-upstream)?(?::[\w.-]+)?\Z")
# Possessive: a quote without an end is given up at once.
_QUOTED: Final = {
    "'": re.compile(r"'[^']*+'"),
    '"': re.compile(r'"(?:\\.|[^"\\])*+"', re.DOTALL),
}
_WITH_HEREDOC: Final = ("RUN", "COPY", "ADD")


@dataclass(frozen=True, slots=True)
class Heredoc:
    name: str
    content: str
    text: str
    """With its last line, as a shell reads it."""


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    rest: str
    line: int
    """Where it begins."""
    heredocs: tuple[Heredoc, ...] = ()


@dataclass(frozen=True, slots=True)
class DockerfileLines:
    instructions: tuple[Instruction, ...]
    escape: str


def invalid(line: int, what: str, hint: str) -> InvalidRequest:
    return InvalidRequest(f"Dockerfile line {line}: {what}", hint=hint, line=line)


def split_lines(data: bytes) -> DockerfileLines:
    if len(data) > MAX_BYTES:
        raise InvalidRequest(
            f"the Dockerfile is larger than {MAX_BYTES} bytes", hint="copy files instead"
        )
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        raise InvalidRequest("the Dockerfile is not UTF-8", hint="save it as UTF-8") from exc
    if "\0" in text:
        raise InvalidRequest("the Dockerfile contains a NUL character", hint="remove it")
    lines = text.replace("\r\n", "\n").split("\n")
    escape = _directives(lines)
    continued = re.compile(re.escape(escape) + r"[ \t]*\Z")
    instructions: list[Instruction] = []
    at = 0
    while at < len(lines):
        if _skipped(lines[at]):
            at += 1
            continue
        start, more = at + 1, True
        parts: list[str] = []
        while more and at < len(lines):
            line = lines[at]
            at += 1
            # Comments and empty lines may stand between the parts.
            if parts and _skipped(line):
                continue
            more = continued.search(line) is not None
            parts.append(continued.sub("", line) if more else line)
        name, _, rest = re.sub(r"\A(\S+)\s*", r"\1 ", "".join(parts).strip()).partition(" ")
        heredocs: list[Heredoc] = []
        for announced in _heredocs(rest) if name.upper() in _WITH_HEREDOC else ():
            heredoc, at = _heredoc(lines, at, announced, start)
            heredocs.append(heredoc)
        instructions.append(Instruction(name.upper(), rest.strip(), start, tuple(heredocs)))
    return DockerfileLines(tuple(instructions), escape)


def _skipped(line: str) -> bool:
    return not line.strip() or line.lstrip().startswith("#")


def _directives(lines: list[str]) -> str:
    """Return the escape character. Directives are the first lines of the file or nowhere."""
    escape = "\\"
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.match(line.strip())
        if match is None or match[1].lower() not in ("syntax", "escape", "check"):
            break
        if match[1].lower() == "escape":
            escape = match[2]
            if escape not in ("\\", "`"):
                raise invalid(number, f"{shown(escape)} cannot be the escape character", "use \\")
        elif match[1].lower() == "syntax" and not _FRONTEND.match(match[2]):
            hint = "only the usual syntax is supported; remove the line"
            raise invalid(number, f"syntax {shown(match[2])} is not supported", hint)
    return escape


def _heredocs(rest: str) -> list[re.Match[str]]:
    """Return the here-documents that a line announces. One in quotes is not one."""
    matches = (_HEREDOC.match(word) for word in _quoted_words(rest) if "<<" in word)
    return [match for match in matches if match is not None]


def _quoted_words(text: str) -> Iterator[str]:
    """Split at spaces outside of quotes. A quote without an end is an ordinary character.

    Each character is looked at a bounded number of times.
    """
    start = at = 0
    # Quotes of a kind that was once without an end are not looked for again.
    open_ended: set[str] = set()
    while at < len(text):
        character = text[at]
        if character.isspace():
            if start < at:
                yield text[start:at]
            start = at + 1
        elif character in _QUOTED and character not in open_ended:
            quoted = _QUOTED[character].match(text, at)
            if quoted is None:
                open_ended.add(character)
            else:
                at = quoted.end()
                continue
        at += 1
    if start < at:
        yield text[start:at]


def _heredoc(
    lines: list[str], at: int, announced: re.Match[str], start: int
) -> tuple[Heredoc, int]:
    strip, name = announced[1] == "-", announced[3]
    content: list[str] = []
    for number in range(at, len(lines)):
        line = lines[number].lstrip("\t") if strip else lines[number]
        if line == name:
            body = "".join(f"{text}\n" for text in content)
            return Heredoc(name, body, f"{body}{name}\n"), number + 1
        content.append(line)
    raise invalid(start, f"the here-document {name} has no end", f"write {name} on its last line")
