"""Headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.patience import FAR_TOO_LATE_S, PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_FLAGS = (
    "--headless=new",
    # Its own sandbox requires another user than root.
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-port=0",
)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.said: list[str] = []
        """What the console printed and every uncaught exception, for messages of failed tests."""

    async def read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                waiting = self._waiting.pop(told["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
            elif told["method"] in ("Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
                self.said.append(json.dumps(told["params"])[:600])

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(PATIENCE_S):
            told = await answer
        assert "error" not in told, told["error"]
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> None:
        """Go to an address and wait until the page has loaded."""
        told = await self.call("Page.navigate", url=url)
        assert "errorText" not in told, told
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def run(self, script: str) -> Any:
        """Return the value of an expression; a promise is awaited."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in told, (told["exceptionDetails"], self.said)
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true and return its value."""
        seen: object = None
        try:
            async with asyncio.timeout(FAR_TOO_LATE_S):
                while True:
                    try:
                        seen = await self.run(script)
                    except AssertionError as exc:
                        # The page may be on its way to another one.
                        seen = exc
                    else:
                        if seen:
                            return seen
                    await asyncio.sleep(0.1)
        except TimeoutError:
            shown = await self.run("document.documentElement.outerHTML.slice(0, 2000)")
            raise AssertionError((script, seen, self.said[-5:], shown)) from None

    async def cookies(self) -> list[dict[str, Any]]:
        """Return all cookies of the browser, also those that scripts cannot read."""
        return list((await self.call("Storage.getCookies"))["cookies"])


class Browser:
    def __init__(self, http: aiohttp.ClientSession, port: int) -> None:
        self._http = http
        self._at = f"http://127.0.0.1:{port}"

    @asynccontextmanager
    async def page(self, url: str | None = None) -> AsyncIterator[Page]:
        async with self._http.put(f"{self._at}/json/new?about:blank") as made:
            address = (await made.json())["webSocketDebuggerUrl"]
        async with self._http.ws_connect(address, max_msg_size=0) as socket:
            page = Page(socket)
            reading = asyncio.create_task(page.read())
            try:
                await page.call("Page.enable")
                await page.call("Runtime.enable")
                if url is not None:
                    await page.open(url)
                yield page
            finally:
                reading.cancel()
                await asyncio.gather(reading, return_exceptions=True)


@asynccontextmanager
async def chromium(*flags: str) -> AsyncIterator[Browser]:
    """Start a browser with an empty profile, and end it with all its processes."""
    program = shutil.which("chromium")
    assert program is not None, "chromium is missing: scripts/apt_packages.sh long"
    with tempfile.TemporaryDirectory(prefix="pytest-of-browser-", dir="/var/tmp") as profile:
        process = await asyncio.create_subprocess_exec(
            program, *_FLAGS, *flags, f"--user-data-dir={profile}", "about:blank",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HOME": profile, "XDG_CONFIG_HOME": profile},
        )  # fmt: skip
        try:
            port = await _port(Path(profile) / "DevToolsActivePort", process)
            async with aiohttp.ClientSession() as http:
                browser = Browser(http, port)
                try:
                    yield browser
                finally:
                    await _close(http, port)
                    async with asyncio.timeout(PATIENCE_S):
                        await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _close(http: aiohttp.ClientSession, port: int) -> None:
    """Ask for an orderly end: a killed one leaves its renderers for a moment."""
    async with http.get(f"http://127.0.0.1:{port}/json/version") as told:
        address = (await told.json())["webSocketDebuggerUrl"]
    async with http.ws_connect(address) as socket:
        await socket.send_json({"id": 1, "method": "Browser.close"})
        await socket.receive()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(FAR_TOO_LATE_S):
        while True:
            lines = _lines(file)
            if len(lines) == 2:
                return int(lines[0])
            assert process.returncode is None, f"chromium ended with {process.returncode}"
            await asyncio.sleep(0.05)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []
