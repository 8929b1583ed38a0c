"""What `doctor` reports about images, with the reason where they do not work."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from sandkasten_runtime.backends.local import probe
from sandkasten_runtime.backends.local.backend import LocalBackend
from sandkasten_runtime.linux import host_requirements, launcher
from sandkasten_runtime.linux.programs import Programs
from sandkasten_runtime.linux.state_layout import Layout
from sandkasten_runtime.linux.storage import host_root, mountinfo
from tests.security.harness import ROOT

if TYPE_CHECKING:
    from pathlib import Path


def test_the_host_supports_overlayfs(tmp_path: Path) -> None:
    readiness = asyncio.run(LocalBackend(tmp_path).probe())
    found = {line.name: line for line in readiness.requirements}
    assert found["network"].ok, found["network"]
    how = "overlay over idmapped layers" if ROOT else "overlay in a user namespace"
    assert (found["images"].ok, found["images"].state) == (True, how)
    assert found["private host image"].ok
    # The trial leaves nothing.
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", [False, pytest.param(True, marks=pytest.mark.root)])
def test_the_host_can_give_a_network(device: bool) -> None:
    line = host_requirements.network(Programs.found(None, None), device=device)
    assert (line.name, line.ok) == ("network", True), line


def test_an_egress_program_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    egress = tmp_path / "sandkasten-egress"
    egress.touch(mode=0o644)
    line = host_requirements.network(replace(Programs.found(None, None), egress=egress))
    assert (line.ok, line.required) == (False, False)
    assert line.state == "not possible: sandkasten-egress is missing or cannot be run"


def test_a_host_without_a_network_is_ready_with_the_reason(tmp_path: Path) -> None:
    """The kernel makes no network namespace here: it has a limit for each user namespace."""
    programs = Programs.found(None, None)
    limited = tmp_path / "launch"
    limited.write_text(
        "#!/bin/sh\nexec unshare --user --map-root-user sh -c "
        f"'echo 0 > /proc/sys/user/max_net_namespaces; exec {programs.launcher}'\n"
    )
    limited.chmod(0o755)
    line = host_requirements.network(replace(programs, launcher=limited))
    assert (line.ok, line.required) == (False, False)
    assert line.state == "not possible: make a network namespace: No space left on device"
    assert "nf_tables" in line.remedy


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
    assert launcher.launch(programs.launcher, plan) == launcher.Launched(0)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["lower", "stage", "upper"]


def test_a_directory_that_cannot_be_overlaid_is_shown_itself(tmp_path: Path) -> None:
    for name in ("lower", "upper", "stage"):
        (tmp_path / name).mkdir()
    plan = probe.trial_plan(str(tmp_path), root=ROOT)
    # The kernel accepts no lower directory whose names it compares in a way of its own.
    plan["private"] = [
        {"source": "/usr", "name": "usr"},
        {"source": "/proc/sys", "name": "settings"},
    ]
    launched = launcher.launch(Programs.found(None, None).launcher, plan)
    assert launched == launcher.Launched(0, ("settings",))


def test_directories_with_mounts_below_are_shared_and_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = host_root.look()
    assert "usr" in found.private
    assert found.shared == ()
    assert found.source("usr", "/stage") == "/stage/usr"
    below = mountinfo.MountEntry("/usr/share/big", "8:1", "ext4", ())
    monkeypatch.setattr(mountinfo, "own", lambda: [below])
    found = host_root.look()
    assert "usr" not in found.private
    assert found.shared == ("usr",)
    assert found.source("usr", "/stage") == "/usr"
    (line,) = [
        line
        for line in probe._overlays(Layout(tmp_path), Programs.found(None, None), root=ROOT)
        if line.name == "private host image"
    ]
    assert (line.ok, line.required) == (False, False)
    assert line.state.startswith("/usr cannot be overlaid (mounts below it)")
    assert host_root.sharing(found.shared)[0].startswith("/usr has no overlay of its own here")
    assert host_root.sharing(()) == ()
