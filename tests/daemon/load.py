"""Many concurrent clients on one daemon: commands, files and streams, each timed."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from tests.daemon.process import ask
from tests.patience import PATIENCE_S


@dataclass(slots=True)
class Figures:
    times_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    unexpected: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = []
        for what, times in sorted(self.times_ms.items()):
            ordered = sorted(times)
            p50, p95, p99 = (
                ordered[min(len(ordered) - 1, int(share * len(ordered)))]
                for share in (0.5, 0.95, 0.99)
            )
            lines.append(
                f"{what:8} {len(times):7} done, p50 {p50:.1f} ms, p95 {p95:.1f}, p99 {p99:.1f}"
            )
        return "\n".join(lines)


class Load:
    def __init__(self, url: str, http: aiohttp.ClientSession, seed: int = 1) -> None:
        self.figures = Figures()
        self._url = url
        self._http = http
        self._random = random.Random(seed)

    async def sessions(self, count: int) -> list[str]:
        made = []
        for _ in range(count):
            status, answer = await ask(self._http, "POST", f"{self._url}/v1/sessions", {})
            assert status == 201, answer
            made.append(answer["id"])
        return made

    async def run(self, sessions: list[str], clients: int, seconds: float) -> None:
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(sessions[number % len(sessions)], number, until))

    async def _client(self, session: str, number: int, until: float) -> None:
        path = f"{self._url}/v1/sessions/{session}"
        count = 0
        while time.monotonic() < until:
            count += 1
            kind = self._random.choice(("list", "shell", "write", "read", "stream"))
            began = time.monotonic()
            try:
                wrong = await getattr(self, f"_{kind}")(path, number, count)
            except (aiohttp.ClientError, TimeoutError, OSError) as exc:
                wrong = f"{type(exc).__name__}: {exc}"
            if wrong:
                self.figures.unexpected.append(f"{kind}: {wrong}"[:300])
            else:
                self.figures.times_ms[kind].append((time.monotonic() - began) * 1000)

    async def _list(self, path: str, number: int, count: int) -> str | None:
        return _wrong(await ask(self._http, "POST", f"{path}/exec", {"cmd": ["true"]}), "")

    async def _shell(self, path: str, number: int, count: int) -> str | None:
        body = {"cmd": f"echo {number}-{count}", "shell": f"s{number % 4}"}
        return _wrong(await ask(self._http, "POST", f"{path}/exec", body), f"{number}-{count}\n")

    async def _write(self, path: str, number: int, count: int) -> str | None:
        body = {"path": f"f{number}.txt", "content": f"{number}:{count}"}
        status, answer = await ask(self._http, "POST", f"{path}/fs/write", body)
        return None if status == 200 and answer["ok"] else f"{status} {answer}"

    async def _read(self, path: str, number: int, count: int) -> str | None:
        if wrong := await self._write(path, number, count):
            return wrong
        status, answer = await ask(self._http, "GET", f"{path}/fs/read?path=f{number}.txt")
        good = status == 200 and answer["content"] == f"{number}:{count}"
        return None if good else f"{status} {answer}"

    async def _stream(self, path: str, number: int, count: int) -> str | None:
        body = {"cmd": ["sh", "-c", "for i in 1 2 3; do echo $i; done"]}
        async with self._http.post(f"{path}/exec/stream", json=body) as reply:
            text = (await reply.read()).decode()
        good = reply.status == 200 and "event: done" in text and "event: chunk" in text
        return None if good else f"{reply.status} {text[:200]}"


async def down_to(pid: int, descriptors: int) -> Level:
    """Return the level once the process has no more open than that, or when time runs out."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = Level.of(pid)
        if found.descriptors <= descriptors or time.monotonic() > deadline:
            return found
        await asyncio.sleep(0.1)


def _wrong(reply: tuple[int, Any], output: str) -> str | None:
    status, answer = reply
    if status == 200 and answer["exit_code"] == 0 and answer["output"] == output:
        return None
    return f"{status} {answer}"


@dataclass(frozen=True, slots=True)
class Level:
    """Resources of a process."""

    rss_mib: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Level:
        figures = {}
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            for line in file:
                name, _, rest = line.partition(":")
                figures[name] = rest.split()
        return cls(
            int(figures["VmRSS"][0]) / 1024,
            len(os.listdir(f"/proc/{pid}/fd")),
            int(figures["Threads"][0]),
        )
