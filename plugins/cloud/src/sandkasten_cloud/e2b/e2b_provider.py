"""E2B as a provider of machines, through its published SDK.

The programs are written with the file API and the gate is started as a background command, both as
root. Only HTTP reaches a port of a sandbox, so the gate is reached over a WebSocket at the host
name that E2B gives to the port; the port is not public. The SDK waits and tries again where E2B
asks for that (`Retry-After`), with one idempotency key per sandbox, so that none is made twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import posixpath
import shlex
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import e2b
import httpx
from e2b.sandbox.commands.command_handle import CommandExitException

from sandkasten.errors import (
    BackendUnavailable,
    ImageNotFound,
    SandboxLost,
    SandkastenError,
)
from sandkasten.lazy_dataclass import dataclass
from sandkasten.model.ids import SandboxId, host_label, is_sandbox_id
from sandkasten.model.sandbox.readiness import Readiness, Requirement
from sandkasten.model.spelling import one_line
from sandkasten.outgoing_http import new_http_session
from sandkasten_cloud import provider_errors, websocket_stream
from sandkasten_cloud.e2b.e2b_options import KEY_VARIABLE
from sandkasten_cloud.e2b.e2b_traits import TITLE, TRAITS
from sandkasten_cloud.machine_plan import DIRECTORY, PORT
from sandkasten_cloud.provider import LABEL_ID, LABEL_OWNER, is_machine_id

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import aiohttp

    from sandkasten.ports import ByteStream
    from sandkasten_cloud.differences import Traits
    from sandkasten_cloud.e2b.e2b_options import E2bOptions
    from sandkasten_cloud.provider import MachineOrder

NAME: Final = "e2b"
_RETRIES: Final = 2
_PAGE: Final = 100
# More sandboxes than an installation has; a list may not go on for ever.
_MAX_PAGES: Final = 200
# Opens a port that is not public. E2B gives it with the sandbox.
_TRAFFIC: Final = "e2b-traffic-access-token"
_ROOT: Final = "root"
_RETRY_S: Final = 0.05
# How much is kept of what the gate prints before it listens.
_SAID_CHARS: Final = 1000
# In the command line of the gate, and of the shell that becomes it.
_GATE_MODE: Final = "--machine"
# A service may let the file API write only to the places of a user.
_STAGE: Final = "/tmp/sandkasten-files"  # noqa: S108  (inside a new machine, before any code)
# Becomes the command with the variables of the sandbox.
_START: Final = f"{DIRECTORY}/start"
# How long requests of the SDK may take to end when they are cancelled. Another library sends them,
# in threads without an event loop.
_CANCEL_S: Final = 5.0
# To connect extends the life of a sandbox to this, if it would end sooner.
_CONNECT_TIMEOUT_S: Final = 1


@dataclass(frozen=True, slots=True)
class _Address:
    """How the port of a sandbox is reached."""

    url: str
    headers: Mapping[str, str]


class E2bProvider:
    """Implements `cloud.provider.Provider`. `owner` is the name of this installation."""

    def __init__(self, options: E2bOptions, owner: str) -> None:
        self._options = options
        self._owner = owner
        self._addresses: dict[str, _Address] = {}
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        return NAME

    @property
    def traits(self) -> Traits:
        return TRAITS

    @property
    def _api(self) -> dict[str, Any]:
        """Return what each call of the SDK gets, so that nothing else decides about it."""
        if not self._options.api_key:
            raise provider_errors.unauthorized(NAME, TITLE, KEY_VARIABLE, "no key is set")
        options = self._options
        return {
            "api_key": options.api_key,
            "domain": options.domain or None,
            "api_url": options.api_url or None,
            "sandbox_url": options.sandbox_url or None,
            "request_timeout": options.timeout_s,
            "retries": _RETRIES,
        }

    def image(self, names: Sequence[str]) -> str:
        for name in names:
            plain = name.removesuffix(":latest")
            for candidate in (name, plain):
                if candidate in self._options.templates:
                    return self._options.templates[candidate]
        # One of our aliases has a target, which is an image of a registry.
        return self._options.template if len(names) > 1 else names[0].removesuffix(":latest")

    async def check(self) -> Readiness:
        with _translated():
            await e2b.AsyncSandbox.list(limit=1, **self._api).next_items()
        line = Requirement("credentials", True, f"accepted; template {self._options.template}")
        return Readiness(True, requirements=(line,))

    async def start(self, order: MachineOrder) -> str:
        with _translated(order.image):
            machine = await e2b.AsyncSandbox.create(
                template=order.image,
                timeout=int(order.lifetime_s),
                metadata=dict(order.labels),
                allow_internet_access=order.network == "full",
                network={"allow_public_traffic": False},
                idempotency_key=f"{self._owner}-{host_label(order.sandbox_id)}",
                **self._api,
            )
        with _translated():
            _check_id(machine.sandbox_id)
            self._addresses[machine.sandbox_id] = self._address(machine, order.port)
            files = {**order.files, _START: _start_script(order).encode()}
            await machine.files.write_files(
                [{"path": _STAGE + path, "data": data} for path, data in files.items()],
                user=_ROOT,
            )
            await self._run_gate(machine, order)
        return machine.sandbox_id

    async def _run_gate(self, machine: e2b.AsyncSandbox, order: MachineOrder) -> None:
        """Start the command, and return when its port answers. Raise why it has ended."""
        output = ""

        def note(text: str) -> None:
            nonlocal output
            output = (output + text)[:_SAID_CHARS]

        command = await machine.commands.run(
            _script(order),
            background=True,
            user=_ROOT,
            cwd="/",
            timeout=0,
            on_stderr=note,
            # The programs are those of the template: they may print without end.
            retain_output=False,
        )
        ended = asyncio.ensure_future(command.wait())
        answers = asyncio.ensure_future(self._answers(machine.sandbox_id))
        try:
            await asyncio.wait({ended, answers}, return_when=asyncio.FIRST_COMPLETED)
            if not answers.done():
                code = await _exit_code(ended)
                raise _gate_ended(code, output)
            await answers
        finally:
            ended.cancel()
            answers.cancel()
            done, _ = await asyncio.wait({ended, answers}, timeout=_CANCEL_S)
            for task in done:
                if not task.cancelled():
                    task.exception()
            # It runs on. The stream of its output is closed by the same library.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CANCEL_S):
                    await command.disconnect()

    async def _answers(self, machine_id: str) -> None:
        while True:
            try:
                await (await self._open(machine_id)).aclose()
            except OSError:
                await asyncio.sleep(_RETRY_S)
            else:
                return

    async def find(self, sandbox_id: SandboxId) -> str | None:
        return (await self._listed({LABEL_OWNER: self._owner, LABEL_ID: sandbox_id})).get(
            sandbox_id
        )

    async def machines(self) -> Mapping[SandboxId, str]:
        return await self._listed({LABEL_OWNER: self._owner})

    async def _listed(self, labels: dict[str, str]) -> dict[SandboxId, str]:
        sandboxes: dict[SandboxId, str] = {}
        with _translated():
            query = e2b.SandboxQuery(metadata=labels)
            pages = e2b.AsyncSandbox.list(query=query, limit=_PAGE, **self._api)
            for _ in range(_MAX_PAGES):
                if not pages.has_next:
                    break
                for sandbox in await pages.next_items():
                    metadata = sandbox.metadata or {}
                    the_id = metadata.get(LABEL_ID, "")
                    # The answer is checked: other installations have sandboxes there too.
                    is_ours = is_sandbox_id(the_id) and labels.items() <= metadata.items()
                    if is_ours and is_machine_id(sandbox.sandbox_id):
                        sandboxes[SandboxId(the_id)] = sandbox.sandbox_id
            if pages.has_next:
                reason = f"the list of its sandboxes has more than {_MAX_PAGES} pages"
                raise provider_errors.outage(NAME, TITLE, reason)
        return sandboxes

    async def connect(self, machine_id: str) -> ByteStream:
        try:
            return await self._open(machine_id)
        except websocket_stream.RefusedWebSocket:
            await self._check_gate(machine_id)
            raise

    async def _check_gate(self, machine_id: str) -> None:
        """Raise SandboxLost if the gate has ended: E2B keeps a sandbox whose runner ended."""
        with _translated(machine_id=machine_id):
            machine = await e2b.AsyncSandbox.connect(
                machine_id, timeout=_CONNECT_TIMEOUT_S, **self._api
            )
            running = await machine.commands.list()
        if not any(_GATE_MODE in " ".join((process.cmd, *process.args)) for process in running):
            raise SandboxLost(
                f"the runner in E2B's sandbox {machine_id} has ended", hint="create a new one"
            )

    async def _open(self, machine_id: str) -> ByteStream:
        _check_id(machine_id)
        address = self._addresses.get(machine_id)
        if address is None:
            with _translated(machine_id=machine_id):
                machine = await e2b.AsyncSandbox.connect(
                    machine_id, timeout=_CONNECT_TIMEOUT_S, **self._api
                )
                _check_id(machine.sandbox_id)
                address = self._address(machine, PORT)
            self._addresses[machine_id] = address
        if self._session is None:
            self._session = new_http_session()
        try:
            return await websocket_stream.connect(
                self._session, address.url, address.headers, self._options.timeout_s
            )
        except websocket_stream.RefusedWebSocket:
            # The next attempt asks E2B again: the token may be another one by then.
            self._addresses.pop(machine_id, None)
            raise

    def _address(self, machine: e2b.AsyncSandbox, port: int) -> _Address:
        # A host name has no underscore, which ids of our daemons have.
        host = machine.get_host(port).replace("_", "-")
        headers = {"E2b-Sandbox-Id": machine.sandbox_id, "E2b-Sandbox-Port": str(port)}
        token = machine.traffic_access_token or ""
        if not (host + token).isascii() or not (host + token).isprintable():
            raise provider_errors.outage(NAME, TITLE, "the address of a sandbox is not valid")
        if token:
            headers[_TRAFFIC] = token
        if not self._options.sandbox_url:
            return _Address(f"https://{host}/", headers)
        # One address serves all sandboxes, and the name selects one.
        there = urlsplit(self._options.sandbox_url)
        return _Address(
            urlunsplit((there.scheme, there.netloc, "/", "", "")), {**headers, "Host": host}
        )

    async def stop(self, machine_id: str) -> None:
        _check_id(machine_id)
        self._addresses.pop(machine_id, None)
        with _translated():
            await e2b.AsyncSandbox.kill(sandbox_id=machine_id, **self._api)

    async def aclose(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _check_id(machine_id: str) -> None:
    # The SDK makes URLs and host names of it.
    if not is_machine_id(machine_id):
        raise provider_errors.outage(NAME, TITLE, "the id of a sandbox is not valid")


def _script(order: MachineOrder) -> str:
    """Return what moves the files to their places and becomes the command."""
    files = (*order.files, _START)
    places = sorted({posixpath.dirname(path) for path in files})
    moves = (shlex.join(("mv", _STAGE + path, path)) for path in files)
    return "\n".join(
        (
            "set -e",
            shlex.join(("mkdir", "-p", *places)),
            *moves,
            shlex.join(("chmod", "755", *order.programs)),
            shlex.join(("rm", "-rf", _STAGE)),
            f"exec {shlex.join(('sh', _START, *order.command))}",
        )
    )


def _start_script(order: MachineOrder) -> str:
    """Return what sets the variables of a request. E2B starts commands with bash, which would
    evaluate some of them, such as BASH_ENV, as root.
    """
    pairs = (shlex.quote(f"{name}={value}") for name, value in order.env.items())
    return f'rm -f "$0"\nexec env {" ".join(pairs)} "$@"\n'


async def _exit_code(ended: asyncio.Future[Any]) -> int:
    try:
        await ended
    except CommandExitException as exc:
        return int(exc.exit_code)
    return 0


def _gate_ended(code: int, output: str) -> BackendUnavailable:
    reason = one_line(output) or "it said nothing"
    return BackendUnavailable(
        f"the gate ended in the sandbox with status {code}: {reason}",
        hint="use a template with a user root; if its processors differ from this machine's, "
        "set backends.e2b.programs_dir",
        backend=NAME,
    )


# How the SDK fails at an answer of another form than it should have.
_MISREAD: Final = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RecursionError,
    httpx.InvalidURL,
)


@contextlib.contextmanager
def _translated(image: str = "", machine_id: str = "") -> Iterator[None]:
    """Raise our errors in place of the SDK's. Cancellation and our own pass."""
    try:
        yield
    except SandkastenError:
        raise
    except e2b.AuthenticationException as exc:
        raise provider_errors.unauthorized(NAME, TITLE, KEY_VARIABLE, str(exc)) from exc
    except e2b.RateLimitException as exc:
        raise provider_errors.rate_limited(NAME, TITLE, reason=str(exc)) from exc
    except (e2b.SandboxNotFoundException, e2b.SandboxNotRunningException) as exc:
        raise SandboxLost(
            f"E2B has no sandbox {machine_id}".rstrip(), hint="create a new one"
        ) from exc
    except e2b.SandboxException as exc:
        raise _of_status(exc, image) from exc
    except (httpx.HTTPError, OSError, *_MISREAD) as exc:
        message = str(exc) or type(exc).__name__
        raise provider_errors.outage(NAME, TITLE, message) from exc
    except Exception as exc:
        if type(exc) is not Exception and not type(exc).__module__.startswith(_TRANSPORTS):
            raise
        raise provider_errors.outage(NAME, TITLE, str(exc)) from exc


# The SDK raises a plain Exception for an empty answer, and lets those of its transports through.
_TRANSPORTS: Final = ("e2b", "pyqwest", "connectrpc", "protobuf")
_UNAUTHORIZED: Final = frozenset({401, 403})
_NOT_FOUND: Final = 404
# Answers of E2B for a template that belongs to others or to another cluster, and of a daemon of
# Sandkasten that can neither find nor fetch it.
_NO_TEMPLATE: Final = frozenset({400, 403, 502})


def _of_status(exc: e2b.SandboxException, image: str) -> SandkastenError:
    message = str(exc)
    if image and _is_about_template(exc.status_code, message, image):
        return ImageNotFound(
            f"E2B has no template {image}: {one_line(message)}",
            hint=f"name another template than {image} as the image, or correct "
            "backends.e2b.template and backends.e2b.templates",
            image=image,
        )
    if exc.status_code in _UNAUTHORIZED:
        return provider_errors.unauthorized(NAME, TITLE, KEY_VARIABLE, message)
    return provider_errors.outage(NAME, TITLE, message)


def _is_about_template(status: int | None, message: str, image: str) -> bool:
    """Return whether a create failed because of its template. Nothing else that it names can be
    missing.
    """
    names_it = "template" in message.replace(image, "").lower()
    return status == _NOT_FOUND or (status in _NO_TEMPLATE and names_it)
