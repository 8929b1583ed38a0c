"""SWE-ReX's own tests of execution, on sandboxes."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
from typing import TYPE_CHECKING

import pytest

from tests.integrations.conftest import DRIVES, counts
from tests.integrations.frameworks import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integrations.conftest import RunsInFramework

pytestmark = [
    pytest.mark.promise("P82"),
    pytest.mark.root,
    pytest.mark.long("a framework installs a hundred packages"),
    pytest.mark.timeout(1200),
]
# The first two share a directory with the server, the third waits for a pager's terminal.
OTHERS = ("test_read_write_file", "test_read_large_file", "test_interrupt_pager")


def source_of(package: str, version: str, lock: str, place: Path) -> Path:
    """Return the unpacked source distribution of a package, whose hash is in the lock."""
    wanted = f"{package}=={version}"
    words = ("download", "--quiet", "--no-deps", "--no-binary", package, "-d", str(place), wanted)
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    (archive,) = place.glob("*.tar.gz")
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    assert digest in (ROOT / "requirements" / "frameworks" / f"{lock}.txt").read_text()
    with tarfile.open(archive) as tar:
        tar.extractall(place)
    (found,) = (one for one in place.iterdir() if one.is_dir())
    return found


def test_the_tests_of_swe_rex_pass_on_a_sandbox(in_framework: RunsInFramework, tmp_path: Path):
    (fetched := tmp_path / "fetched").mkdir()
    (suite := tmp_path / "suite").mkdir()
    (suite / "__init__.py").touch()
    source = source_of("swe-rex", "1.4.0", "swe-rex", fetched) / "tests" / "test_execution.py"
    file = shutil.copy(source, suite)
    shutil.copy(DRIVES / "swe_rex_conftest.py", suite / "conftest.py")
    words = ("-W", "ignore", str(file), "-k", f"not ({' or '.join(OTHERS)})")
    done = in_framework("swe-rex", "-m", "pytest", *words)
    expected = {"passed": 46, "xfailed": 1, "deselected": 3}
    assert counts(done) == expected, done.stdout + done.stderr
