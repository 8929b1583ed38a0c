"""What the extra of the plugin installs."""

from __future__ import annotations

from scripts.distributions import installs


def test_the_extra_installs_the_tools_too():
    assert {"sandkasten-agents", "sandkasten-tools"} <= set(installs("agents"))
