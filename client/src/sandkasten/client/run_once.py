"""One-shot runs: code in, result out, and no sandbox left behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack

from sandkasten.client.blocking.twins import waiting_alone
from sandkasten.client.caller_input import check_keywords, takes
from sandkasten.client.results import RunResult, run_result_of
from sandkasten.client.server.daemon_or_embedded import place_of
from sandkasten.client.server.server_pool import connect
from sandkasten.model.request_spellings import (
    bytes_of,
    run_files,
    sandbox_options,
    timeout_of,
)
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxKeywords

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from os import PathLike

    RunFiles = Mapping[str, str | bytes | Mapping[str, str]] | Sequence[Mapping[str, str]]


@takes(SandboxKeywords)
async def run_async(
    code: str | bytes,
    runtime: str = "python",
    *,
    files: RunFiles | None = None,
    args: Sequence[str] = (),
    stdin: str | bytes | None = None,
    timeout_ms: float | None = None,
    timeout_seconds: float | None = None,
    artifacts: Sequence[str] = (),
    image: str | None = None,
    data_dir: str | PathLike[str] | None = None,
    url: str | None = None,
    api_key: str | None = None,
    **options: Unpack[SandboxKeywords],
) -> RunResult:
    """Run a piece of code in its own sandbox that is gone afterwards.

    `files` are written first, `artifacts` are globs of files to bring back; both relative to
    the workspace. A file `{"file_key": key}` comes from the file store of the daemon. Code that
    fails is a result; only what could not be run raises. With `workspace` the run works in the
    workspace of that name, and what it writes there stays. `pip_packages` and `npm_packages` are
    installed before; the code needs no network for them.
    With `url` (or SANDKASTEN_URL) that daemon runs it, otherwise the daemon that serves the data
    directory, otherwise this process.
    """
    check_keywords("run", SandboxKeywords, options)
    transport = await connect(place_of(data_dir, options.get("backend"), url, api_key))
    request = RunRequest(
        code=code,
        runtime=runtime,
        args=tuple(args),
        files=run_files(files),
        stdin=bytes_of(stdin, "stdin"),
        timeout_seconds=timeout_of({"timeout_ms": timeout_ms, "timeout_seconds": timeout_seconds}),
        artifacts=tuple(artifacts),
        options=sandbox_options({"image": image, **options}),
    )
    return run_result_of(await transport.run(request))


run = waiting_alone("run", run_async)
