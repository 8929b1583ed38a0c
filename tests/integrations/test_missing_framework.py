"""An adapter without its framework says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.integrations.frameworks import FRAMEWORKS, ROOT
from tests.repo import tree
from tests.shared_sandbox_cases import few

pytestmark = pytest.mark.promise("P82")


@pytest.mark.parametrize("framework", few(FRAMEWORKS, 2), ids=lambda one: one.extra)
def test_adapter_without_its_framework_names_the_install_command(framework):
    # A None in sys.modules is a library that is not installed.
    code = (
        f"import sys; sys.modules[{framework.library!r}] = None\n"
        "try:\n"
        f"    import sandkasten.integrations.{framework.module}\n"
        "except ImportError as exc:\n"
        "    print(exc)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("this adapter requires ")
    command = f"pip install 'sandkasten-runtime[{framework.extra}]'"
    assert done.stdout.endswith(f"; install it with: {command}\n")


def test_every_adapter_is_in_the_list_with_requirements_and_a_guide():
    adapters = {
        name.rpartition(".")[2]
        for name in tree.modules()
        if name.startswith("sandkasten.integrations.")
    } - {"framework_import"}
    assert adapters == {one.module for one in FRAMEWORKS}
    for one in FRAMEWORKS:
        assert (ROOT / "requirements" / "frameworks" / f"{one.extra}.txt").is_file()
        assert one.page.is_file()
