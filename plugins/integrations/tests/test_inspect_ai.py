"""Inspect's own self check of sandbox environments, unmodified."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from plugins.integrations.tests.conftest import DRIVES, counts
from tests import imagekit

if TYPE_CHECKING:
    from plugins.integrations.tests.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("Inspect installs a hundred packages"),
    pytest.mark.timeout(1200),
]
DRIVE = str(DRIVES / "inspect_self_check.py")
# Beside the checks of Inspect, the drive has these of its own.
OURS = 4
CHECKS = 44


def test_every_check_passes_in_a_sandbox_with_root_and_a_user(in_framework: RunsInFramework):
    add = "import sandkasten; sandkasten.Images().import_archive({!r}, name='debian')"
    done = in_framework("inspect", "-c", add.format(str(imagekit.debian_tar())))
    assert done.returncode == 0, done.stderr
    config = {"image": "debian", "profile": "dev", "user": "sandbox"}
    done = in_framework("inspect", "-m", "pytest", DRIVE, INSPECT_CONFIG=json.dumps(config))
    assert counts(done) == {"passed": CHECKS + OURS}, done.stdout + done.stderr


def test_every_check_but_one_passes_in_a_hardened_sandbox(in_framework: RunsInFramework):
    # Its only user cannot add another one.
    words = ("-m", "pytest", DRIVE, "-k", "not test_exec_as_user")
    done = in_framework("inspect", *words, INSPECT_CONFIG="{}")
    assert counts(done) == {"passed": CHECKS + OURS - 1, "deselected": 1}, done.stdout + done.stderr
