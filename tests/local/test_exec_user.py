"""Commands as another user of the image, on the real backend with root inside."""

from __future__ import annotations

import pytest

import sandkasten
from sandkasten import Sandbox
from tests import imagekit
from tests.security.harness import poll

pytestmark = pytest.mark.root

APP = "app:x:1234:1235::/home/app:/bin/sh"


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("store")
    sandkasten.Images(data_dir=path).import_archive(imagekit.busybox_tar(), name="box")
    return path


@pytest.fixture(scope="module")
def box(data_dir):
    with Sandbox("box", profile="dev", backend="local", data_dir=data_dir) as made:
        made.exec(f"echo {APP} >> /etc/passwd; echo team:x:4321:app >> /etc/group", check=True)
        yield made


def test_a_command_runs_with_the_ids_groups_and_home_of_the_user(box):
    shown = 'echo "$(id -u):$(id -g) $(id -G) $HOME $USER $(pwd)"; grep CapEff /proc/self/status'
    found = box.exec(shown, user="app")
    assert found.output == (
        "1234:1235 1235 4321 /home/app app /workspace\nCapEff:\t0000000000000000\n"
    )
    assert box.exec(["id", "-u"], user=1234).output == "1234\n"
    assert box.exec(["sh", "-c", "id -u; id -G"], user="7:team").output == "7\n4321\n"
    assert box.exec(["id", "-u"], user="root").output == "0\n"
    # The persistent shell stays root's.
    assert box.exec("id -u").output == "0\n"


def test_a_user_cannot_read_what_is_roots(box):
    box.exec("echo secret > /root/key; chmod 600 /root/key", check=True)
    found = box.exec(["cat", "/root/key"], user="app")
    assert (found.exit_code, found.stdout) == (1, "")
    assert box.exec(["/nothing"], user="app").exit_code == 127


def test_a_command_of_another_user_is_ended_at_its_deadline_and_by_a_signal(box):
    late = box.exec("sleep 1000 & sleep 1000", user="app", timeout_ms=300)
    assert late.timed_out
    begun = box.start(["sleep", "1001"], user="app")
    begun.kill()
    assert begun.wait().exit_status == 137
    poll("sleep", lambda: "sleep" in box.exec(["ps"]).output)


def test_an_unknown_user_is_refused_by_name(box):
    with pytest.raises(sandkasten.InvalidRequest, match="no user 'nobody-here'"):
        box.exec("id", user="nobody-here")
    with pytest.raises(sandkasten.InvalidRequest, match="not an id"):
        box.exec("id", user=70_000)
