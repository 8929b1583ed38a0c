"""The example settings file: every key, and valid when uncommented."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from sandkasten_runtime.assembly.settings.resolver import documented, load

EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "sandkasten.yaml"


def uncommented() -> str:
    """Keys are `#key:` and `#  key:`; sentences have a space after the `#`."""
    return re.sub(r"(?m)^#(?=(  ){0,3}[a-z0-9_]+:)", "", EXAMPLE.read_text())


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


def test_every_setting_is_documented_in_one_sentence():
    docs = {one.name: one.doc for one in documented()}
    assert len(docs) == len(documented()) > 100
    assert [name for name, doc in docs.items() if not doc.endswith(".") or len(doc) > 100] == []


def test_the_example_contains_every_key_and_loads(tmp_path):
    tree = yaml.safe_load(uncommented())
    assert names(tree) == {one.name for one in documented()}
    said = without_nothing(tree)
    (tmp_path / "sandkasten.yaml").write_text(yaml.safe_dump(said))
    assert load({}, {}, tmp_path).data_dir == Path("/var/lib/sandkasten")
