"""Images that are built by their name: what their commands make of a Debian."""

from __future__ import annotations

import json

import pytest

import sandkasten
from sandkasten.model.images.known_images import KNOWN_IMAGES
from tests import imagekit


@pytest.mark.promise("P79")
def test_the_template_of_e2b_has_its_account(tmp_path):
    images = sandkasten.Images(data_dir=tmp_path / "data")
    images.import_archive(imagekit.debian_tar(), name="debian")
    # The package sudo makes the directory.
    commands = ("mkdir -p /etc/sudoers.d", *KNOWN_IMAGES["base"].commands)
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps({"base": "debian", "steps": [{"run": one} for one in commands]}))
    images.build_steps("base", file)
    with sandkasten.Sandbox("base", data_dir=tmp_path / "data") as box:
        found = box.exec(
            "id; grep ^user: /etc/passwd; stat -c %U:%G /home/user /workspace;"
            " stat -c '%a %u' /etc/sudoers.d/user; ls /home"
        )
    assert found.stdout.splitlines() == [
        "uid=1000(user) gid=1000(user) groups=1000(user)",
        "user:x:1000:1000::/home/user:/bin/bash",
        *["user:user"] * 2,
        "440 0",
        "sandbox",
        "user",
    ]


def test_both_templates_of_e2b_have_the_same_account():
    account = KNOWN_IMAGES["base"].commands
    interpreter = KNOWN_IMAGES["code-interpreter-v1"].commands
    assert interpreter[: len(account)] == account
    for name in ("base", "code-interpreter-v1"):
        assert {"sudo", "nodejs", "git", "curl", "python3-pip"} <= {*KNOWN_IMAGES[name].packages}


def test_every_program_of_a_kernel_has_its_digest():
    image = KNOWN_IMAGES["code-interpreter-v1"]
    checked = [one for one in image.commands if "sha256sum --check" in one]
    assert all("==" in package for package in image.pip)
    assert [one.split()[-5].rpartition("/")[2].rstrip("'") for one in checked] == [
        "jjava.jar",
        "jjava-launcher.jar",
    ]
