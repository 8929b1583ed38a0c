"""The built dashboard belongs to its sources."""

from __future__ import annotations

import gzip
import importlib.util

import pytest

from tests.repo import tree

BUILT = tree.ROOT / "server" / "src" / "sandkasten_server" / "_dashboard"


def _digest() -> str:
    path = tree.ROOT / "scripts" / "dashboard_digest.py"
    spec = importlib.util.spec_from_file_location("dashboard_digest", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    digest: str = module.digest()
    return digest


def test_the_dashboard_was_built_from_its_sources():
    built = (BUILT / "sources.sha256").read_text().strip()
    assert built == _digest(), "run: make dashboard"


@pytest.mark.promise("P88")
def test_everything_that_a_page_can_load_is_small_and_from_the_daemon():
    sizes = {one.name: len(gzip.compress(one.read_bytes(), 9)) for one in BUILT.iterdir()}
    assert sum(sizes.values()) < 300_000, sizes
    page = (BUILT / "index.html").read_text()
    assert "http:" not in page
    assert "https:" not in page
    assert 'src="/dashboard/app.js"' in page
