"""Installations take turns, and one tenant never has all places."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandkasten.model.images.resolved_image import Image
from sandkasten.model.sandbox.package_sets import Packages
from sandkasten_build.packages.package_rules import PackageRules
from sandkasten_build.packages.provisioner import Provisioner

pytestmark = pytest.mark.anyio


async def test_one_tenant_cannot_take_every_place(tmp_path, monkeypatch):
    provisioner = Provisioner(tmp_path / "packages", PackageRules(), {})
    started: list[str] = []
    blocked, full = asyncio.Event(), asyncio.Event()

    async def build(key: str, ecosystem: str, specs: tuple[str, ...], *_: object) -> None:
        started.append(specs[0])
        if len(started) == 3:
            full.set()
        if specs[0].startswith("slow"):
            await blocked.wait()

    monkeypatch.setattr(provisioner, "_make_in_time", build)

    async def provide(name: str, tenant: str) -> None:
        await provisioner.provide(Packages(pip=(name,)), image, "local", sites, tenant)

    sites: Any = None  # not used by this build
    image = Image(name="host", kind="host")
    slow = [asyncio.create_task(provide(f"slow{number}", "a")) for number in range(4)]
    try:
        await asyncio.wait_for(full.wait(), 30)
        await asyncio.wait_for(provide("quick", "b"), 30)
        assert len(started) == 4
    finally:
        blocked.set()
        await asyncio.gather(*slow)
    assert len(started) == 5
