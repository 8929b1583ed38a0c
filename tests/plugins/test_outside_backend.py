"""A backend of another distribution, installed with pip: the template of examples/backend-plugin.

Nothing of the project knows its name: this test looks where users would see it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sandkasten_contract.patience import removed_soon
from scripts.distributions import sources
from tests import imagekit
from tests.patience import FAR_TOO_LATE_S, PATIENCE_S
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Run = Callable[..., subprocess.CompletedProcess[str]]

ROOT = Path(__file__).parents[2]
SOURCES = [str(ROOT / source) for source in sources()]
TEMPLATE = ROOT / "examples" / "backend-plugin"
_CLI = str(Path(sys.executable).with_name("sandkasten"))
_LACKING = ("python3", "bash", "setsid", "git", "mkfifo")
# What Podman makes on its first use, wherever its storage is.
_OF_PODMAN = {Path("/run/libpod"), Path("/dev/shm/libpod_lock")}

pytestmark = [pytest.mark.timeout(900), pytest.mark.root, pytest.mark.slow]


def _install(project: Path, target: Path) -> None:
    """Install a distribution into a directory, as pip installs it anywhere."""
    quiet = ["--quiet", "--disable-pip-version-check", "--no-input", "--no-compile"]
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *quiet, *offline, "--target", target, project],
        check=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory into which the template and the contract are installed."""
    site = tmp_path_factory.mktemp("site")
    for project in (TEMPLATE, ROOT / "contract"):
        _install(project, site)
    return site


@pytest.fixture(scope="module")
def data() -> Path:
    # Podman allows 50 characters for a directory below it.
    return Path(tempfile.mkdtemp(prefix="skp-", dir="/var/tmp"))


@pytest.fixture(scope="module")
def environ(site: Path, data: Path) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if "SANDKASTEN" not in name},
        "PYTHONPATH": os.pathsep.join((str(site), *SOURCES)),
        "SANDKASTEN_DATA_DIR": str(data),
    }


@pytest.fixture(scope="module")
def run(data: Path, environ: dict[str, str]) -> Iterator[Run]:
    """Return a function that runs a program with the plugin and a data directory."""

    def run(
        *words: str, timeout_s: float = FAR_TOO_LATE_S, installed: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words],
            cwd=data,
            env=environ if installed else {**environ, "PYTHONPATH": os.pathsep.join(SOURCES)},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    before = {path for path in _OF_PODMAN if path.exists()}
    imported = run(_CLI, "image", "import", str(imagekit.busybox_tar()), "--name", "tiny")
    assert imported.returncode == 0, imported.stderr
    yield run
    run(_CLI, "rm", "--all")
    for path in _OF_PODMAN - before:
        subprocess.run(["rm", "-rf", path], check=True)
    removed_soon(data)


def test_template_has_at_most_200_lines() -> None:
    [module] = TEMPLATE.rglob("*.py")
    assert len(module.read_text().splitlines()) <= 200


def test_backend_is_in_doctor_and_settings(run: Run) -> None:
    reports = json.loads(run(_CLI, "doctor", "--all", "--json").stdout)["backends"]
    [podman] = [report for report in reports if report["name"] == "podman"]
    assert podman["ready"], podman
    assert podman["isolation"] == "standard"
    refused = run(_CLI, "--backend", "podmann", "create")
    assert "did you mean podman?" in refused.stderr


def test_plugin_that_cannot_be_used_is_a_warning(run: Run, site: Path) -> None:
    metadata = site / "broken-1.0.dist-info"
    metadata.mkdir()
    (metadata / "entry_points.txt").write_text("[sandkasten.backends]\nbroken = broken:PLUGIN\n")
    try:
        shown, doctor = run(_CLI, "config", "show"), run(_CLI, "doctor")
    finally:
        shutil.rmtree(metadata)
    sentence = "plugin broken (broken:PLUGIN) of the distribution broken cannot be imported"
    assert (shown.returncode, doctor.returncode) == (0, 0)
    for output in (shown.stderr, doctor.stderr):
        assert sentence in " ".join(output.split())


def test_sandbox_keeps_files_and_is_removed(run: Run) -> None:
    created = run(_CLI, "--backend", "podman", "create", "--image", "tiny")
    assert created.returncode == 0, created.stderr
    sandbox = created.stdout.strip()
    written = run(_CLI, "exec", sandbox, "echo kept > file")
    assert written.returncode == 0, written.stderr
    read = run(_CLI, "exec", sandbox, "cat file; id -u; exit 7")
    assert (read.returncode, read.stdout) == (7, "kept\n1000\n")
    assert run(_CLI, "rm", sandbox).returncode == 0
    assert json.loads(run(_CLI, "ls", "--json").stdout) == []


def test_backend_works_in_a_daemon(run: Run, data: Path, environ: dict[str, str]) -> None:
    """A daemon has another event loop than an embedded engine."""
    command = [_CLI, "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, cwd=data, env=environ, stderr=subprocess.DEVNULL) as daemon:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while not (data / "daemon.sock").exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            on = (_CLI, "--url", f"unix://{data}/daemon.sock")
            created = run(*on, "--backend", "podman", "create", "--image", "tiny")
            assert created.returncode == 0, created.stderr
            sandbox = created.stdout.strip()
            assert run(*on, "exec", sandbox, "echo hi").stdout == "hi\n"
            assert run(*on, "rm", sandbox).returncode == 0
        finally:
            daemon.terminate()


def test_sandbox_of_an_uninstalled_plugin_is_removed_when_it_is_installed_again(run: Run) -> None:
    sandbox = run(_CLI, "--backend", "podman", "create", "--image", "tiny").stdout.strip()
    refused = run(_CLI, "rm", sandbox, installed=False)
    assert refused.returncode != 0
    assert "backend podman is not installed here" in refused.stderr
    listed = json.loads(run(_CLI, "ls", "--json", installed=False).stdout)
    assert [row["id"] for row in listed] == [sandbox]
    assert run(_CLI, "rm", sandbox).returncode == 0
    assert json.loads(run(_CLI, "ls", "--json").stdout) == []


def test_request_beyond_its_capabilities_is_refused(run: Run) -> None:
    refused = run(
        *(_CLI, "--backend", "podman", "create"),
        *("--image", "tiny", "--allow", "example.com", "--json"),
    )
    assert json.loads(refused.stdout)["code"] == "UNSUPPORTED_BY_BACKEND"


def test_backend_passes_the_contract(run: Run) -> None:
    lacking = [word for program in _LACKING for word in ("--lacks", program)]
    part = [] if LONG else ["-k", "test_port and not hundred"]
    result = run(
        *(
            sys.executable,
            "-m",
            "sandkasten_contract",
            "podman",
            "--image",
            "tiny",
            *lacking,
            *part,
        ),
        timeout_s=800,
    )
    assert result.returncode == 0, result.stdout[-4000:]
    assert " passed" in result.stdout
