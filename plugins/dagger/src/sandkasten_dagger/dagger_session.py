"""A session with one Dagger Engine, shared by all runs that use it.

The library works in a child (`session_program.py`), which is started with the first request,
started again after it died, and ended by `aclose`. Every request has a deadline. A request that is
cancelled or late is cancelled in the engine; if that is not confirmed, the whole session is ended,
which ends what it runs. Raises BackendUnavailable for every failure of child, CLI and engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from sandkasten.disk.child_process import start_child
from sandkasten.disk.cleanup import finish
from sandkasten.errors import BackendUnavailable
from sandkasten.model.addresses import without_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandkasten.disk.child_process import ChildProcess

_PROGRAM: Final = Path(__file__).with_name("session_program.py")
# The engine ends a cancelled command within a second.
_CANCEL_S: Final = 5.0
_PING_S: Final = 10.0
_CONNECT_S: Final = 10.0
# The engine ends what a client that is gone was running.
_CLOSE_S: Final = 1.0
# The engine keeps the files of a run while its session lives.
_MOST_RUNS: Final = 200
_IDLE_S: Final = 60.0
# What the CLI and the clients of engines (docker, kubectl, ssh) read; no other variable.
_PASSED_ON: Final = (
    "PATH", "HOME", "USER", "LANG", "TMPDIR", "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME",
    "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "DOCKER_CERT_PATH", "DOCKER_TLS_VERIFY",
    "SSH_AUTH_SOCK", "KUBECONFIG", "SSL_CERT_FILE", "SSL_CERT_DIR", "DAGGER_CLOUD_TOKEN",
    "http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip


def session_environment(environ: Mapping[str, str], cli: str, address: str) -> dict[str, str]:
    """Return the environment of the child."""
    variables = {name: environ[name] for name in _PASSED_ON if environ.get(name)}
    return {
        **variables,
        "_EXPERIMENTAL_DAGGER_CLI_BIN": cli,
        "_EXPERIMENTAL_DAGGER_RUNNER_HOST": address,
        "DO_NOT_TRACK": "1",
        "DAGGER_NO_NAG": "1",
        "DAGGER_NO_UPDATE_CHECK": "1",
        "NO_COLOR": "1",
    }


class DaggerSession:
    def __init__(
        self, address: str, python: str, env: Mapping[str, str], folder: Path, start_s: float
    ) -> None:
        """`python`: an interpreter that has the library. `folder`: the directory in which the
        session works; it must exist and be private.
        """
        self.address = address
        self._python = python
        self.version = ""
        self.started = 0
        """How often a session was started: each may be with another engine."""
        self._env = env
        self._folder = folder
        self._start_s = start_s
        self._starting = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._reading: asyncio.Task[None] | None = None
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._sent = 0
        self._runs = 0
        self._used = 0.0
        self._closed = False

    async def start(self) -> None:
        """Make sure that the session answers. Raise BackendUnavailable."""
        async with self._starting:
            if self._closed:
                raise self.failure("the daemon is stopping", "retry when it has been started again")
            if self._child is not None and self._is_spent():
                await self._end()
            if self._child is None:
                await self._begin()

    async def ask(self, op: str, fields: Mapping[str, object], seconds: float) -> dict[str, Any]:
        """Send one request and return its answer. Raise BackendUnavailable."""
        await self.start()
        self._runs += op == "run"
        self._sent += 1
        number = self._sent
        waiting = asyncio.get_running_loop().create_future()
        self._pending[number] = waiting
        try:
            self._send({"id": number, "op": op, **fields})
            async with asyncio.timeout(seconds):
                answer: dict[str, Any] = await asyncio.shield(waiting)
        except TimeoutError as exc:
            await finish(self._cancel(number, waiting))
            what = f"the Dagger Engine did not answer within {seconds:g} s"
            raise self.failure(what, "retry; see the log of the engine") from exc
        except asyncio.CancelledError:
            await finish(self._cancel(number, waiting))
            raise
        finally:
            self._pending.pop(number, None)
            self._used = asyncio.get_running_loop().time()
        if answer.get("error") == "engine":
            # A session whose engine is gone never recovers.
            await finish(self._drop())
            raise _lost(self.address, str(answer.get("message")))
        return answer

    async def check(self) -> None:
        """After a refusal: raise BackendUnavailable if the engine is gone, not the request bad."""
        answer = await self.ask("ping", {}, _PING_S)
        if "error" in answer:
            await finish(self._drop())
            raise _lost(self.address, str(answer.get("message")))

    async def aclose(self) -> None:
        self._closed = True
        async with self._starting:
            await self._end()

    def failure(self, what: str, hint: str) -> BackendUnavailable:
        return _failure(self.address, what, hint)

    # ---- the child

    async def _begin(self) -> None:
        # The CLI would wait for minutes.
        await check_listening(self.address)
        command = [self._python, "-I", str(_PROGRAM)]
        try:
            child = await start_child(
                command,
                streams=("stdin", "stdout"),
                env=self._env,
                cwd=self._folder,
                new_session=True,
            )
        except OSError as exc:
            raise self.failure(f"a session could not be started: {exc.strerror}", "retry") from exc
        try:
            async with asyncio.timeout(self._start_s):
                line = await child.reader.readline()
        except TimeoutError as exc:
            await finish(_kill(child))
            what = f"the Dagger Engine did not answer within {self._start_s:g} s"
            raise self.failure(what, "check the address and that the engine runs") from exc
        except BaseException:
            await finish(_kill(child))
            raise
        reply = _decoded(line)
        if "ready" not in reply:
            await finish(_kill(child))
            why = _line(str(reply.get("failed") or "the session ended at once"))
            raise _failure(
                self.address,
                f"no session with the Dagger Engine: {without_addresses(why, [self.address])}",
                "check that the engine runs, backends.dagger.engines and backends.dagger.cli",
                why,
            )
        self.version = str(reply["ready"])
        self.started += 1
        self._child, self._runs = child, 0
        self._reading = asyncio.get_running_loop().create_task(self._read(child))

    async def _read(self, child: ChildProcess) -> None:
        with suppress(OSError, ValueError):
            while line := await child.reader.readline():
                answer = _decoded(line)
                waiting = self._pending.get(answer.get("id", 0))
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        if self._child is child:
            self._child = None
            await _kill(child)
        for waiting in self._pending.values():
            if not waiting.done():
                failure = {"error": "engine", "message": "the session with it ended"}
                waiting.set_result(failure)

    def _send(self, request: Mapping[str, object]) -> None:
        if self._child is not None:
            self._child.writer.write(json.dumps(request).encode() + b"\n")

    async def _cancel(self, number: int, waiting: asyncio.Future[dict[str, Any]]) -> None:
        self._send({"op": "cancel", "id": number})
        await asyncio.wait({waiting}, timeout=_CANCEL_S)
        if not waiting.done():
            await self._drop()

    def _is_spent(self) -> bool:
        idle_s = asyncio.get_running_loop().time() - self._used
        return self._runs >= _MOST_RUNS and not self._pending and idle_s > _IDLE_S

    async def _drop(self) -> None:
        async with self._starting:
            await self._end()

    async def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with suppress(OSError):
            child.writer.write_eof()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_S):
                    await child.wait()
        finally:
            await finish(_kill(child))
        if self._reading is not None:
            await asyncio.wait({self._reading})


async def check_listening(address: str) -> None:
    """Raise BackendUnavailable at once if nothing listens at the address of an engine."""
    split = urlsplit(address)
    try:
        async with asyncio.timeout(_CONNECT_S):
            if split.scheme == "unix":
                _, writer = await asyncio.open_unix_connection(split.path)
            elif split.scheme in ("tcp", "tls"):
                _, writer = await asyncio.open_connection(split.hostname, split.port)
            else:
                return
    except (OSError, TimeoutError) as exc:
        raise _lost(address, getattr(exc, "strerror", "") or "nothing answers there") from exc
    writer.close()


def _lost(address: str, message: str) -> BackendUnavailable:
    why = _line(message)
    return _failure(
        address,
        f"the Dagger Engine failed: {without_addresses(why, [address])}",
        "start the engine, or correct backends.dagger.engines, then retry",
        why,
    )


def _failure(address: str, what: str, hint: str, why: str = "") -> BackendUnavailable:
    """Return an error without the address, which is a note, for the log and `doctor`."""
    error = BackendUnavailable(what, hint=hint, backend="dagger")
    error.add_note(f"it is at {address}: {why}" if why else f"it is at {address}")
    return error


async def _kill(child: ChildProcess) -> None:
    """End the child with the CLI that it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    await child.aclose()


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        document = json.loads(line)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _line(text: str) -> str:
    return " ".join(text.split())[:500]
