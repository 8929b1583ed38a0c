"""One-shots of Python whose interpreter waits with its modules, held against a bare process.

Both have the same python3 and the same pandas, from wheels that are fetched once. Between two turns
there is time to make the next sandbox: what is measured is a run that comes when one is ready.
"""

from __future__ import annotations

import asyncio
import subprocess
import time
from typing import TYPE_CHECKING, Final

from benchmarks.agents import opened
from sandkasten.model.sandbox.oneshot_values import RunRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples
    from sandkasten_runtime.engine.engine import Engine

PLAIN: Final = "one-shot print(1+1), interpreter started"
PANDAS: Final = "one-shot import pandas, imported before"
OURS, BARE = "sandkasten", "bare subprocess"
_PYTHON: Final = "/usr/bin/python3"
_PACKAGE: Final = "pandas"
_UNCOUNTED: Final = 3
_REFILL_S: Final = {PLAIN: 0.3, PANDAS: 2.5}


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    wheels, site = scratch / "pandas-wheels", scratch / "pandas-site"
    _pip("download", "--only-binary=:all:", "--dest", str(wheels), _PACKAGE)
    _pip("install", "--no-index", f"--find-links={wheels}", f"--target={site}", _PACKAGE)
    asyncio.run(_measure(samples, plan, scratch, wheels, site))


async def _measure(samples: Samples, plan: Plan, scratch: Path, wheels: Path, site: Path) -> None:
    async with opened(scratch / "interpreters") as engine:
        await _in_turns(samples, plan, engine, PLAIN, "print(1+1)", SandboxOptions(), {})
    flags = {"packages.find_links": str(wheels), "pool.python_modules": _PACKAGE}
    async with opened(scratch / "interpreters-pandas", **flags) as engine:
        options = SandboxOptions(pip_packages=(_PACKAGE,))
        env = {"PYTHONPATH": str(site)}
        await _in_turns(samples, plan, engine, PANDAS, f"import {_PACKAGE}", options, env)


async def _in_turns(
    samples: Samples,
    plan: Plan,
    engine: Engine,
    operation: str,
    code: str,
    options: SandboxOptions,
    env: dict[str, str],
) -> None:
    for number in range(-_UNCOUNTED, plan.rounds):
        began = time.perf_counter()
        result = await engine.run(RunRequest(code, options=options))
        own_ms = (time.perf_counter() - began) * 1000
        assert result.ok, result.stderr
        # The next sandbox is made meanwhile, and must not compete with the other's turn.
        await asyncio.sleep(_REFILL_S[operation])
        bare_ms = await asyncio.to_thread(_bare, code, env)
        if number >= 0:
            samples.add(operation, OURS, own_ms)
            samples.add(operation, BARE, bare_ms)


def _bare(code: str, env: dict[str, str]) -> float:
    began = time.perf_counter()
    subprocess.run([_PYTHON, "-c", code], env=env, check=True, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - began) * 1000


def _pip(*arguments: str) -> None:
    subprocess.run([_PYTHON, "-m", "pip", "--quiet", *arguments], check=True)
