"""The example settings file: every key, and valid when uncommented."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from sandkasten.daemon.settings.resolver import documented, load
from sandkasten.daemon.settings.setting_docs import MEANS

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "sandkasten.yaml"


def uncommented() -> str:
    """Keys are `#key:` and `#  key:`; sentences have a space after the `#`."""
    return re.sub(r"(?m)^#(?=(  ){0,2}[a-z_]+:)", "", EXAMPLE.read_text())


def names(tree, above="") -> set[str]:
    found: set[str] = set()
    for key, value in tree.items():
        found |= (
            names(value, f"{above}{key}.") if value and isinstance(value, dict) else {above + key}
        )
    return found


def without_nothing(tree):
    if not isinstance(tree, dict):
        return tree
    return {key: without_nothing(value) for key, value in tree.items() if value is not None}


def test_exactly_the_existing_settings_are_explained():
    assert set(MEANS) == {name for name, _, _ in documented()}


def test_the_example_contains_every_key_and_loads(tmp_path):
    tree = yaml.safe_load(uncommented())
    assert names(tree) == {name for name, _, _ in documented()}
    said = without_nothing(tree)
    (tmp_path / "sandkasten.yaml").write_text(yaml.safe_dump(said))
    assert load({}, {}, tmp_path).data_dir == Path("/var/lib/sandkasten")
