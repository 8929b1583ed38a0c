"""The dashboard in Chromium, driven by Playwright, on a real daemon with the local backend."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests import environments
from tests.client.http.served import served
from tests.dashboard.scenarios import played
from tests.patience import FAR_TOO_LATE_S

ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "server" / "src" / "sandkasten_server" / "_dashboard"
pytestmark = [
    pytest.mark.root,
    pytest.mark.long(reason="a browser takes a minute"),
    pytest.mark.timeout(10 * FAR_TOO_LATE_S),
]


@pytest.fixture(scope="module")
def home():
    return environments.dashboard()


@pytest.fixture
def daemon(tmp_path):
    with served(tmp_path / "data", backend="local", SANDKASTEN_RECORDING_ENABLED="true") as one:
        yield one


@pytest.mark.promise("P88")
def test_a_person_uses_a_session_from_its_creation_to_its_end(daemon):
    played("session", daemon)


@pytest.mark.promise("P88")
def test_a_thousand_sessions_are_fast_and_the_first_view_is_small(daemon):
    told = json.loads(played("many", daemon))
    assert told["first_view_bytes"] <= 300_000


@pytest.mark.promise("P89")
def test_a_hostile_sandbox_does_nothing_to_the_page(daemon):
    played("hostile", daemon)


def test_the_built_files_are_those_of_the_sources(home, tmp_path):
    vite = home / "node_modules" / "vite" / "bin" / "vite.js"
    subprocess.run(
        [environments.node(), str(vite), "build", "--outDir", str(tmp_path), "--logLevel", "error"],
        cwd=home,
        check=True,
        timeout=FAR_TOO_LATE_S,
    )
    made = {one.name: one.read_bytes() for one in tmp_path.iterdir()}
    kept = {one.name: one.read_bytes() for one in BUILT.iterdir()}
    kept.pop("sources.sha256")
    assert made == kept, "run: make dashboard"
