"""What `doctor` reports about images, with the reason where they do not work."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sandkasten.backends.local import LocalBackend, probe
from sandkasten.linux import launcher
from sandkasten.linux.programs import Programs
from tests.security.harness import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_host_supports_overlayfs(tmp_path: Path) -> None:
    readiness = asyncio.run(LocalBackend(tmp_path).probe())
    found = {line.name: line for line in readiness.requirements}
    how = "overlay over idmapped layers" if ROOT else "overlay in a user namespace"
    assert (found["images"].ok, found["images"].state) == (True, how)
    # The trial leaves nothing.
    assert list(tmp_path.iterdir()) == []


async def test_a_host_without_overlayfs_is_ready_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = probe.trial_plan

    def broken(place: str, *, root: bool) -> dict[str, object]:
        plan = real(place, root=root)
        # Layers on a file system that cannot be laid over: what an old kernel says of any.
        plan["root"] = {"layers": ["/proc", "/proc"], "writable": False, "places": []}
        return plan

    monkeypatch.setattr(probe, "trial_plan", broken)
    readiness = await LocalBackend(tmp_path).probe()
    (line,) = [line for line in readiness.requirements if line.name == "images"]
    assert not line.ok
    assert not line.required
    assert "(image)" in line.state
    assert "overlayfs" in line.remedy
    assert readiness.ready


def test_the_overlayfs_trial_runs_no_program(tmp_path: Path) -> None:
    for name in ("lower", "upper", "stage"):
        (tmp_path / name).mkdir()
    programs = Programs.found(None, None)
    plan = probe.trial_plan(str(tmp_path), root=ROOT)
    assert launcher.launch(programs.launcher, plan) == 0
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["lower", "stage", "upper"]
