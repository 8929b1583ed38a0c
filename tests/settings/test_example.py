"""The example of the settings file: every key, and all of it valid once uncommented."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from sandkasten.daemon.explained import MEANS
from sandkasten.daemon.settings import documented, load

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "sandkasten.yaml"


def uncommented() -> str:
    """Keys are `#key:` and `#  key:`; sentences have a space after the mark."""
    return re.sub(r"(?m)^#(?=(  )?[a-z_]+:)", "", EXAMPLE.read_text())


def test_every_setting_is_explained_and_nothing_else_is():
    assert set(MEANS) == {name for name, _, _ in documented()}


def test_the_example_holds_every_key_and_loads(tmp_path):
    tree = yaml.safe_load(uncommented())
    names = {
        f"{room}.{key}" if isinstance(inner, dict) else room
        for room, inner in tree.items()
        for key in (inner if isinstance(inner, dict) else [None])
    }
    assert names == {name for name, _, _ in documented()}
    said = {k: v for k, v in tree.items() if v is not None}
    for room, inner in said.items():
        if isinstance(inner, dict):
            said[room] = {k: v for k, v in inner.items() if v is not None}
    (tmp_path / "sandkasten.yaml").write_text(yaml.safe_dump(said))
    assert load({}, {}, tmp_path).data_dir == Path("/var/lib/sandkasten")
