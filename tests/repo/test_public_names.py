"""The public names of `import sandkasten`."""

from __future__ import annotations

import inspect
import subprocess
import sys

import sandkasten


def test_dunder_all_equals_the_public_names():
    public = {
        name
        for name in dir(sandkasten)
        if not name.startswith("_") and not inspect.ismodule(getattr(sandkasten, name))
    }
    # The import of the future is bound like any other name.
    public.discard("annotations")
    assert {n for n in sandkasten.__all__ if not n.startswith("_")} == public
    assert len(sandkasten.__all__) == len(set(sandkasten.__all__))


def test_every_public_name_resolves():
    for name in sandkasten.__all__:
        assert getattr(sandkasten, name) is not None


def test_importing_the_package_loads_no_library_and_no_engine():
    code = (
        "import sys; before = set(sys.modules); import sandkasten; "
        "print(sorted(m for m in set(sys.modules) - before "
        "if m.split('.')[0] not in sys.stdlib_module_names))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [m for m in eval(run.stdout) if not m.startswith("sandkasten")]
    assert loaded == []
    rooms = {m.split(".")[1] for m in eval(run.stdout) if "." in m and not m.startswith("_")}
    assert rooms <= {"client", "errors", "model"}
