"""An adapter without its framework says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

from plugins.integrations.tests.frameworks import FRAMEWORKS, ROOT
from tests.repo import tree
from tests.shared_sandbox_cases import few

pytestmark = pytest.mark.promise("P82")


@pytest.mark.parametrize("framework", few(FRAMEWORKS, 2), ids=lambda framework: framework.extra)
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
        if name.startswith("sandkasten_integrations.")
    } - {"framework_import"}
    assert adapters == {framework.module for framework in FRAMEWORKS}
    for framework in FRAMEWORKS:
        assert (ROOT / "requirements" / "frameworks" / f"{framework.extra}.txt").is_file()
        assert framework.page.is_file()
