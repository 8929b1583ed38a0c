"""A daemon with the backend `modal` that is killed before, during and after a create."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from plugins.cloud.tests.killed_daemon import (
    check_that_a_session_survives,
    check_that_nothing_is_left,
    kill_during_create,
    until,
)
from sandkasten_cloud.provider import LABEL_OWNER
from tests.cloud.modal.modal_server import Fault
from tests.platform_choice import LONG

if TYPE_CHECKING:
    from tests.cloud.modal.modal_control import Rented
    from tests.cloud.modal.modal_server import ModalServer

pytestmark = [pytest.mark.root, pytest.mark.promise("P116")]
CREATE = "SandboxCreateV2"
SESSION = {"image": "debian"}
VARIABLES = {"SANDKASTEN_MODAL_ENABLED": "true"}
_STAGES = [
    # Asked for, and not made yet: it is made after the kill.
    (CREATE, "hold"),
    # Made, and not answered.
    (CREATE, "mute"),
    # Answered, and without a connection to its runner.
    ("TaskExecStart", "hang"),
]


def _machines(server: ModalServer, owner: str) -> list[Rented]:
    return [machine for machine in server.running if machine.tags.get(LABEL_OWNER) == owner]


@pytest.mark.parametrize(("call", "kind"), _STAGES if LONG else _STAGES[1:2])
def test_a_daemon_killed_during_a_create_leaves_nothing_at_modal(server, tmp_path, call, kind):
    data, machines = tmp_path / "data", partial(_machines, server)
    fault = server.faults[call] = Fault(kind)
    owner = kill_during_create(data, "modal", VARIABLES, SESSION, fault.hit.is_set)
    server.faults.clear()
    until(lambda: len(machines(owner)) == 1)
    check_that_nothing_is_left(data, "modal", VARIABLES, machines)


@pytest.mark.skipif(not LONG, reason="make test-long runs it")
def test_a_session_outlives_a_killed_daemon_and_is_made_once(server, tmp_path):
    check_that_a_session_survives(
        tmp_path / "data", "modal", VARIABLES, SESSION, partial(_machines, server)
    )
