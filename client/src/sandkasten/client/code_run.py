"""Runs a piece of code in a sandbox that already exists.

Chooses the program of a runtime; everything else is the sandbox's own `write`, `exec` and `remove`.
An unknown runtime is InvalidRequest, a missing program CommandNotFound; code that fails is a
result.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from sandkasten.client.results import Result, RunResult
from sandkasten.errors import InvalidRequest
from sandkasten.model.language_runtimes import RUNTIME_NAMES, Runtime, runtime_named
from sandkasten.model.sandbox.limit_names import public_limits
from sandkasten.model.spelling import did_you_mean, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sandkasten.client.sandbox import AsyncSandbox


def runtime_of(name: str) -> Runtime:
    runtime = runtime_named(name)
    if runtime is None:
        raise InvalidRequest(
            f"{shown(str(name))} is not a valid runtime",
            hint=did_you_mean(str(name), RUNTIME_NAMES),
            field="runtime",
        )
    return runtime


async def run_code(
    box: AsyncSandbox,
    code: str | bytes,
    runtime: str,
    *,
    files: Mapping[str, str | bytes] | None,
    args: Sequence[str],
    env: Mapping[str, str] | None,
    stdin: str | bytes | None,
    timeout_ms: float | None,
    timeout_seconds: float | None,
) -> RunResult:
    chosen = runtime_of(runtime)
    for path, content in (files or {}).items():
        await box.write(path, content)
    # In the workspace, because imports beside the main file are found there; hidden and with
    # its own name, because the workspace is the caller's.
    main = f"/workspace/.run-{os.urandom(6).hex()}{chosen.suffix}"
    await box.write(main, code)
    try:
        result = await box.exec(
            [chosen.program, main, *args],
            env=env,
            stdin=stdin,
            timeout_ms=timeout_ms,
            timeout_seconds=timeout_seconds,
        )
    finally:
        await box.remove(main, missing_ok=True)
    info = box.known or await box.info()
    return RunResult(
        ok=result.ok,
        runtime=chosen.name,
        exit_code=result.exit_code,
        signal=result.signal,
        duration_ms=result.duration_ms,
        stdout_data=result.stdout_data,
        stderr_data=result.stderr_data,
        output_data=result.output_data,
        truncated=result.truncated,
        timed_out=result.timed_out,
        oom_killed=result.oom_killed,
        artifacts=(),
        limits=public_limits(info.limits),
        image=info.image,
        sandbox_id=info.id,
        backend=info.backend,
        error=_sentence(result),
        why=result.why,
        warnings=info.warnings,
    )


def _sentence(result: Result) -> str | None:
    if result.ok:
        return None
    if result.why is not None:
        return result.why.message
    if result.exit_code is None:
        return f"the code was ended by signal {result.signal}"
    return f"the code ended with exit status {result.exit_code}"
