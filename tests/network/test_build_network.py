"""Image builds whose commands reach what rules allow, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from sandkasten import BuildFailed, Images, PolicyDenied, Sandbox
from sandkasten_server.cli.main import main
from tests import imagekit
from tests.network.conftest import HOSTS

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.root


@pytest.fixture
def images(tmp_path, monkeypatch) -> Images:
    monkeypatch.setenv("SANDKASTEN_NETWORK_REACHABLE", "127.0.0.1/32")
    monkeypatch.setenv("SANDKASTEN_NETWORK_HOSTS", HOSTS)
    monkeypatch.setenv("SANDKASTEN_NETWORK_SERVERS", "127.0.0.1:1")
    images = Images(data_dir=tmp_path / "data")
    images.import_archive(imagekit.busybox_tar(), name="box")
    return images


def recipe(tmp_path: Path, *steps: object, **more: object) -> Path:
    file = tmp_path / "Steps.yaml"
    file.write_text(json.dumps({"base": "box", "steps": steps, **more}))
    return file


@pytest.mark.promise("P53")
def test_a_step_reaches_what_its_rules_name_and_the_image_keeps_no_trace(images, tmp_path, web):
    fetch = f"wget -qO /said http://good.test:{web}/"
    other = f"! wget -qO /other http://evil.test:{web}/"
    file = recipe(tmp_path, {"run": f"{fetch}\n{other}"}, {"run": "! " + fetch, "network": False},
                  network={"allow": [f"good.test:{web}"]})  # fmt: skip
    built = images.build_steps("net:1", file)
    assert images.build_steps("net:1", file).cached
    with Sandbox("net:1", data_dir=tmp_path / "data") as box:
        shown = box.exec("cat /said; cat /etc/resolv.conf; ls /other")
        assert shown.stdout == f"hello good.test:{web}\n"
    layer = tmp_path / "data" / "images" / "layers"
    assert not [one for one in layer.glob("**/resolv.conf") if one.read_bytes()]
    # Other rules may lead to another result, so the step is repeated.
    file = recipe(tmp_path, {"run": fetch}, network="full")
    assert not images.build_steps("net:2", file).cached
    assert built.image.names == ("net:1",)


@pytest.mark.promise("P53")
def test_a_failed_step_says_what_the_network_refused(images, tmp_path, web, capsys):
    file = recipe(tmp_path, {"run": f"wget -qO /said http://good.test:{web}/"})
    with pytest.raises(BuildFailed) as failed:
        images.build_steps("net:1", file)
    assert "the step had no network" in failed.value.hint
    assert "--allow RULE" in failed.value.hint
    words = ["--data-dir", str(tmp_path / "data"), "image", "build", "net:1", "-f", str(file)]
    with pytest.raises(SystemExit) as ended:
        main([*words, "--allow", f"evil.test:{web}"])
    assert ended.value.code != 0
    assert f"if it is needed: --allow good.test:{web}" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([*words, "--allow", f"good.test:{web}"])
    assert (ended.value.code or 0, capsys.readouterr().out) == (0, "net:1\n")


@pytest.mark.promise("P53")
def test_a_build_gets_no_more_than_the_policy_permits(images, tmp_path, monkeypatch):
    monkeypatch.setenv("SANDKASTEN_POLICY_NETWORK", "good.test")
    for network in ("full", {"allow": ["evil.test"]}):
        file = recipe(tmp_path, {"run": "true"}, {"run": "touch /x", "network": network})
        with pytest.raises(PolicyDenied) as denied:
            images.build_steps("net:1", file)
        assert denied.value.message.startswith("step 2: ")
    with pytest.raises(PolicyDenied, match="evil.test"):
        images.build_steps("net:1", recipe(tmp_path, {"run": "true"}), allow=["evil.test"])
    assert [one.names for one in images.list()] == [("box:latest",)]
