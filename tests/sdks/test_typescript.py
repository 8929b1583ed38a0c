"""The TypeScript client on a real daemon, with the local backend and a scripted model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import environments
from tests.agents.agency import files_in, played
from tests.client.http.served import served
from tests.models.server import in_thread
from tests.platform_choice import LONG
from tests.sdks.typescript import node, variables

pytestmark = pytest.mark.root
ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs" / "guides" / "typescript.md"
FENCE = re.compile(r"^```ts\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def package():
    return environments.typescript()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory):
    home = tmp_path_factory.mktemp("typescript")
    files_in(home)
    with (
        in_thread(played) as model,
        served(
            home / "data",
            backend="local",
            SANDKASTEN_AGENTS_DIRS=str(home / "agents"),
            SANDKASTEN_WORKFLOWS_DIRS=str(home / "workflows"),
            SANDKASTEN_MODELS_BASE_URL=model.base_url,
            SANDKASTEN_RECORDING_ENABLED="true",
        ) as one,
    ):
        yield one


@pytest.mark.parametrize("file", ["commands", "stores"])
def test_the_client_does_everything_on_a_daemon(daemon, package, file):
    env = variables(daemon)
    if LONG:
        # Kernels take seconds to start, and tests/api has them in every run.
        env["SANDKASTEN_KERNEL"] = "1"
    # Without --test: its runner would hide which test does not end.
    node(f"dist-tests/{file}.test.js", cwd=package, env=env)


def test_every_public_class_is_documented_and_nothing_else_is_exported(package):
    program = "import * as s from 'sandkasten'; console.log(Object.keys(s).sort().join())"
    words = ("--input-type=module", "--eval", program)
    names = node(*words, cwd=package, env={}).stdout.strip().split(",")
    pages = (ROOT / "docs" / "reference" / "typescript.md").read_text()
    pages += (ROOT / "docs" / "reference" / "errors.md").read_text()
    assert [name for name in names if name not in pages] == ["ERROR_CLASSES"]


@pytest.mark.long(reason="it compiles the tests with their types")
def test_the_tests_use_the_types_of_the_client(package):
    environments.compile_typescript("--noEmit", "--project", "tests")


@pytest.mark.long(reason="it starts a daemon for the programs of the guide")
def test_the_programs_of_the_guide_run_as_written(package, tmp_path):
    place = package / "dist-tests" / "guide"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    programs = FENCE.findall(GUIDE.read_text())
    assert len(programs) == 5
    for number, program in enumerate(programs):
        (place / f"p{number}.ts").write_text(program)
    settings = {
        "extends": "../../tests/tsconfig.json",
        "compilerOptions": {"rootDir": ".", "outDir": "js"},
        "include": ["*.ts"],
    }
    (place / "tsconfig.json").write_text(json.dumps(settings))
    environments.compile_typescript("--project", str(place))
    for number in range(len(programs)):
        done = subprocess.run(
            [
                *("unshare", "--net", sys.executable, "-m", "tests.examples.alone"),
                *(str(tmp_path / f"data{number}"), environments.node(), f"{place}/js/p{number}.js"),
            ],
            cwd=tmp_path,
            env={
                "PATH": os.environ["PATH"],
                "PYTHONPATH": str(ROOT),
                "EXAMPLE_BACKEND": "local",
            },
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
