"""Read code at a terminal: all lines of a statement, with a history that stays."""

from __future__ import annotations

import codeop
import os
import re
import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

HELP: Final = ":help"
COMMANDS: Final = {
    ":language NAME": "go on in another language; each keeps its variables",
    ":languages": "list the languages of the image",
    ":restart": "replace the kernel; its variables are gone",
    HELP: "show these commands",
    "Ctrl-C": "interrupt the code that runs, or drop the line",
    "Ctrl-D": "end",
}
_MAX_HISTORY: Final = 1000
_QUOTED: Final = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|`(?:\\.|[^`\\])*`", re.DOTALL)
_COMMENT: Final = {"bash": r"(?m)(?:^|\s)#.*$", "r": r"(?m)#.*$"}
_BASH_OPENS: Final = re.compile(
    r"(?:^|[;&|(\n]|\bthen|\belse|\bdo)\s*(?:if|for|while|until|case)\b"
)
_BASH_CLOSES: Final = re.compile(r"(?:^|[;&|\n])\s*(?:fi|done|esac)\b")


@contextmanager
def history() -> Iterator[None]:
    """Give `input` the keys of readline, and the lines of earlier prompts."""
    try:
        import readline
    except ImportError:
        yield
        return
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    file = Path(state) / "sandkasten" / "code_history"
    with suppress(OSError):
        readline.read_history_file(file)
    readline.set_history_length(_MAX_HISTORY)
    try:
        yield
    finally:
        # Without a history the prompt still works. It may hold secrets.
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.touch(mode=0o600)
            readline.write_history_file(file)


def read_code(language: str) -> str:
    """Read one piece of code; an empty line ends it in any case."""
    # The event loop's own handler would not end the wait for a line.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    prompt = ">>> " if language == "python" else f"{language}> "
    try:
        lines = [input(prompt)]
        while unfinished("\n".join(lines), language):
            line = input("... ".rjust(len(prompt)))
            lines.append(line)
            if not line.strip() and language != "python":
                break
        return "\n".join(lines)
    finally:
        signal.signal(signal.SIGINT, before)


def unfinished(code: str, language: str) -> bool:
    """Return whether more lines belong to a statement, as far as that is known here."""
    if language == "python":
        try:
            return codeop.compile_command(code, symbol="single") is None
        except (SyntaxError, ValueError, OverflowError):
            # The kernel reports the error. It also accepts more than Python (%magic, !command).
            return False
    if code.endswith("\\"):
        return True
    plain = re.sub(_COMMENT.get(language, r"//.*"), "", _QUOTED.sub("", code))
    if language == "bash":
        return len(_BASH_OPENS.findall(plain)) > len(_BASH_CLOSES.findall(plain)) or (
            plain.count("{") > plain.count("}")
        )
    return any(plain.count(a) > plain.count(b) for a, b in ("()", "[]", "{}"))
