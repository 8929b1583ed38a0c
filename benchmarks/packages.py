"""A sandbox with packages that were fetched before, held against one without any."""

from __future__ import annotations

import asyncio
import zipfile
from typing import TYPE_CHECKING, Final

from benchmarks.agents import opened
from benchmarks.turns import in_turns
from sandkasten.model.commands.exec_values import ExecRequest
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.plan import Plan
    from benchmarks.samples import Samples
    from sandkasten_runtime.engine.engine import Engine

FIRST: Final = "create with packages, first of their set"
CREATE: Final = "create with packages, fetched before"
WITHOUT: Final = "no packages"
_NAME: Final = "benchpack"


def measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    asyncio.run(_measure(samples, plan, scratch))


async def _measure(samples: Samples, plan: Plan, scratch: Path) -> None:
    folder = scratch / "wheels"
    folder.mkdir()
    _wheel(folder)
    links = {"packages.find_links": str(folder)}
    async with opened(scratch / "packages", **links) as engine:
        try:
            with samples.timed(FIRST, "sandkasten"):
                box = await engine.create(CreateRequest(SandboxOptions(pip_packages=(_NAME,))))
            code = ("python3", "-c", f"import {_NAME}")
            assert (await engine.exec(box.id, ExecRequest(code))).exit_code == 0
            turns = {
                "sandkasten": lambda: _create(engine, _NAME),
                WITHOUT: lambda: _create(engine),
            }
            await in_turns(
                *(samples, CREATE, turns),
                rounds=plan.rounds,
                plan=plan,
                after=lambda: _clear(engine),
            )
        finally:
            await _clear(engine)


async def _create(engine: Engine, *packages: str) -> None:
    await engine.create(CreateRequest(SandboxOptions(pip_packages=packages)))


async def _clear(engine: Engine) -> None:
    for info in await engine.list():
        await engine.destroy(info.id)


def _wheel(folder: Path) -> None:
    """The smallest there is: what a package weighs is no part of what is measured."""
    info = f"{_NAME}-1.0.dist-info"
    content = {
        f"{_NAME}.py": "",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    content[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in (*content, f"{info}/RECORD"))
    with zipfile.ZipFile(folder / f"{_NAME}-1.0-py3-none-any.whl", "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
