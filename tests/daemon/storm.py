"""A daemon killed repeatedly under load, and what must hold afterwards.

Workers create, run, write and destroy over HTTP while the daemon is killed. Each worker records
only what was acknowledged to it. After the last kill, everything that was acknowledged is looked
up.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.daemon.process import DaemonProcess, ask
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LOST = (aiohttp.ClientError, ConnectionError, TimeoutError, OSError)


@dataclass(slots=True)
class Kept:
    """A session that lives through all kills, with its expected state."""

    id: str
    pid: str
    counting: str
    """The id of a command that counts aloud all the while."""
    writes: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Report:
    kills: int = 0
    recovery_s: list[float] = field(default_factory=list)
    acknowledged: int = 0
    broken: int = 0
    """Requests that died with the daemon."""
    destroyed: set[str] = field(default_factory=set)
    created: set[str] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.recovery_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.acknowledged} acknowledged, {self.broken} broken off; "
            f"ready again in {self.percentile(0.5):.2f} s (p50), {self.percentile(0.99):.2f} s "
            f"(p99), start of the program included"
        )


class Storm:
    def __init__(self, daemon: DaemonProcess, http: aiohttp.ClientSession, seed: int) -> None:
        self.daemon = daemon
        self.http = http
        self.report = Report()
        self._random = random.Random(seed)
        self._over = False

    @property
    def url(self) -> str:
        """Return where clients send their requests."""
        return self.daemon.url

    async def ask(self, method: str, path: str, body: object = None, **more: Any) -> Any:
        """Return the answer, or None when the daemon died before it."""
        more.setdefault("timeout", aiohttp.ClientTimeout(total=FAR_TOO_LATE_S))
        try:
            status, answer = await ask(self.http, method, self.url + path, body, **more)
        except _LOST:
            self.report.broken += 1
            # It takes that long to be back; asking faster only takes its processor.
            await asyncio.sleep(0.2)
            return None
        if status >= 400:
            # What a daemon that has just come back may say; all else is a defect.
            if status not in (503, 404, 409, 410):
                self.report.unexpected.append(f"{method} {path}: {status} {answer}")
            return None
        self.report.acknowledged += 1
        return answer

    async def told(self, method: str, path: str, body: object = None) -> Any:
        """Return the answer of a live daemon, which may first report that it is starting."""
        deadline = time.monotonic() + PATIENCE_S
        while (answer := await self.ask(method, path, body)) is None:
            if time.monotonic() > deadline:
                return None
            await asyncio.sleep(0.1)
        return answer

    async def prepared(self, count: int) -> list[Kept]:
        kept = []
        for _ in range(count):
            made = await self.ask("POST", "/v1/sessions", {"labels": {"kept": "yes"}})
            the_id = made["id"]
            path = f"/v1/sessions/{the_id}/exec"
            begun = await self.ask(
                "POST",
                path,
                {"cmd": "mkdir -p d && cd d && export MARK=m-$$ && echo $$", "timeout_ms": 60000},
            )
            counting = await self.ask(
                "POST",
                path,
                {
                    "cmd": ["sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done"],
                    "background": True,
                    "timeout_seconds": 3000,
                },
            )
            kept.append(Kept(the_id, begun["stdout"].strip(), counting["exec_id"]))
        return kept

    async def blow(self, kept: list[Kept], kills: int, workers: int) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(self._writer(kept[number % len(kept)], number))
                group.create_task(self._maker(number))
            await self._kill(kills)
            self._over = True

    async def _kill(self, kills: int) -> None:
        for _ in range(kills):
            await asyncio.sleep(self._random.uniform(0.05, 0.5))
            await self.daemon.kill()
            self.report.kills += 1
            began = time.monotonic()
            if self._random.random() < 0.2:
                # Once more, while it recovers.
                self.daemon.begun.clear()
                starting = asyncio.create_task(self.daemon.start())
                await self.daemon.begun.wait()
                await asyncio.sleep(self._random.uniform(0.3, 0.9))
                if not starting.done():
                    await self.daemon.kill()
                    starting.cancel()
                    await asyncio.gather(starting, return_exceptions=True)
                    self.report.kills += 1
                    began = time.monotonic()
                    await self.daemon.start()
                else:
                    await starting
            else:
                await self.daemon.start()
            self.report.recovery_s.append(time.monotonic() - began)

    async def _writer(self, kept: Kept, number: int) -> None:
        count = 0
        while not self._over:
            count += 1
            name, text = f"w{number}-{count}.txt", f"{number}:{count}:" + "x" * (count % 3000)
            body = {"path": f"/workspace/{name}", "content": text}
            if await self.ask("POST", f"/v1/sessions/{kept.id}/fs/write", body):
                kept.writes[name] = text
            command = {"cmd": f"echo {count} > e{number}-{count}.txt && cat e{number}-{count}.txt"}
            answer = await self.ask("POST", f"/v1/sessions/{kept.id}/exec", command)
            if answer and answer["status"] == "completed" and answer["exit_code"] == 0:
                if answer["stdout"] != f"{count}\n":
                    self.report.unexpected.append(f"exec answered {answer}")
                kept.writes[f"d/e{number}-{count}.txt"] = f"{count}\n"

    async def _maker(self, number: int) -> None:
        while not self._over:
            made = await self.ask("POST", "/v1/sessions", {"labels": {"maker": str(number)}})
            if made is None:
                continue
            self.report.created.add(made["id"])
            await self.ask("POST", f"/v1/sessions/{made['id']}/exec", {"cmd": "echo hello"})
            if await self.ask("DELETE", f"/v1/sessions/{made['id']}"):
                self.report.destroyed.add(made["id"])

    async def check(self, kept: list[Kept]) -> list[str]:
        """Return everything that differs from what was acknowledged."""
        wrong = list(self.report.unexpected)
        for one in kept:
            wrong += await self._check_session(one)
        listed = await self.told("GET", "/v1/sessions?limit=1000")
        there = {one["id"] for one in listed}
        wrong += [f"{one} was destroyed and is there" for one in self.report.destroyed & there]
        return wrong

    async def _check_session(self, kept: Kept) -> list[str]:
        wrong = []
        path = f"/v1/sessions/{kept.id}"
        state = await self.told("POST", f"{path}/exec", {"cmd": "echo $$ $PWD $MARK"})
        expected = f"{kept.pid} /workspace/d m-{kept.pid}\n"
        if state is None or state["stdout"] != expected:
            wrong.append(f"{kept.id}: the shell is {state}, not {expected!r}")
        for name, text in kept.writes.items():
            found = await self.told("GET", f"{path}/fs/read?path=/workspace/{name}")
            if found is None or found.get("content") != text:
                wrong.append(f"{kept.id}: {name} is {str(found)[:100]}")
        wrong += await self._check_counting(kept, path)
        return wrong

    async def _check_counting(self, kept: Kept, path: str) -> list[str]:
        seen, since, texts = 0, 0, []
        while True:
            page = await self.told(
                "GET", f"{path}/execs/{kept.counting}/output?since_seq={since}&max_chunks=1000"
            )
            if page is None:
                return [f"{kept.id}: the output of {kept.counting} cannot be read"]
            for chunk in page["chunks"]:
                if chunk.get("gap_bytes"):
                    return [f"{kept.id}: a gap of {chunk['gap_bytes']} bytes after seq {since}"]
                since = chunk["seq"]
                texts.append(chunk["text"])
                seen += 1
            if not page["chunks"] or page.get("done"):
                break
        numbers = "".join(texts).split()
        if page.get("done"):
            return [f"{kept.id}: the counting command ended: {page}"]
        if numbers != [str(n) for n in range(1, len(numbers) + 1)] or not numbers:
            return [f"{kept.id}: it counted {numbers[:3]}…{numbers[-3:]} in {seen} chunks"]
        return []


async def eventually(check: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Return what is still wrong after a while; empty as soon as nothing is."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        wrong = await check()
        if not wrong or time.monotonic() > deadline:
            return wrong
        await asyncio.sleep(0.2)
