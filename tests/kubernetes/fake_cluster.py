"""A small API server that runs Pods of ours as processes of this machine.

Keeps Pods and Secrets of any namespace, lists by label, watches one object, and starts the gate
and the runner of a Pod as the kubelet would. `script` changes what becomes of the next Pods: a
status to show in place of running, or a refusal. With `agent_sandbox` it also keeps Sandbox
objects, and makes and replaces their Pods as the controller of agent-sandbox 0.5 does. The answers
have the form of those of Kubernetes 1.36.

With `node`, Pods are started by that instead; with `pace`, answers take the time of a real server.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from aiohttp import web

from tests.kubernetes.pod_processes import PodProcesses

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "let-me-in"
_AGENT_SANDBOX = "/apis/agents.x-k8s.io/v1beta1"
_METADATA_ONLY = "as=PartialObjectMetadataList"


class Node(Protocol):
    """Runs Pods in place of the processes of this machine."""

    async def start(self, name: str, pod: dict[str, Any], secret: dict[str, Any]) -> dict[str, Any]:
        """Return the status of the Pod that runs."""
        ...

    async def stop(self, name: str) -> None: ...


class Pace(Protocol):
    """Waits as long as a real API server takes for an answer."""

    async def wait(self, verb: str, kind: str, items: int) -> None: ...


@dataclass(slots=True)
class Script:
    status: dict[str, Any] | None = None
    """Shown in place of a Pod that runs."""
    refusal: tuple[int, str, str] | None = None
    """Status, reason and message of the answer to a POST of a Pod."""
    lost_answers: int = 0
    """How many POSTs are done, and answered with a closed connection."""
    quota: dict[str, int] = field(default_factory=dict)
    """How many objects of a kind there may be, in a namespace; it is looked at before the name."""
    cut_watches: int = 0
    """How many watches are cut off as soon as they are open."""
    forbidden: set[str] = field(default_factory=set)
    """Namespaces in which we have no rights."""
    away: bool = False
    node_away: bool = False
    """Whether Pods stay while they are being removed."""
    controller: bool = True
    """Whether the controller of agent-sandbox runs."""


@dataclass(slots=True)
class FakeCluster:
    place: Path
    agent_sandbox: bool = False
    script: Script = field(default_factory=Script)
    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    """Answered requests by verb and kind, and the bytes of their answers by verb and kind."""
    node: Node | None = None
    pace: Pace | None = None
    _processes: PodProcesses = field(init=False)
    _watchers: dict[tuple[str, str], list[asyncio.Queue[Any]]] = field(default_factory=dict)
    _starting: set[asyncio.Task[None]] = field(default_factory=set)
    _version: int = 0
    _runner: web.AppRunner | None = None
    url: str = ""

    def __post_init__(self) -> None:
        self._processes = PodProcesses(self.place)

    async def __aenter__(self) -> FakeCluster:
        app = web.Application(middlewares=[self._guarded])
        app.router.add_get("/version", self._told_version)
        app.router.add_post("/apis/authorization.k8s.io/v1/{kind}", self._may)
        roots = ["/api/v1"]
        if self.agent_sandbox:
            roots.append(_AGENT_SANDBOX)
            app.router.add_get(_AGENT_SANDBOX, self._kinds)
        for root in roots:
            at = root + "/namespaces/{namespace}/{kind}"
            app.router.add_post(at, self._create)
            app.router.add_get(at, self._list)
            app.router.add_get(at + "/{name}", self._get)
            app.router.add_patch(at + "/{name}", self._patch)
            app.router.add_delete(at + "/{name}", self._delete)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._starting:
            task.cancel()
        await self._processes.aclose()
        assert self._runner is not None
        await self._runner.cleanup()

    def kubeconfig(self) -> Path:
        path = self.place / "kubeconfig"
        path.write_text(
            json.dumps(
                {
                    "current-context": "here",
                    "contexts": [
                        {
                            "name": "here",
                            "context": {"cluster": "c", "user": "u", "namespace": "boxes"},
                        }
                    ],
                    "clusters": [{"name": "c", "cluster": {"server": self.url}}],
                    "users": [{"name": "u", "user": {"token": TOKEN}}],
                }
            )
        )
        return path

    def kill(self, name: str) -> None:
        """End the processes of a Pod, as a node that dies does, without a word."""
        self._processes.kill(name)

    def show(self, name: str, **status: Any) -> None:
        """Change the status of a Pod."""
        pod = self.objects["pods", name]
        pod["status"] = {**pod["status"], **status}
        self._changed("MODIFIED", "pods", name, pod)

    # ---- requests

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if self.script.away:
            assert request.transport is not None
            request.transport.abort()
            raise web.HTTPServiceUnavailable
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized", "Unauthorized")
        namespace = request.match_info.get("namespace", "")
        if namespace in self.script.forbidden:
            told = f'pods is forbidden: no access in the namespace "{namespace}"'
            return _status(403, "Forbidden", told)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _answer(
        self, verb: str, kind: str, body: dict[str, Any], status: int = 200, items: int = 1
    ) -> web.Response:
        if self.pace is not None:
            await self.pace.wait(verb, kind, items)
        answer = web.json_response(body, status=status)
        assert isinstance(answer.body, bytes)
        self.counts[f"{verb} {kind}"] += 1
        self.counts[f"{verb} {kind} bytes"] += len(answer.body)
        return answer

    async def _told_version(self, request: web.Request) -> web.Response:
        return web.json_response({"gitVersion": "v1.36.3"})

    async def _may(self, request: web.Request) -> web.Response:
        asked = await request.json()
        namespace = asked["spec"]["resourceAttributes"]["namespace"]
        allowed = namespace not in self.script.forbidden
        return web.json_response({**asked, "status": {"allowed": allowed}}, status=201)

    async def _create(self, request: web.Request) -> web.Response:
        kind, body = request.match_info["kind"], await request.json()
        name = body["metadata"]["name"]
        if kind == "pods" and self.script.refusal is not None:
            return _status(*self.script.refusal)
        assert request.query["fieldValidation"] == "Strict"
        namespace = body["metadata"]["namespace"] = request.match_info["namespace"]
        there = sum(
            its == kind and one["metadata"].get("namespace") == namespace
            for (its, _), one in self.objects.items()
        )
        if there >= self.script.quota.get(kind, math.inf):
            return _status(403, "Forbidden", f'{kind} "{name}" is forbidden: exceeded quota: boxes')
        if (kind, name) in self.objects:
            return _status(409, "AlreadyExists", f'{kind} "{name}" already exists')
        self.objects[kind, name] = body
        body["metadata"]["uid"] = f"uid-{self._version}"
        body["metadata"]["creationTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._changed("ADDED", kind, name, body)
        if kind == "pods":
            body["status"] = {"phase": "Pending"}
            if self.node is None:
                await self._start(name, body)
            else:
                task = asyncio.create_task(self._start_on(self.node, name, body))
                self._starting.add(task)
                task.add_done_callback(self._starting.discard)
        if kind == "sandboxes":
            await self._reconcile(name)
        if self.script.lost_answers:
            self.script.lost_answers -= 1
            assert request.transport is not None
            request.transport.abort()
        return await self._answer("create", kind, body, 201)

    async def _get(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        found = self._named(request)
        if found is None:
            return _status(404, "NotFound", f'{kind} "{name}" not found')
        return await self._answer("get", kind, found)

    def _named(self, request: web.Request) -> dict[str, Any] | None:
        """Return the object, if it is in the namespace of the request."""
        found = self.objects.get((request.match_info["kind"], request.match_info["name"]))
        return found if found is not None and _is_in(found, request) else None

    async def _list(self, request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if request.query.get("watch"):
            return await self._watch(request, kind)
        wanted = dict(one.split("=") for one in request.query["labelSelector"].split(","))
        found = [
            one
            for (its, _), one in self.objects.items()
            if its == kind
            and _is_in(one, request)
            and wanted.items() <= one["metadata"]["labels"].items()
        ]
        first = int(request.query.get("continue") or 0)
        after = first + int(request.query.get("limit") or len(found) or 1)
        page = found[first:after]
        if _METADATA_ONLY in request.headers.get("Accept", ""):
            page = [{"metadata": one["metadata"]} for one in page]
        more = {"continue": str(after)} if after < len(found) else {}
        return await self._answer("list", kind, {"items": page, "metadata": more}, items=len(page))

    async def _delete(self, request: web.Request) -> web.Response:
        kind, name = request.match_info["kind"], request.match_info["name"]
        found = self._named(request)
        if found is None:
            return _status(404, "NotFound", f'{kind} "{name}" not found')
        body = await request.json() if request.can_read_body else {}
        wanted = (body.get("preconditions") or {}).get("uid")
        if wanted not in (None, found["metadata"]["uid"]):
            return _status(409, "Conflict", "the UID in the precondition is another one")
        found["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        self._changed("MODIFIED", kind, name, found)
        if kind == "pods" and self.script.node_away:
            return await self._answer("delete", kind, found)
        if kind == "pods":
            await (self.node or self._processes).stop(name)
        self.objects.pop((kind, name), None)
        self._changed("DELETED", kind, name, found)
        await self._reconcile(name)
        return await self._answer("delete", kind, found)

    async def _patch(self, request: web.Request) -> web.Response:
        """Change a Pod: only its gates are ever changed."""
        assert request.content_type == "application/merge-patch+json"
        name = request.match_info["name"]
        assert await request.json() == {"spec": {"schedulingGates": None}}
        pod = self.objects["pods", name]
        del pod["spec"]["schedulingGates"]
        self._changed("MODIFIED", "pods", name, pod)
        await self._start(name, pod)
        return web.json_response(pod)

    async def _kinds(self, request: web.Request) -> web.Response:
        return web.json_response(
            {"resources": [{"name": "sandboxes"}, {"name": "sandboxes/status"}]}
        )

    async def _watch(self, request: web.Request, kind: str) -> web.StreamResponse:
        name = request.query["fieldSelector"].removeprefix("metadata.name=")
        since = int(request.query["resourceVersion"] or 0)
        events: asyncio.Queue[Any] = asyncio.Queue()
        found = self.objects.get((kind, name))
        if found is None:
            gone = {"metadata": {"name": name, "resourceVersion": str(self._version)}}
            events.put_nowait({"type": "DELETED", "object": gone})
        elif int(found["metadata"]["resourceVersion"]) > since:
            events.put_nowait({"type": "MODIFIED", "object": found})
        self._watchers.setdefault((kind, name), []).append(events)
        self.counts[f"watch {kind}"] += 1
        try:
            answer = web.StreamResponse()
            await answer.prepare(request)
            if self.script.cut_watches:
                self.script.cut_watches -= 1
                assert request.transport is not None
                request.transport.abort()
                return answer
            while True:
                line = json.dumps(await events.get()).encode() + b"\n"
                self.counts[f"watch {kind} bytes"] += len(line)
                await answer.write(line)
        finally:
            self._watchers[kind, name].remove(events)
            if not self._watchers[kind, name]:
                del self._watchers[kind, name]

    def _changed(self, what: str, kind: str, name: str, found: dict[str, Any]) -> None:
        self._version += 1
        found["metadata"]["resourceVersion"] = str(self._version)
        for one in self._watchers.get((kind, name), ()):
            one.put_nowait(json.loads(json.dumps({"type": what, "object": found})))

    # ---- the controller of agent-sandbox

    async def _reconcile(self, name: str) -> None:
        """Make the Pod of a Sandbox, also after the first one is gone."""
        sandbox = self.objects.get(("sandboxes", name))
        if sandbox is None or ("pods", name) in self.objects or not self.script.controller:
            return
        if self.script.refusal is not None:
            told = {"type": "Ready", "status": "False", "reason": "ReconcilerError",
                    "message": f"Error seen: {self.script.refusal[2]}"}  # fmt: skip
            sandbox["status"] = {"conditions": [told]}
            self._changed("MODIFIED", "sandboxes", name, sandbox)
            return
        template = json.loads(json.dumps(sandbox["spec"]["podTemplate"]))
        owner = {"kind": "Sandbox", "name": name, "uid": sandbox["metadata"]["uid"]}
        pod = {
            "metadata": {
                **template["metadata"], "name": name, "uid": f"uid-{self._version}",
                "namespace": sandbox["metadata"]["namespace"],
                "ownerReferences": [owner],
            },
            "spec": template["spec"],
            "status": {"phase": "Pending"},
        }  # fmt: skip
        self.objects["pods", name] = pod
        self._changed("ADDED", "pods", name, pod)
        sandbox["metadata"]["annotations"]["agents.x-k8s.io/pod-name"] = name
        self._changed("MODIFIED", "sandboxes", name, sandbox)

    # ---- the node

    async def _start_on(self, node: Node, name: str, pod: dict[str, Any]) -> None:
        pod["status"] = await node.start(name, pod, self.objects["secrets", name])
        if ("pods", name) in self.objects:
            self._changed("MODIFIED", "pods", name, pod)

    async def _start(self, name: str, pod: dict[str, Any]) -> None:
        if self.script.status is not None:
            pod["status"] = self.script.status
            self._changed("MODIFIED", "pods", name, pod)
            return
        pod["status"] = await self._processes.start(name, pod, self.objects["secrets", name])
        self._changed("MODIFIED", "pods", name, pod)


def _is_in(one: dict[str, Any], request: web.Request) -> bool:
    return bool(one["metadata"].get("namespace") == request.match_info["namespace"])


def _status(code: int, reason: str, message: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return web.json_response(body, status=code)
