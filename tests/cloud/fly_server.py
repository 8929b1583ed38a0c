"""A server of Fly's Machines API for tests, made from fly_api.json, whose machines run.

It compares every request and every answer with that file and collects what does not fit in
`violations`. It listens on an address of its own on the loopback, where it is also Fly's proxy: a
connection to a port of a service is always accepted, and closed if no machine is behind it.
`fail` makes it answer as a provider in trouble does.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from aiohttp import web

from tests.cloud import fly_facts
from tests.cloud.fly_machine import FlyMachine
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

APP = "sandboxes"
TOKEN = "FlyV1 fm2_test"
How = Literal["status", "cut", "half", "hang", "answer"]
_LIVE = ("created", "starting", "started", "stopping", "stopped", "failed")
_numbers = itertools.count(1)


@dataclass(slots=True)
class Fault:
    operation: str
    how: How
    status: int = 500
    message: str = "trouble"
    content: str = ""
    """Of an `answer`, in place of the right one."""
    headers: dict[str, str] = field(default_factory=dict)
    done: bool = False
    """Whether the request takes effect before it fails."""
    times: int = 1


@dataclass(slots=True)
class Record:
    """One machine as the API shows it."""

    id: str
    name: str
    region: str
    config: dict[str, Any]
    private_ip: str
    running: FlyMachine
    state: str = "created"
    events: list[dict[str, Any]] = field(default_factory=list)
    leased: bool = False
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def move(self, state: str) -> None:
        self.state = state
        self.changed.set()
        self.changed = asyncio.Event()


class FlyServer:
    """`with FlyServer(layers) as server:`. `layers`: the files of every image, topmost first."""

    def __init__(self, layers: list[Path]) -> None:
        self.layers = layers
        number = next(_numbers)
        self.host = f"127.{1 + os.getpid() % 250}.{1 + os.getpid() // 250 % 250}.{number}"
        self.url = ""
        self.token = TOKEN
        self.addresses: list[dict[str, Any]] = [_address("2a09:8280:1::1", shared=False)]
        self.clock_ahead_s = 0.0
        self.violations: list[str] = []
        self.requests: list[str] = []
        self.records: dict[str, Record] = {}
        self.faults: list[Fault] = []
        self.forgets = False
        """Whether machines that were destroyed are unknown, rather than shown as destroyed."""
        self.place = Path(tempfile.mkdtemp(prefix="skfly-", dir="/var/tmp"))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fly", daemon=True)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._proxies: dict[tuple[str, int], asyncio.Server] = {}
        self._targets: dict[tuple[str, int], tuple[Record, int]] = {}
        self._closing = asyncio.Event()

    # ---- for tests

    def __enter__(self) -> FlyServer:
        self._thread.start()
        self.call(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self.call(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()
        shutil.rmtree(self.place, ignore_errors=True)

    def call(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def fail(self, operation: str, how: How, **other: Any) -> Fault:
        """Let the next requests of an operation fail."""
        self.faults.append(Fault(operation, how, **other))
        return self.faults[-1]

    @property
    def live(self) -> list[Record]:
        """The machines that are charged."""
        return [one for one in self.records.values() if one.state in _LIVE]

    def vanish(self, machine_id: str) -> None:
        """End a machine as a host that dies does."""
        self.call(self._destroy(self.records[machine_id]))

    # ---- the server

    async def _open(self) -> None:
        app = web.Application(middlewares=[self._answered], client_max_size=8 << 20)
        machines = f"/v1/apps/{APP}/machines"
        app.router.add_get(f"/v1/apps/{APP}", self._app)
        app.router.add_get(f"/v1/apps/{APP}/ip_assignments", self._ips)
        app.router.add_get(machines, self._list)
        app.router.add_post(machines, self._create)
        app.router.add_get(f"{machines}/{{id}}", self._show)
        app.router.add_delete(f"{machines}/{{id}}", self._delete)
        app.router.add_get(f"{machines}/{{id}}/wait", self._wait)
        app.router.add_post(f"{machines}/{{id}}/lease", self._lease)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self.host, 0)
        await site.start()
        port = self._runner.addresses[0][1]
        self.url = f"http://{self.host}:{port}"

    async def _close(self) -> None:
        self._closing.set()
        for record in list(self.records.values()):
            await self._destroy(record)
        for proxy in self._proxies.values():
            proxy.close()
        await self._runner.cleanup()
        # They end with their machines.
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @web.middleware
    async def _answered(
        self, request: web.Request, handler: Callable[[web.Request], Any]
    ) -> web.StreamResponse:
        name = fly_facts.operation(request.method, request.path)
        self.requests.append(f"{request.method} {request.path}")
        if name is None:
            self.violations.append(f"unknown operation {request.method} {request.path}")
            return _error(404, "not found")
        fault = next((one for one in self.faults if one.operation == name and one.times), None)
        if fault is not None:
            fault.times -= 1
            if not fault.done:
                return await self._trouble(request, fault, b"")
        if request.headers.get("Authorization") not in (self.token, f"Bearer {self.token}"):
            return _error(401, fly_facts.FACTS["errors"]["unauthorized"])
        body = await request.json() if request.can_read_body else None
        found = fly_facts.wrong_query(name, dict(request.query)) + fly_facts.wrong_body(name, body)
        self.violations += found
        if found:
            return _error(400, "; ".join(found))
        try:
            answer: web.Response = await handler(request)
        except web.HTTPNotFound:
            answer = _error(404, "not found")
        told = json.loads(answer.body) if isinstance(answer.body, bytes) else None
        self.violations += fly_facts.wrong_answer(name, answer.status, told)
        answer.headers["Date"] = _date(time.time() + self.clock_ahead_s)
        if fault is not None:
            return await self._trouble(request, fault, bytes(answer.body or b""))  # type: ignore[arg-type]
        return answer

    async def _trouble(self, request: web.Request, fault: Fault, body: bytes) -> web.StreamResponse:
        if fault.how == "status":
            return _error(fault.status, fault.message, fault.headers)
        if fault.how == "answer":
            return web.json_response(text=fault.content, status=fault.status)
        if fault.how == "hang":
            await self._closing.wait()
        if fault.how == "half":
            content = body or b'{"id": "'
            answer = web.StreamResponse(headers={"Content-Length": str(len(content) + 100)})
            await answer.prepare(request)
            await answer.write(content[: max(1, len(content) // 2)])
        if request.transport is not None:
            request.transport.abort()
        return _error(500, "cut")

    async def _app(self, _request: web.Request) -> web.Response:
        organization = {"name": "Example", "slug": "example"}
        return web.json_response(
            {"id": "a1", "name": APP, "status": "deployed", "organization": organization}
        )

    async def _ips(self, _request: web.Request) -> web.Response:
        return web.json_response({"ips": self.addresses})

    async def _list(self, request: web.Request) -> web.Response:
        shown = [self._shown(one) for one in self.live]
        if request.query.get("summary") == "true":
            left_out = {"config", "events"}
            shown = [{key: one[key] for key in one.keys() - left_out} for one in shown]
        return web.json_response(shown)

    async def _create(self, request: web.Request) -> web.Response:
        body = await request.json()
        name = body.get("name") or secrets.token_hex(4)
        for one in self.live:
            if one.name == name:
                told = fly_facts.FACTS["errors"]["name_taken"].format(id=one.id, name=name)
                return _error(409, told)
        machine_id, config = secrets.token_hex(7), body["config"]
        region = body.get("region") or "ams"
        number = len(self.records) + 1
        first, second, third, _ = self.host.split(".")
        private = f"{first}.{second}.{int(third) % 200 + 50}.{number}"
        variables = {
            "FLY_APP_NAME": APP,
            "FLY_MACHINE_ID": machine_id,
            "FLY_REGION": region,
            "FLY_PRIVATE_IP": private,
        }
        running = FlyMachine(self.place / machine_id, config, variables)
        record = Record(machine_id, name, region, config, private, running)
        self.records[machine_id] = record
        self._spawn(self._run(record))
        return web.json_response(self._shown(record))

    async def _run(self, record: Record) -> None:
        record.move("starting")
        await asyncio.to_thread(record.running.start, self.layers)
        for service in record.config.get("services") or ():
            for port in service.get("ports") or ():
                await self._proxy((self.host, port["port"]), record, service["internal_port"])
        if record.state != "destroyed":
            record.move("started")
        code = await record.running.ended()
        self._note_end(record, code)
        await record.running.remove()

    def _note_end(self, record: Record, code: int) -> None:
        if record.state == "destroyed":
            return
        exited = {"exit_code": code, "oom_killed": False, "requested_stop": False}
        event = {"type": "exit", "status": "stopped", "request": {"exit_event": exited}}
        record.events.insert(0, event)
        record.move("stopped")
        if record.config.get("auto_destroy"):
            record.move("destroyed")

    async def private_network(self, record: Record, port: int) -> None:
        """Let a port of a machine be reached at its private address."""
        await self._proxy((record.private_ip, port), record, port)

    async def _proxy(self, place: tuple[str, int], record: Record, inner: int) -> None:
        self._targets[place] = record, inner
        if place in self._proxies:
            return

        async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            record, port = self._targets[place]
            await _relay(reader, writer, record, port)

        self._proxies[place] = await asyncio.start_server(passed, *place)

    async def _show(self, request: web.Request) -> web.Response:
        return web.json_response(self._shown(self._record(request)))

    async def _delete(self, request: web.Request) -> web.Response:
        record = self._record(request)
        if record.leased:
            told = fly_facts.FACTS["errors"]["leased"].format(owner="someone@example.com")
            return _error(409, told)
        if record.state == "started" and request.query.get("force") != "true":
            return _error(412, fly_facts.FACTS["errors"]["running"])
        await self._destroy(record)
        return web.json_response({"ok": True})

    async def _destroy(self, record: Record) -> None:
        record.move("destroyed")
        await asyncio.to_thread(record.running.end)

    async def _wait(self, request: web.Request) -> web.Response:
        record = self._record(request)
        wanted = request.query.get("state", "started")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(int(request.query.get("timeout", "60"))):
                while record.state != wanted and record.state != "destroyed":
                    await record.changed.wait()
        if record.state == wanted:
            return web.json_response({"ok": True})
        return _error(408, f"deadline_exceeded: machine failed to reach desired state {wanted}")

    async def _lease(self, request: web.Request) -> web.Response:
        record = self._record(request)
        record.leased = True
        data = {"nonce": "n", "expires_at": 0, "owner": "someone@example.com"}
        return web.json_response({"status": "success", "data": data}, status=201)

    def _record(self, request: web.Request) -> Record:
        record = self.records.get(request.match_info["id"])
        if record is None or (self.forgets and record.state == "destroyed"):
            raise web.HTTPNotFound
        return record

    def _shown(self, record: Record) -> dict[str, Any]:
        return {
            "id": record.id,
            "name": record.name,
            "state": record.state,
            "region": record.region,
            "instance_id": f"01{record.id}",
            "private_ip": record.private_ip,
            "created_at": _date(time.time() + self.clock_ahead_s),
            "config": record.config,
            "events": record.events,
        }

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, record: Record, port: int
) -> None:
    there = await record.running.dial(port) if record.state == "started" else None
    if there is None:
        writer.close()
        return
    inner_reader, inner_writer = await asyncio.open_connection(sock=there)
    await asyncio.gather(_pump(reader, inner_writer), _pump(inner_reader, writer))


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await source.read(1 << 16):
            target.write(data)
            await target.drain()
    with contextlib.suppress(OSError):
        target.close()


def _address(ip: str, *, shared: bool) -> dict[str, Any]:
    return {"ip": ip, "region": "global", "service_name": "", "shared": shared}


def _error(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.json_response({"error": message}, status=status, headers=headers)


def _date(at: float) -> str:
    return time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(at))
