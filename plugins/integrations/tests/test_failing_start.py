"""An adapter whose start fails half-way leaves no sandbox, and raises what made it fail."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.conftest import DRIVES
from plugins.integrations.tests.frameworks import FRAMEWORKS
from tests import imagekit

if TYPE_CHECKING:
    from plugins.integrations.tests.conftest import RunsInFramework

DRIVE = DRIVES / "failing_start.py"


def _names(of: str) -> set[str]:
    """Return the keys of a table of the drive, which runs only beside a framework."""
    for line in ast.parse(DRIVE.read_text()).body:
        if isinstance(line, ast.Assign) and getattr(line.targets[0], "id", "") == of:
            constants = (
                node.value for node in ast.walk(line.value) if isinstance(node, ast.Constant)
            )
            return {str(name) for name in constants}
    raise AssertionError(of)


STARTING = [framework for framework in FRAMEWORKS if framework.module in _names("STARTS")]


def test_every_adapter_is_in_the_table():
    assert _names("STARTS") | _names("GIVEN") == {framework.module for framework in FRAMEWORKS}


@pytest.mark.promise("P82")
@pytest.mark.root
@pytest.mark.long("a framework installs a hundred packages")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("framework", STARTING, ids=lambda framework: framework.extra)
def test_each_step_of_a_start_that_fails_leaves_no_sandbox(
    in_framework: RunsInFramework, framework
):
    add = "import sandkasten; sandkasten.Images().import_archive({!r}, name='debian')"
    done = in_framework(framework.extra, "-c", add.format(str(imagekit.debian_tar())))
    assert done.returncode == 0, done.stderr
    words = ("-W", "ignore", str(DRIVE), framework.module)
    done = in_framework(framework.extra, *words, DEV_IMAGE="debian")
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    steps = [call for call, _, _ in report["rows"]]
    assert report == {"rows": [[call, f"failed: {call}", 0] for call in steps], "left": 0}
    assert len(steps) == STEPS.get(framework.extra, 0), steps


# Of the starts that do more than create a sandbox.
STEPS = {"inspect": 2, "autogen": 6}


@pytest.mark.promise("P82")
@pytest.mark.root
@pytest.mark.long("a framework installs a hundred packages")
@pytest.mark.timeout(1200)
def test_a_user_that_the_image_lacks_is_named(in_framework: RunsInFramework):
    add = "import sandkasten; sandkasten.Images().import_archive({!r}, name='debian')"
    done = in_framework("inspect", "-c", add.format(str(imagekit.debian_tar())))
    assert done.returncode == 0, done.stderr
    start = (
        "import asyncio, sandkasten\n"
        "from sandkasten.integrations.inspect_ai_environment import *\n"
        "config = SandkastenConfig(image='debian', profile='dev', user='ada')\n"
        "try:\n"
        "    asyncio.run(SandkastenEnvironment.sample_init('task', config, {}))\n"
        "except sandkasten.SandkastenError as exc:\n"
        "    print(exc)\n"
        "print(len(sandkasten.Sandbox.list()))\n"
    )
    done = in_framework("inspect", "-c", start)
    assert done.stdout.splitlines()[-1:] == ["0"], done.stdout + done.stderr
    assert "the image has no user 'ada'" in done.stdout
