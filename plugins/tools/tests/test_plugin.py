"""What the plugin provides: without it, the daemon and the command line name its extra."""

from __future__ import annotations

import sys

import pytest

from sandkasten.client.server.daemon_or_embedded import ServerAddress
from sandkasten.errors import BackendUnavailable
from sandkasten.model.optional_extras import install_command
from sandkasten_tools.tool_access import open_tools
from scripts.distributions import installs


def test_the_server_has_the_tools_and_no_agents():
    packages = installs("server")
    assert "sandkasten-tools" in packages
    assert "sandkasten-agents" not in packages


@pytest.mark.parametrize(
    ("missing", "what", "extra"),
    [
        ("jsonschema", "the toolbox of agents", "tools"),
        ("sandkasten_server.daemon.transient_file_store", "the server", "server"),
    ],
)
async def test_tools_of_a_program_name_the_extra_that_is_missing(
    monkeypatch, tmp_path, missing, what, extra
):
    for name in [name for name in sys.modules if name.startswith("sandkasten_tools.")]:
        monkeypatch.delitem(sys.modules, name)
    # A None in sys.modules is a library that is not installed.
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(BackendUnavailable) as error:
        async with open_tools(ServerAddress(str(tmp_path / "d"), "local")):
            pass
    assert (error.value.message, error.value.hint) == (
        f"{what} is not installed (no module named {missing})",
        install_command(extra),
    )
