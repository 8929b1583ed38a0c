"""A server that gives recorded answers to recorded calls, in their order, and to no others.

Two calls may be repeated, because how often they are made depends on time: a look at an object that
the call before has shown, and a watch that has ended or was left. Where a recorded Pod runs, a gate
and a runner are started as processes of this machine.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

from aiohttp import web

from sandkasten_kubernetes import pod_status
from tests.kubernetes.pod_processes import PodProcesses
from tests.kubernetes.recorded import local_server
from tests.kubernetes.recorded.recorded_calls import ATTEMPT, END, JSON, RENEW, SENT, RecordedCall

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_TEAPOT = 418


class Replay:
    """`async with Replay(calls, place) as server:`. Implements `scenes.Outside`."""

    def __init__(self, calls: Sequence[RecordedCall], place: Path) -> None:
        self.left = list(calls)
        """Calls that were not made yet."""
        self.strange: list[str] = []
        """Calls that were not recorded, or not at this place."""
        self.url = ""
        self._last: RecordedCall | None = None
        self._sent: dict[str, Any] = {}
        self._shown: dict[str, Any] = {}
        self._versions: set[str] = set()
        self._ended: set[int] = set()
        self._pods = PodProcesses(place)
        self._started: set[str] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Replay:
        self.url = await self._stack.enter_async_context(local_server.serving(self._answer))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._pods.aclose()
        await self._stack.aclose()

    # ---- what other clients of the cluster did is in the answers

    async def fill_quota(self) -> None:
        pass

    async def forget_history(self) -> None:
        pass

    async def cause_bookmark(self) -> None:
        pass

    async def delete_pod(self, name: str) -> None:
        await self._pods.stop(name)

    # ---- requests

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        sent = await request.read()
        asked = RecordedCall(
            local_server.token(request),
            request.method,
            request.path,
            dict(request.query),
            request.headers.get("Accept", JSON) if not request.query.get("watch") else JSON,
            request.content_type if sent else "",
        )
        repeated = self._repeated(asked)
        if repeated is not None:
            return web.json_response(repeated)
        call = self._taken(asked)
        if call is None:
            return self._unknown(asked)
        if call.is_watch and not call.answer:
            return await self._watch(request, call, asked.query["resourceVersion"])
        if call.method == "POST" and call.status < 400:
            self._remember(call.path, json.loads(sent))
        if call.method == "DELETE":
            await self._pods.stop(call.path.rpartition("/")[2])
        if isinstance(call.answer, str):
            return web.Response(text=call.answer, status=call.status)
        told = self._filled(call.answer)
        self._show(call.path, told)
        return web.json_response(told, status=call.status)

    def _remember(self, path: str, body: Any) -> None:
        name = (body.get("metadata") or {}).get("name")
        if name:
            self._sent[f"{path}/{name}"] = body

    def _unknown(self, asked: RecordedCall) -> web.Response:
        expected = str(self.left[0]) if self.left else "no more calls"
        self.strange.append(f"{asked}; recorded is {expected} ({RENEW} renews the file)")
        told = {"kind": "Status", "message": "this call was not recorded"}
        return web.json_response(told, status=_TEAPOT)

    def _taken(self, asked: RecordedCall) -> RecordedCall | None:
        """Return the recorded call; None if it is not this one's turn."""
        version = asked.query.get("resourceVersion", "")
        if self.left and self.left[0].is_same_as(asked):
            if version in ("", self.left[0].query.get("resourceVersion"), *self._versions):
                self._last = self.left.pop(0)
                return self._last
        elif self._last is not None and self._last.is_watch and self._last.is_same_as(asked):
            return self._last
        return None

    def _repeated(self, asked: RecordedCall) -> Any:
        """Return the object that the call before has shown, if this is another look at it."""
        last = self._last
        if last is None or asked.is_watch or (self.left and self.left[0].is_same_as(asked)):
            return None
        if asked.method != "GET" or (last.who, last.object_path) != (asked.who, asked.path):
            return None
        return self._shown.get(asked.path)

    async def _watch(
        self, request: web.Request, call: RecordedCall, version: str
    ) -> web.StreamResponse:
        out = web.StreamResponse()
        await out.prepare(request)
        after = 0
        for at, event in enumerate(call.events):
            told = (event["object"].get("metadata") or {}).get("resourceVersion")
            if told is not None and int(told) <= int(version or 0):
                after = at + 1
        for event in call.events[after:]:
            if event["type"] == END:
                if id(event) in self._ended:
                    continue
                self._ended.add(id(event))
                return out
            told = self._filled(event["object"])
            if event["type"] in ("ADDED", "MODIFIED"):
                await self._start(call, told)
                self._show(call.object_path, told)
            await out.write(json.dumps({"type": event["type"], "object": told}).encode() + b"\n")
        # As a real server: until the client has seen enough.
        await asyncio.Event().wait()
        return out

    def _show(self, path: str, told: Any) -> None:
        for one in (told, *(told.get("items") or ())):
            about = one.get("metadata") or {}
            self._versions.add(about.get("resourceVersion", ""))
            if "name" in about:
                whole = path if path.endswith(f"/{about['name']}") else f"{path}/{about['name']}"
                self._shown[whole] = one

    def _filled(self, told: Any) -> Any:
        """Put in what the client sent: keys, and the mark of its attempt."""
        if isinstance(told.get("items"), list):
            return {**told, "items": [self._filled(one) for one in told["items"]]}
        about = told.get("metadata") or {}
        sent = self._bodies(about.get("name", ""))
        made = dict(told)
        if told.get("data") == SENT:
            made["data"] = sent["secrets"]["data"]
        if sent and ATTEMPT in (about.get("annotations") or {}):
            # All objects of a sandbox have the same.
            mark = next(iter(sent.values()))["metadata"]["annotations"][ATTEMPT]
            made["metadata"] = {**about, "annotations": {**about["annotations"], ATTEMPT: mark}}
        return made

    def _bodies(self, name: str) -> dict[str, Any]:
        """Return what was sent for a sandbox, by kind."""
        split = {path: path.rsplit("/", 2) for path in self._sent}
        return {kind: self._sent[path] for path, (_, kind, its) in split.items() if its == name}

    async def _start(self, call: RecordedCall, pod: Any) -> None:
        name = pod["metadata"]["name"]
        if not pod_status.is_running(pod) or name in self._started:
            return
        self._started.add(name)
        bodies = self._bodies(name)
        made = bodies.get("pods") or bodies["sandboxes"]["spec"]["podTemplate"]
        await self._pods.start(name, made, bodies["secrets"])
