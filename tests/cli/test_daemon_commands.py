"""What a person sees of commands that a daemon carries out; one daemon for all of them."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import UNISOLATED
from tests.client.http.served import Served, served
from tests.patience import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("daemon") / "data") as one:
        yield one


@pytest.fixture(autouse=True)
def through_it(daemon: Served, unisolated_only: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDKASTEN_DATA_DIR", str(daemon.data_dir))


@pytest.fixture
def box(cli) -> Iterator[str]:
    the_id = cli("create").out.strip()
    yield the_id
    cli("rm", the_id)


def _into_head(*words: str) -> tuple[int, bytes]:
    """Run a command whose reader leaves after three bytes; return its status and its stderr."""
    with subprocess.Popen(
        [*UNISOLATED, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    ) as writer:
        assert writer.stdout is not None
        assert writer.stderr is not None
        assert writer.stdout.read(3) == b"xxx"
        writer.stdout.close()
        said = writer.stderr.read()
        return writer.wait(PATIENCE_S), said


def test_a_reader_that_leaves_early_causes_no_traceback(cli, box, tmp_path):
    (tmp_path / "big").write_bytes(b"x" * 9_000_000)
    assert cli("cp", str(tmp_path / "big"), f"{box}:big").status == 0
    assert cli("files", "put", str(tmp_path / "big"), "--key", "big").status == 0
    assert _into_head("cp", f"{box}:big", "-") == (1, b"")
    assert _into_head("files", "get", "big", "-") == (1, b"")
    assert cli("files", "rm", "big").status == 0
