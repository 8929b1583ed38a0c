"""The image tests as an ordinary user: one id, own layers, no id mapping."""

from __future__ import annotations

import pytest

from tests.ordinary_user import OrdinaryUser
from tests.security.harness import poll

pytestmark = [pytest.mark.root, pytest.mark.promise("P06")]


@pytest.mark.timeout(1000)
@pytest.mark.long(reason="`make test` runs the contract on an image as an ordinary user")
def test_images_work_for_an_ordinary_user():
    files = ("test_images.py", "test_ordinary_volumes.py", "test_probe.py")
    with OrdinaryUser() as user:
        words = (*(f"tests/local/{file}" for file in files), "-m", "not root")
        done = user.pytest(*words, env={"TMPDIR": str(user.home)}, timeout_s=900)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        assert " skipped" not in done.stdout
        poll("processes of the user", user.processes)
