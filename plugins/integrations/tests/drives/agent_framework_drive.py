"""The shell and the file store for Agent Framework, at their edges. Prints JSON."""

from __future__ import annotations

import asyncio
import json
import sys

from agent_framework import FunctionTool

from sandkasten import AsyncSandbox
from sandkasten.integrations.agent_framework_shell import SandboxFileStore, SandkastenShell


async def commands(shell: SandkastenShell) -> dict[str, object]:
    await shell.run("cd /tmp; export NAME=kept")
    command = await shell.run("echo $NAME in $PWD; echo careful >&2; exit 3")
    late = await shell.run("echo begun; sleep 60", timeout=1)
    tool = shell.as_function(name="terminal")
    assert isinstance(tool, FunctionTool)
    return {
        "kept": [command.stdout, command.stderr, command.exit_code],
        "late": [late.stdout, late.timed_out, late.exit_code],
        "tool": [tool.name, tool.approval_mode, (await shell.run("true")).format_for_model()],
    }


async def files(store: SandboxFileStore) -> dict[str, object]:
    await store.write("notes/one.md", "first\nsecond\n")
    await store.create_directory("empty")
    try:
        await store.write("notes/one.md", "x", overwrite=False)
    except FileExistsError:
        exclusive = True
    refused = []
    for path in ("/etc/passwd", "../x", "a/../../x", "a\\..\\x"):
        try:
            await store.read(path)
        except ValueError:
            refused.append(path)
    matches = await store.search("", "^sec", recursive=True)
    return {
        "exclusive": exclusive,
        "refused": len(refused),
        "children": [[entry.name, entry.type] for entry in await store.list_children()],
        "none": [await store.read("gone"), await store.list_children("gone")],
        "there": [await store.file_exists("notes"), await store.file_exists("notes/one.md")],
        "found": [[match.file_name, match.matching_lines[0].line_number] for match in matches],
        "deleted": [await store.delete("notes/one.md"), await store.delete("notes/one.md")],
    }


async def main() -> None:
    async with SandkastenShell() as shell:
        report = {**await commands(shell), **await files(shell.files)}
        box = shell.sandbox.id
    report["alive"] = box in [sandbox.id for sandbox in await AsyncSandbox.list()]
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    asyncio.run(main())
