"""A directory of sys.path into which tests install distributions of one module."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def install(site: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that installs a distribution of one module."""

    def install(
        module: str, source: str, *, target: str = "", group: str = "sandkasten.backends"
    ) -> None:
        (site / f"{module}.py").write_text(source)
        metadata = site / f"{module}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "entry_points.txt").write_text(
            f"[console_scripts]\nother = {module}:main\n\n"
            f"[{group}]\n{module} = {target or f'{module}:PLUGIN'}\n"
        )
        monkeypatch.delitem(sys.modules, module, raising=False)

    return install
