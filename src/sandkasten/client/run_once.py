"""One call, one answer: code in, result out, and no sandbox left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandkasten.client.blocking.twins import waiting_alone
from sandkasten.client.caller_input import bytes_of, names_of, one_workspace, seconds_of
from sandkasten.client.results import Number, RunResult, run_result_of
from sandkasten.client.server.server_pool import connect, place_of
from sandkasten.model.sandbox.oneshot_values import RunRequest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike


async def run_async(
    code: str | bytes,
    runtime: str = "python",
    *,
    files: Mapping[str, str | bytes] | None = None,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: str | bytes | None = None,
    timeout_ms: float | None = None,
    timeout_seconds: float | None = None,
    artifacts: Sequence[str] = (),
    image: str | None = None,
    limits: Mapping[str, Number] | None = None,
    profile: str | None = None,
    workspace: str | None = None,
    workspace_mode: str | None = None,
    workspace_id: str | None = None,
    mounts: Sequence[str] = (),
    pip_packages: Sequence[str] = (),
    npm_packages: Sequence[str] = (),
    backend: str | None = None,
    isolation: str | None = None,
    data_dir: str | PathLike[str] | None = None,
    url: str | None = None,
    api_key: str | None = None,
) -> RunResult:
    """Run a piece of code in a sandbox of its own that is gone afterwards.

    `files` are written first, `artifacts` are globs of files to bring back; both relative to
    the workspace. Code that fails is a result; only what could not be run raises. With
    `workspace` the run works in the workspace of that name, and what it writes there stays.
    `pip_packages` and `npm_packages` are installed before, once; the code has no network.
    With `url` (or SANDKASTEN_URL) a daemon runs it, else this process does.
    """
    transport = await connect(place_of(data_dir, backend, url, api_key))
    request = RunRequest(
        code=code,
        runtime=runtime,
        args=tuple(args),
        env=env or {},
        files=files or {},
        stdin=bytes_of(stdin, "stdin"),
        timeout_s=seconds_of(timeout_ms, timeout_seconds),
        artifacts=tuple(artifacts),
        image=image,
        limits=limits or {},
        profile=profile,
        backend=backend,
        workspace_id=one_workspace(workspace, workspace_id),
        workspace_mode=workspace_mode,
        mounts=names_of(mounts, "mounts"),
        pip_packages=names_of(pip_packages, "pip_packages"),
        npm_packages=names_of(npm_packages, "npm_packages"),
        isolation=isolation,
    )
    return run_result_of(await transport.run(request))


run = waiting_alone("run", run_async)
