"""Output of the command line: data to stdout, messages to stderr, one format for failures.

Strings that a sandbox chose (names, command lines, labels) are printed with their control
characters escaped, so that they cannot control the terminal.
"""

from __future__ import annotations

import json
import os
import sys
import unicodedata

# Not from typing, which takes longer to import than this module.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, Final, Literal, TextIO

    from sandkasten.errors import SandkastenError
    from sandkasten.model.sandbox.network_refusals import Refusal

    Allow = Callable[[Sequence[str]], str]

# Controls, surrogates, private and unassigned characters; formats are among them (bidi marks).
_HIDDEN: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})

# What depends on files and variables that this process has and the daemon may not have.
_DIFFERS_HERE: Final = frozenset(
    {
        "AGENT_NOT_FOUND",
        "INVALID_AGENT",
        "INVALID_CONFIGURATION",
        "INVALID_WORKFLOW",
        "MODEL_UNAVAILABLE",
        "WORKFLOW_NOT_FOUND",
    }
)
# SGR codes; what a word means, not where it is printed.
_COLOURS: Final = {"error": "1;31", "warning": "1;33", "ok": "32", "missing": "1;31"}


def visible(text: str) -> str:
    """Escape every character that a terminal might act upon."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if unicodedata.category(char) not in _HIDDEN else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    point = ord(char)
    if 0xDC80 <= point <= 0xDCFF:
        return f"\\x{point - 0xDC00:02x}"  # A byte that was not valid UTF-8.
    if point <= 0xFF:
        return f"\\x{point:02x}"
    return f"\\u{point:04x}" if point <= 0xFFFF else f"\\U{point:08x}"


def paragraph(text: str, indent: str = "  ") -> str:
    """Escape like `visible`, but keep the lines; those after the first are indented."""
    lines = text.replace("\r\n", "\n").expandtabs(4).split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return ("\n" + indent).join(visible(line) for line in lines)


def say(text: str) -> None:
    """Print a message on stderr."""
    sys.stderr.write(text + "\n")


def tell(label: Literal["error", "warning", "hint", "note"], text: str) -> None:
    """Print a labelled message on stderr, with the label in colour on a terminal."""
    say(f"{painted(f'{label}:', label, sys.stderr)} {paragraph(text)}")


def tell_network(
    refused: Sequence[Refusal],
    suggested: Sequence[str],
    hint: str = "",
    allow: Allow | None = None,
) -> None:
    """Print what the network refused, each way to allow it once, and the rules of a dry run.

    `allow` returns what to type to add rules to those of the sandbox.
    """
    for refusal in refused:
        tell("warning", refusal.text)
    rules = [refusal.allow for refusal in refused if refusal.allow is not None]
    command = allow(rules) if rules and allow is not None else None
    hints = dict.fromkeys(
        refusal.hint
        for refusal in refused
        if refusal.hint and (command is None or refusal.allow is None)
    )
    for text in [*hints, hint, f"allow it with: {command}" if command else ""]:
        if text:
            tell("hint", text)
    if suggested:
        flags = " ".join(f"--allow {rule}" for rule in suggested)
        tell("note", f"dry run: the rules for what it reached are {flags}")


def painted(text: str, meaning: str, stream: TextIO) -> str:
    """Return the text, in colour if it has a meaning that has one and `stream` is a terminal."""
    code = _COLOURS.get(meaning)
    return text if code is None or not colour(stream) else f"\x1b[{code}m{text}\x1b[0m"


def put(text: str) -> None:
    """Print a line of data on stdout."""
    sys.stdout.write(text + "\n")


def write_chunk(source: str, data: bytes, gap_bytes: int) -> None:
    """Print output of a command as it comes, on the stream that it was written to."""
    if gap_bytes:
        tell("warning", f"output was not kept: {counted(gap_bytes, 'byte')}")
    out = sys.stderr.buffer if source == "stderr" else sys.stdout.buffer
    out.write(data)
    out.flush()


def put_json(value: Any) -> None:
    # ASCII only: names from inside a sandbox may contain bytes that are not valid UTF-8.
    put(json.dumps(value, indent=2 if sys.stdout.isatty() else None))


def put_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], below: Sequence[str] = ()
) -> None:
    """Print columns separated by at least two spaces, and `below` each row its lines."""
    cells = [list(head), *([visible(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for number, row in enumerate(cells):
        put("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        if below and number and below[number - 1]:
            put("    " + paragraph(below[number - 1], "    "))


def put_sandboxes(
    infos: Sequence[Any], used: Sequence[int | None], now: float, *, all_tenants: bool = False
) -> None:
    """Print the table of `ls`; `infos` have the fields of `Info`, `used` their memory."""
    put_table(
        (
            *(("TENANT",) if all_tenants else ()),
            *("ID", "IMAGE", "BACKEND", "STATE", "AGE", "EXPIRES", "MEMORY"),
            *("WORKSPACE", "KEY", "LABELS"),
        ),
        [
            (
                *((info.tenant,) if all_tenants else ()),
                info.id,
                info.image,
                info.backend,
                info.status,
                age(now - info.created_at),
                age(info.expires_at - now),
                size(memory),
                info.workspace_id or "-",
                info.session_key or "-",
                ",".join(f"{name}={value}" for name, value in info.labels.items()) or "-",
            )
            for info, memory in zip(infos, used, strict=True)
        ],
    )


def error_body(error: SandkastenError) -> dict[str, Any]:
    """Return the error body of the public contract. For an error of this process, it also
    has the notes: the user is the operator.
    """
    message = error.operator_message
    return {
        "error_code": error.code,
        "error": message,
        "code": error.code,
        "message": message,
        "hint": error.hint,
        "retryable": error.retryable,
        "details": error.details,
        "request_id": None,
    }


def report(error: SandkastenError, *, as_json: bool) -> None:
    """Print an error; with --json as the one document on stdout."""
    if as_json:
        put_json(error_body(error))
        return
    tell("error", _message(error))
    if error.hint:
        tell("hint", error.hint)
    # Of this process, whose user is the operator: a daemon sends none.
    for note in getattr(error, "__notes__", ()):
        tell("note", note)
    if "daemon" in error.details and error.code in _DIFFERS_HERE:
        daemon = error.details["daemon"]
        tell("note", f"answered by the daemon at {daemon}; --embedded uses this process instead")


def _message(error: SandkastenError) -> str:
    """Return the message, with a line for each backend if several were tried."""
    tried = error.details.get("tried")
    if not isinstance(tried, list):
        return error.message
    return error.message.replace(f" {'; '.join(tried)}", "\n" + "\n".join(tried))


def colour(stream: TextIO) -> bool:
    """Return whether the stream is a terminal that shows colour."""
    environment = os.environ
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def age(seconds: float) -> str:
    """Format a duration: 42s, 12m, 3h 5m, 2d 4h."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Format a number with its noun: 1 command, 2 commands."""
    return f"{number} {noun if number == 1 else plural or f'{noun}s'}"


def size(amount: int | None) -> str:
    """Format a number of bytes; a dash for None."""
    if amount is None:
        return "-"
    figure = float(amount)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if figure < 1024:
            return f"{figure:.0f} {unit}" if unit == "B" else f"{figure:.1f} {unit}"
        figure /= 1024
    return f"{figure:.1f} TiB"
