"""The blocking classes: thin twins of the asynchronous ones.

This has no logic: every method is the asynchronous method of the same name (see `twins.py`), with
the same arguments, results and errors. May be used from several threads at once. A sandbox that is
not closed ends by its idle time, never by the garbage collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from sandkasten.client.blocking import loop_thread
from sandkasten.client.blocking.stream_pump import Held, Pump
from sandkasten.client.blocking.twins import arguments_of, giving, waiting, waiting_for
from sandkasten.client.contexts import Contexts
from sandkasten.client.images import AsyncImages
from sandkasten.client.process import AsyncExecStream, AsyncProcess, AsyncTerminal, AsyncWatch
from sandkasten.client.sandbox import AsyncSandbox
from sandkasten.errors import SandkastenError

if TYPE_CHECKING:
    import builtins
    from collections.abc import Mapping
    from os import PathLike
    from types import TracebackType

    from sandkasten.client.port_forward import AsyncPortForward
    from sandkasten.client.results import Output, Result
    from sandkasten.model.files.file_entries import Change
    from sandkasten.model.sandbox.sandbox_values import Info


class ExecStream:
    """Output of one command as it comes; `result` is set when iteration has ended."""

    def __init__(self, twin: AsyncExecStream) -> None:
        self._twin = twin
        self._pump: Pump[Output] = Pump(twin)

    @property
    def result(self) -> Result:
        return self._twin.result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Output:
        return self._pump.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop following. The command goes on."""
        self._pump.close()

    def wait(self) -> Result:
        """Drop the rest of the output and wait for the end."""
        for _ in self:
            pass
        return self.result


class Watch:
    """Changes to files as they happen, until closed."""

    def __init__(self, twin: AsyncWatch) -> None:
        self._pump: Pump[Change] = Pump(twin)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Change:
        return self._pump.take()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._pump.close()


class Process:
    """A command that runs in the background of its sandbox."""

    def __init__(self, twin: AsyncProcess) -> None:
        self._twin = twin

    def __repr__(self) -> str:
        return repr(self._twin).removeprefix("Async")

    @property
    def exec_id(self) -> str:
        return self._twin.exec_id

    poll = waiting(AsyncProcess.poll)
    wait = waiting(AsyncProcess.wait)
    output = waiting(AsyncProcess.output)
    follow = giving(ExecStream, AsyncProcess.follow)
    signal = waiting(AsyncProcess.signal)
    kill = waiting(AsyncProcess.kill)
    write_stdin = waiting(AsyncProcess.write_stdin)
    close_stdin = waiting(AsyncProcess.close_stdin)


class Terminal:
    """A program on its own terminal, from `with` to the end of the block."""

    def __init__(self, twin: AsyncTerminal) -> None:
        self._twin = twin
        self._held = Held(twin)
        self._pump: Pump[bytes] = Pump(twin)

    def __enter__(self) -> Self:
        self._held.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._pump.close()
        self._held.leave()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> bytes:
        return self._pump.take()

    @property
    def exec_id(self) -> str:
        return self._twin.exec_id

    send = waiting(AsyncTerminal.send)
    resize = waiting(AsyncTerminal.resize)
    signal = waiting(AsyncTerminal.signal)
    result = waiting(AsyncTerminal.result)


class PortForward:
    """A listener on 127.0.0.1 for a port of a sandbox, until the end of its `with` block."""

    def __init__(self, twin: AsyncPortForward) -> None:
        self._twin = twin
        self._held = Held(twin)

    def __repr__(self) -> str:
        return repr(self._twin).removeprefix("Async")

    def __enter__(self) -> Self:
        self._held.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self._held.leave()

    @property
    def port(self) -> int:
        return self._twin.port

    @property
    def local_port(self) -> int:
        """Its port on this machine."""
        return self._twin.local_port

    @property
    def address(self) -> str:
        """Host and port on this machine, as `127.0.0.1:15432`."""
        return self._twin.address


class Sandbox:
    """An isolated Linux environment with a workspace and shells.

    Created when constructed; `with Sandbox() as box` destroys it at the end of the block. One that
    is not closed ends by its idle time.
    """

    _twin: AsyncSandbox

    @arguments_of(AsyncSandbox)
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Create it. `session_key` finds the live sandbox of that key or creates it.

        `workspace` names one that outlives the sandbox, created at first use and used by one
        sandbox at a time unless `workspace_mode` is "shared". `snapshot` is the id or name of the
        snapshot to start from. `mounts` names the operator's host mounts. `pip_packages` and
        `npm_packages` are installed before it starts; it needs no network for them. With `url` (or
        SANDKASTEN_URL) that daemon creates it, otherwise the daemon that serves the data directory,
        otherwise this process.
        """
        self._twin = AsyncSandbox(*args, **kwargs)
        loop_thread.run(self._twin.begin())

    @classmethod
    def attach(
        cls,
        id: str,
        *,
        destroy_on_exit: bool = False,
        data_dir: str | PathLike[str] | None = None,
        backend: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
    ) -> Self:
        """Return an existing sandbox. A `with` block destroys it only with `destroy_on_exit`."""
        attaching = AsyncSandbox.attach(
            id,
            destroy_on_exit=destroy_on_exit,
            data_dir=data_dir,
            backend=backend,
            url=url,
            api_key=api_key,
        )
        return cls._of(loop_thread.run(attaching))

    @classmethod
    @arguments_of(AsyncSandbox.list)
    def list(cls, **kwargs: Any) -> builtins.list[Info]:
        """Return every sandbox, oldest first."""
        return loop_thread.run(AsyncSandbox.list(**kwargs))

    def __repr__(self) -> str:
        return repr(self._twin).removeprefix("Async")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        loop_thread.run(self._twin.__aexit__(kind, error, trace))

    @property
    def id(self) -> str:
        return self._twin.id

    def detach(self) -> str:
        """Keep it alive after the `with` block; returns its id, for `attach`."""
        return self._twin.detach()

    close = waiting(AsyncSandbox.close)
    info = waiting(AsyncSandbox.info)
    update = waiting(AsyncSandbox.update)
    pause = waiting(AsyncSandbox.pause)
    resume = waiting(AsyncSandbox.resume)
    snapshot = waiting(AsyncSandbox.snapshot)

    def fork(
        self,
        count: int = 1,
        *,
        ttl_seconds: float | None = None,
        idle_timeout_seconds: float | None = None,
        lifetime_seconds: float | None = None,
        labels: Mapping[str, str] | None = None,
        network: str | Mapping[str, Any] | None = None,
    ) -> builtins.list[Sandbox | SandkastenError]:
        """Create copies of it, all from one moment; it is stopped once and runs on.

        Each has its own id, and what a snapshot keeps. Without arguments, times, labels and network
        are those of this sandbox; `labels` are added to them. The list has an error in place of
        each copy that could not be created.
        """
        results = loop_thread.run(
            self._twin.fork(
                count,
                ttl_seconds=ttl_seconds,
                idle_timeout_seconds=idle_timeout_seconds,
                lifetime_seconds=lifetime_seconds,
                labels=labels,
                network=network,
            )
        )
        return [
            result if isinstance(result, SandkastenError) else self._of(result)
            for result in results
        ]

    @classmethod
    def _of(cls, twin: AsyncSandbox) -> Self:
        box = cls.__new__(cls)
        box._twin = twin
        return box

    reclaim = waiting(AsyncSandbox.reclaim)
    network = waiting(AsyncSandbox.network)
    network_log = waiting(AsyncSandbox.network_log)
    url = waiting(AsyncSandbox.url)
    revoke_url = waiting(AsyncSandbox.revoke_url)
    revoke_urls = waiting(AsyncSandbox.revoke_urls)
    forward = giving(PortForward, AsyncSandbox.forward)
    stats = waiting(AsyncSandbox.stats)
    processes = waiting(AsyncSandbox.processes)

    exec = waiting(AsyncSandbox.exec)
    exec_stream = giving(ExecStream, AsyncSandbox.exec_stream)
    start = waiting_for(Process, AsyncSandbox.start)
    process = giving(Process, AsyncSandbox.process)
    execs = waiting(AsyncSandbox.execs)
    close_shell = waiting(AsyncSandbox.close_shell)
    terminal = giving(Terminal, AsyncSandbox.terminal)
    run = waiting(AsyncSandbox.run)
    run_code = waiting(AsyncSandbox.run_code)

    @property
    def contexts(self) -> Contexts:
        """The code contexts of this sandbox."""
        return Contexts(self._twin.contexts)

    write = waiting(AsyncSandbox.write)
    read = waiting(AsyncSandbox.read)
    ls = waiting(AsyncSandbox.ls)
    stat = waiting(AsyncSandbox.stat)
    exists = waiting(AsyncSandbox.exists)
    mkdir = waiting(AsyncSandbox.mkdir)
    move = waiting(AsyncSandbox.move)
    remove = waiting(AsyncSandbox.remove)
    upload = waiting(AsyncSandbox.upload)
    download = waiting(AsyncSandbox.download)
    upload_tar = waiting(AsyncSandbox.upload_tar)
    download_tar = waiting(AsyncSandbox.download_tar)
    stage = waiting(AsyncSandbox.stage)
    publish = waiting(AsyncSandbox.publish)
    watch = giving(Watch, AsyncSandbox.watch)


class Images:
    """The images of the store.

    A name is `repository[:tag]`, or an id (`sha256:…`), or a unique prefix of one. Progress is
    reported on another thread, so callbacks must be quick.
    """

    @arguments_of(AsyncImages)
    def __init__(self, **kwargs: Any) -> None:
        self._twin = AsyncImages(**kwargs)

    list = waiting(AsyncImages.list)
    inspect = waiting(AsyncImages.inspect)
    import_archive = waiting(AsyncImages.import_archive)
    export = waiting(AsyncImages.export)
    pull = waiting(AsyncImages.pull)
    build_debian = waiting(AsyncImages.build_debian)
    build_known = waiting(AsyncImages.build_known)
    build_steps = waiting(AsyncImages.build_steps)
    build = waiting(AsyncImages.build)
    tag = waiting(AsyncImages.tag)
    remove = waiting(AsyncImages.remove)
    collect = waiting(AsyncImages.collect)
    usage = waiting(AsyncImages.usage)
