"""What the runner adds to a sandbox on the real backend: the name `python`, refusals of writes."""

from __future__ import annotations

import pytest

import sandkasten
from sandkasten import Sandbox
from tests import imagekit

pytestmark = pytest.mark.root


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    images = sandkasten.Images(data_dir=path)
    images.import_archive(imagekit.busybox_tar(), name="box")
    context = tmp_path_factory.mktemp("context")
    for name, programs in (("three", "python3"), ("both", "python3 /bin/python")):
        script = "for p in " + programs.replace("python3", "/bin/python3", 1) + "; do "
        script += "printf '#!/bin/sh\\necho from $0\\n' > $p; chmod 755 $p; done"
        (context / "Dockerfile").write_text(f"FROM box\nRUN {script}\n")
        images.build(context, name=name)
    return path


@pytest.mark.parametrize("profile", ["hardened", "dev"])
def test_an_image_with_only_python3_has_python_too(data_dir, profile):
    with Sandbox("three", profile=profile, backend="local", data_dir=data_dir) as box:
        assert box.exec(["python"]).stdout.endswith("/bin/python\n")
        assert box.exec("python").exit_code == 0
        link = box.exec("readlink $(command -v python)").stdout
        assert link == "/bin/python3\n"
        # At the end: a python that is installed later comes first.
        assert box.exec("echo ${PATH##*:}").stdout == "/run/sandkasten/state/bin\n"


def test_a_python_of_the_image_is_not_shadowed_and_none_is_invented(data_dir):
    for image, found in (("both", "/bin/python\n"), ("box", "")):
        with Sandbox(image, backend="local", data_dir=data_dir) as box:
            assert box.exec("command -v python").stdout == found
            assert "/run/sandkasten/state" not in box.exec("echo $PATH").stdout


def test_a_read_only_file_is_not_replaced_except_by_root(data_dir):
    with Sandbox("box", backend="local", data_dir=data_dir) as box:
        box.exec("echo old > closed; chmod 444 closed; echo new > open", check=True)
        with pytest.raises(PermissionError) as caught:
            box.write("closed", b"new")
        assert caught.value.filename == "/workspace/closed"
        assert box.read("closed") == b"old\n"
        box.write("open", b"newer")
        # Its directory decides about the name, as with mv.
        box.move("open", "closed", overwrite=True)
        assert box.read("closed") == b"newer"
    with Sandbox("box", profile="dev", backend="local", data_dir=data_dir) as box:
        box.exec("echo old > closed; chmod 444 closed", check=True)
        box.write("closed", b"new")
        assert box.read("closed") == b"new"
