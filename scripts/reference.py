"""Writes docs/reference from the code: commands, errors, settings, the SDK.

.venv/bin/python scripts/reference.py            write
.venv/bin/python scripts/reference.py --check    exit 1 when a page is not what the code says
"""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs" / "reference"
_SETTINGS_HEAD = """\
A flag wins over the environment, the environment over the file, the file over the default.
`sandkasten config show --origin` prints each value and where it came from.
The file is `sandkasten.yaml` here, then `/etc/sandkasten/sandkasten.yaml`; a dot
in a name is a level of the file. A duration is seconds, or a text such as `30m`.
"""
_EXAMPLE_HEAD = """\
# Settings of sandkasten, every one with its default. Made by scripts/reference.py.
# Uncomment what should be otherwise (a key and the line of its group), and put the file where
# the daemon looks: sandkasten.yaml beside it, or /etc/sandkasten/sandkasten.yaml.
"""
NOTE = "<!-- made from the code by scripts/reference.py; do not edit -->\n"


def commands() -> str:
    import typer

    from sandkasten.cli.app import build

    group = typer.main.get_command(build())
    context = group.make_context("sandkasten", [], resilient_parsing=True)
    lines = [NOTE, "# Commands\n"]
    lines.append(_help("sandkasten", group, context))
    for name, command in _walk("sandkasten", group, context):
        lines.append(f"## {name}\n")
        inner = command.make_context(name, [], resilient_parsing=True)  # type: ignore[attr-defined]
        lines.append(_help(name, command, inner))
    return "\n".join(lines)


def _walk(prefix: str, group: object, context: object) -> Iterator[tuple[str, object]]:
    for name in group.list_commands(context):  # type: ignore[attr-defined]
        command = group.get_command(context, name)  # type: ignore[attr-defined]
        yield f"{prefix} {name}", command
        if hasattr(command, "list_commands"):
            inner = command.make_context(f"{prefix} {name}", [], resilient_parsing=True)
            yield from _walk(f"{prefix} {name}", command, inner)


def _help(name: str, command: object, context: object) -> str:
    context.info_name = name  # type: ignore[attr-defined]
    context.terminal_width = 96  # type: ignore[attr-defined]
    context.max_content_width = 96  # type: ignore[attr-defined]
    text = command.get_help(context)  # type: ignore[attr-defined]
    return "```text\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n```\n"


def errors() -> str:
    rows = json.loads((ROOT / "spec" / "errors.json").read_text())["errors"]
    lines = [NOTE, "# Errors\n", "Every failure raised on purpose, from `spec/errors.json`.\n"]
    lines.append("| code | class | HTTP | retryable | means | hint |")
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| `{r['code']}` | `{r['class']}` | {r['status']} | {'yes' if r['retryable'] else 'no'} "
        f"| {r['meaning']} | {r['hint']} |"
        for r in rows
    ]
    return "\n".join(lines) + "\n"


def settings() -> str:
    from sandkasten.daemon.explained import MEANS
    from sandkasten.daemon.settings import documented

    lines = [NOTE, "# Settings\n"]
    lines.append(_SETTINGS_HEAD)
    lines.append("| setting | means | environment | default |")
    lines.append("|---|---|---|---|")
    for name, variables, default in documented():
        said = ", ".join(f"`{v}`" for v in variables)
        shown = ", ".join(default) if isinstance(default, list) else default
        told = "–" if shown in (None, "") else shown
        lines.append(f"| `{name}` | {MEANS[name]} | {said} | {told} |")
    return "\n".join(lines) + "\n"


def example() -> str:
    """Every key of the settings file, with its default, commented out."""
    from sandkasten.daemon.explained import MEANS
    from sandkasten.daemon.settings import documented

    rooms: dict[str, list[str]] = {}
    for name, _, default in documented():
        room, _, key = name.rpartition(".")
        value: object = "/var/lib/sandkasten" if name == "data_dir" else default
        if name in ("images.registries", "images.aliases"):
            value = {}
        shown = "" if value is None else " " + json.dumps(value)
        indent = "  " if room else ""
        rooms.setdefault(room, []).append(f"{indent}# {MEANS[name]}\n#{indent}{key}:{shown}\n")
    lines = [_EXAMPLE_HEAD]
    for room, keys in rooms.items():
        lines.append("\n".join(([f"#{room}:\n"] if room else []) + keys))
    return "\n".join(lines)


def sdk() -> str:
    import sandkasten
    from sandkasten import sync

    lines = [NOTE, "# Python SDK\n"]
    lines.append(
        "Each class has an asynchronous twin (`AsyncSandbox`, `AsyncImages`, `AsyncWorkspaces`)"
    )
    lines.append("with the same methods to await; a test holds the two together.\n")
    lines += _class("Sandbox", sandkasten.Sandbox)
    lines.append(_entry("##", "run", sandkasten.run))
    lines += _class("Images", sandkasten.Images)
    lines += _class("Workspaces", sandkasten.Workspaces)
    lines += _class("SandboxClient", sync.SandboxClient)
    lines.append(
        "`sandkasten.SandboxClient` is asynchronous; this is its twin, `sandkasten.sync`. Its "
        "sessions have every method of `Sandbox`, and:\n"
    )
    lines.append(_entry("###", "Session.destroy", sync.Session.destroy))
    lines.append(_entry("###", "Session.upload", sync.Session.upload))
    return "\n".join(lines)


def _class(title: str, kind: type) -> list[str]:
    made = _signature(kind.__init__)  # type: ignore[misc]
    lines = [f"## {title}\n\n```python\n{title}{made}\n```\n"]
    for name, member in inspect.getmembers(kind):
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            lines.append(f"### {name}\n\n{_first(member.fget)}\n")
        elif callable(member):
            lines.append(_entry("###", name, member))
    return lines


def _entry(level: str, name: str, of: object) -> str:
    return f"{level} {name}\n\n```python\n{name}{_signature(of)}\n```\n\n{_first(of)}\n"


def _signature(of: object) -> str:
    found = inspect.signature(of)  # type: ignore[arg-type]
    kept = [p for n, p in found.parameters.items() if n not in ("self", "cls")]
    text = str(found.replace(parameters=kept)).replace("'", "")
    if len(text) < 90:
        return text
    head, _, tail = text.rpartition(")")
    return "(\n    " + ",\n    ".join(_split(head[1:])) + ",\n)" + tail


def _split(text: str) -> list[str]:
    """At the commas of the outermost level."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        depth += c in "[({"
        depth -= c in "])}"
        if c == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()]


def _first(of: object) -> str:
    return inspect.getdoc(of) or ""


def main() -> int:
    pages = {
        PAGES / "commands.md": commands,
        PAGES / "errors.md": errors,
        PAGES / "settings.md": settings,
        PAGES / "sdk.md": sdk,
        ROOT / "deploy" / "sandkasten.yaml": example,
    }
    stale = []
    PAGES.mkdir(parents=True, exist_ok=True)
    for path, make in pages.items():
        text = make()
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                stale.append(path.name)
        else:
            path.write_text(text)
    if stale:
        sys.stderr.write(f"docs/reference is not what the code says: {', '.join(stale)}\n")
        sys.stderr.write("hint: run .venv/bin/python scripts/reference.py\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
