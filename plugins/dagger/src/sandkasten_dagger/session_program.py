"""A session with one Dagger Engine, in a separate process.

Started by `dagger_session.py`, perhaps by an interpreter that has nothing of ours. Dagger's library
reads the address of the engine from this process's environment, starts `dagger session` and keeps
state of the whole process; here all of that ends with the process. One JSON object per
line comes on stdin and leaves on stdout:

    {"id": 1, "op": "run", …}          {"id": 1, "state": "7", "exit_code": 0, "stderr": ""}
    {"id": 2, "op": "resolve", …}      {"id": 2, "reference": "…@sha256:…", "env": {…}}
    {"id": 3, "op": "forget", "state": "7"}
    {"op": "cancel", "id": 1}          {"id": 1, "error": "cancelled"}

The first line is `{"ready": VERSION}`, or `{"failed": MESSAGE}` before the end. A request that
fails is answered by `{"id": …, "error": KIND, "message": …}`. The end of stdin ends everything.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import sys
from typing import Any, Final

import dagger

_LINE_BYTES: Final = 1 << 20
_MESSAGE_CHARS: Final = 2000
_END_S: Final = 3.0
_ENVIRONMENT_CHARS: Final = 32_000


class Session:
    def __init__(self, client: dagger.Client) -> None:
        self._client = client
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._states: dict[str, dagger.Container] = {}
        self._made = 0

    async def serve(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            request = json.loads(line)
            number = request["id"]
            if request["op"] == "cancel":
                if number in self._tasks:
                    self._tasks[number].cancel()
                continue
            task = asyncio.ensure_future(self._answer(number, request))
            self._tasks[number] = task
        tasks = [*self._tasks.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_S)

    async def _answer(self, number: int, request: dict[str, Any]) -> None:
        try:
            answer = await getattr(self, f"_{request['op']}")(request)
        except asyncio.CancelledError:
            answer = {"error": "cancelled", "message": "it was cancelled"}
        except dagger.QueryError as exc:
            answer = {"error": "refused", "message": _text(exc)}
        except Exception as exc:  # noqa: BLE001  (whatever the library raises is the engine's failure)
            answer = {"error": "engine", "message": f"{type(exc).__name__}: {_text(exc)}"}
        self._tasks.pop(number, None)
        _say({"id": number, **answer})

    async def _resolve(self, request: dict[str, Any]) -> dict[str, Any]:
        container = self._client.container().from_(request["reference"])
        env, room = {}, _ENVIRONMENT_CHARS
        for variable in await container.env_variables():
            name, value = await variable.name(), await variable.value()
            room -= len(name) + len(value)
            if room > 0:
                env[name] = value
        return {"reference": await container.image_ref(), "env": env}

    async def _ping(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"version": await self._client.version()}

    async def _bring(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._fresh(request).sync()
        return {}

    async def _forget(self, request: dict[str, Any]) -> dict[str, Any]:
        self._states.pop(request["state"], None)
        return {}

    async def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        before = self._states.get(request["after"])
        if before is None and request["after"]:
            return {"error": "engine", "message": "the session that ran it before has ended"}
        host = self._client.host()
        script = host.directory(request["folder"], no_cache=True).file("script")
        ready = (before or self._fresh(request)).with_file(
            request["script"], script, permissions=0o600
        )
        stderr = ""
        try:
            ran = ready.with_exec(request["command"], expect=dagger.ReturnType.ANY)
            # The id of what was run: whatever is asked of it later runs nothing again.
            ran = await ran.sync()
            code = await ran.exit_code()
            if code:
                stderr = (await ran.stderr())[-_MESSAGE_CHARS:]
        except dagger.ExecError as exc:
            # Codes from 128 to 191, which ANY does not cover.
            return {"exit_code": exc.exit_code, "stderr": exc.stderr[-_MESSAGE_CHARS:], "state": ""}
        if not code:
            target = os.path.join(request["folder"], "answers")
            await ran.file(request["answers"]).export(target)
        self._made += 1
        state = str(self._made)
        self._states[state] = ran
        self._states.pop(request["after"], None)
        return {"exit_code": code, "stderr": stderr, "state": state}

    def _fresh(self, request: dict[str, Any]) -> dagger.Container:
        """Return a container with our runner and empty directories for the run."""
        client = self._client
        container = (
            self._base(request)
            .with_user("0:0")
            .with_workdir("/")
            .with_file(request["program"], client.host().file(request["runner"]), permissions=0o755)
        )
        for target, size in request["temporary"]:
            container = container.with_mounted_temp(target, size=size)
        for target in request["empty"]:
            container = container.with_mounted_directory(target, client.directory())
        for source, target in request["mounts"]:
            container = container.with_mounted_directory(target, client.host().directory(source))
        return container

    def _base(self, request: dict[str, Any]) -> dagger.Container:
        container = self._client.container()
        if "archive" in request:
            return container.import_(self._client.host().file(request["archive"]))
        if not request["reference"]:
            # An empty root: our runner needs nothing of an image.
            return container
        alias, target = request["link"]
        # `/work` is the workspace, as in images of the store, whatever this image has there.
        return (
            container.from_(request["reference"])
            .without_directory(alias)
            .with_symlink(target, alias)
        )


def _text(exc: Exception) -> str:
    return str(exc)[:_MESSAGE_CHARS]


def _say(answer: dict[str, Any]) -> None:
    rest = json.dumps(answer).encode() + b"\n"
    while rest:
        try:
            rest = rest[os.write(_OUT, rest) :]
        except BlockingIOError:
            # It is the same socket as stdin, which asyncio does not wait for.
            select.select([], [_OUT], [])


async def main() -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    # No time limits here: the daemon has its own, and cancels. The library must not repeat a
    # request by itself: that would run code twice.
    config = dagger.Config(execute_timeout=None, retry=dagger.Retry(execute=False))
    try:
        async with dagger.Connection(config) as client:
            _say({"ready": await client.version()})
            await Session(client).serve(reader)
    except Exception as exc:  # noqa: BLE001  (the caller translates it)
        _say({"failed": f"{type(exc).__name__}: {_text(exc)}"})


if __name__ == "__main__":
    # Nothing that the library prints may come between the answers.
    _OUT: Final = os.dup(1)
    os.dup2(2, 1)
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):
        asyncio.run(main())
