"""Images that are built by their name: what their commands make of a Debian."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import sandkasten
from sandkasten.client.server.embedded import ServerAddress, settings
from sandkasten.model.commands.code_values import CodeRequest
from sandkasten.model.images.known_images import KNOWN_IMAGES
from sandkasten.model.sandbox.sandbox_options import SandboxOptions
from sandkasten.model.sandbox.sandbox_values import CreateRequest
from sandkasten_build.builder.known_definitions import DEFINITIONS
from sandkasten_runtime.assembly.engine_assembly import open_engine
from tests import imagekit

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.promise("P79")
def test_the_template_of_e2b_has_its_account(tmp_path):
    images = sandkasten.Images(data_dir=tmp_path / "data")
    images.import_archive(imagekit.debian_tar(), name="debian")
    # The package sudo makes the directory.
    commands = ("mkdir -p /etc/sudoers.d", *DEFINITIONS["base"].commands)
    file = tmp_path / "recipe.json"
    steps = [{"run": command} for command in commands]
    file.write_text(json.dumps({"base": "debian", "steps": steps}))
    images.build_steps("base", file)
    with sandkasten.Sandbox("base", data_dir=tmp_path / "data") as box:
        result = box.exec(
            "id; grep ^user: /etc/passwd; stat -c %U:%G /home/user /workspace;"
            " stat -c '%a %u' /etc/sudoers.d/user; ls /home"
        )
    assert result.stdout.splitlines() == [
        "uid=1000(user) gid=1000(user) groups=1000(user)",
        "user:x:1000:1000::/home/user:/bin/bash",
        *["user:user"] * 2,
        "440 0",
        "sandbox",
        "user",
    ]


def test_every_known_name_has_a_definition():
    assert tuple(DEFINITIONS) == KNOWN_IMAGES


def test_both_templates_of_e2b_have_the_same_account():
    account = DEFINITIONS["base"].commands
    interpreter = DEFINITIONS["code-interpreter-v1"].commands
    assert interpreter[: len(account)] == account
    for name in ("base", "code-interpreter-v1"):
        assert {"sudo", "nodejs", "git", "curl", "python3-pip"} <= {*DEFINITIONS[name].packages}


def test_every_program_of_a_kernel_has_its_digest():
    image = DEFINITIONS["code-interpreter-v1"]
    checked = [command for command in image.commands if "sha256sum --check" in command]
    assert all("==" in package for package in image.pip)
    assert [command.split()[-5].rpartition("/")[2].rstrip("'") for command in checked] == [
        "jjava.jar",
        "jjava-launcher.jar",
    ]


@pytest.mark.promise("P80")
@pytest.mark.long(reason="it installs Pillow from the index")
@pytest.mark.timeout(300)
async def test_the_code_interpreter_displays_pictures_of_pillow(tmp_path: Path):
    """Its image loads this extension in every kernel."""
    commands = DEFINITIONS["code-interpreter-v1"].commands
    (command,) = [line for line in commands if "pillow_display.py" in line]
    source = command.split("<<'END'\n")[1].split("END\n")[0]
    engine = await open_engine(settings(ServerAddress(str(tmp_path / "data"), "local")))
    box = ""
    try:
        options = SandboxOptions(pip_packages=("pillow",))
        box = (await engine.create(CreateRequest(options))).id
        await engine.files.write(box, "/workspace/pillow_display.py", source.encode())

        async def pictures(code: str) -> list[bool]:
            result = await engine.code.run(box, CodeRequest(code))
            assert result.error is None, result.error
            return [value.png is not None for value in result.results]

        load = "import io, sys; sys.path.insert(0, '/workspace')\n%load_ext pillow_display"
        assert (
            await pictures(f"{load}\nfrom PIL import Image; one = Image.new('RGB', (2, 2))") == []
        )
        assert await pictures("one.show()") == [True]
        assert await pictures("one.save('a.png'); assert Image.open('a.png').size == (2, 2)") == [
            True
        ]
        assert await pictures("one.save(io.BytesIO(), 'png')") == []
        assert await pictures("one") == [True]
    finally:
        if box:
            await engine.destroy(box)
        await engine.aclose()
