"""What is sent to Fly for a machine, as pure functions, compared with the facts of its API."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from sandkasten.errors import UnsupportedByBackend
from sandkasten.model.ids import SandboxId
from sandkasten_cloud.fly import machine_request
from sandkasten_cloud.fly.fly_options import FlyOptions
from sandkasten_cloud.fly.machine_request import Size
from sandkasten_cloud.provider import LABEL_ID, LABEL_OWNER, MachineOrder
from tests.cloud import fly_facts

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.promise("P117")

CREATE = "POST /v1/apps/{app_name}/machines"
ID = SandboxId("sbx_0123456789abcdef")
ORDER = MachineOrder(
    sandbox_id=ID,
    image="registry.fly.io/sandboxes:python",
    cpus=1.0,
    memory_bytes=512 << 20,
    disk_bytes=500 << 20,
    lifetime_s=3600.0,
    network="full",
    env={"LANG": "C.UTF-8"},
    files={"/opt/sandkasten/keys/token": b"secret", "/opt/sandkasten/gate": b"x" * 3_000_000},
    programs=("/opt/sandkasten/gate", "/opt/sandkasten/runner"),
    command=("/opt/sandkasten/gate", "--machine", "8484", "/d", "/opt/sandkasten/runner", "--x"),
    port=8484,
    labels={LABEL_OWNER: "me", LABEL_ID: ID},
)
OPTIONS = FlyOptions(app="sandboxes")


def test_the_request_is_one_that_the_api_knows():
    body = machine_request.create_body(ORDER, OPTIONS, 20_001)
    assert fly_facts.wrong_body(CREATE, body) == []
    assert fly_facts.wrong_body(CREATE, machine_request.create_body(ORDER, OPTIONS, None)) == []


def test_a_machine_never_restarts_and_is_destroyed_when_its_first_process_ends():
    body = machine_request.create_body(ORDER, OPTIONS, 20_001)
    config = body["config"]
    assert config["restart"] == {"policy": "no"}
    assert config["auto_destroy"] is True
    assert config["services"][0]["autostart"] is False
    assert body["skip_secrets"] is True


def test_programs_are_those_of_the_image_and_files_are_for_root_alone():
    config = machine_request.create_body(ORDER, OPTIONS, None)["config"]
    assert config["init"]["exec"] == [
        "/opt/sandkasten/programs/gate", "--machine", "8484", "/d",
        "--lifetime", "3600", "--hide", "/.fly",
        "/opt/sandkasten/programs/runner", "--x",
    ]  # fmt: skip
    (file,) = config["files"]
    assert base64.b64decode(file["raw_value"]) == b"secret"
    assert file["mode"] == 0o600


def test_a_sandbox_without_a_network_gets_one_of_its_own():
    config = machine_request.create_body(replace(ORDER, network="none"), OPTIONS, None)["config"]
    assert "--no-network" in config["init"]["exec"]


MACHINE: dict[str, Any] = {
    "id": "m1",
    "name": "sandkasten-me-sbx-0123456789abcdef",
    "state": "stopped",
    "private_ip": "fdaa::3",
    "config": {
        "services": [{"protocol": "tcp", "ports": [{"port": 20_001}]}],
        "metadata": {"sandkasten_port": "8484"},
    },
    "incomplete_config": {"services": [{"ports": [{"port": 20_002}]}], "metadata": {}},
    "events": [
        {"request": {"exit_event": {"exit_code": 1, "oom_killed": True}}},
        {"request": {"MonitorEvent": {"exit_event": {"exit_code": 2}}}},
    ],
}


def _altered(value: Any) -> Iterator[Any]:
    """Yield copies of a value, each with one part that has another type."""
    yield from (None, True, 7, 1.5, "x", [], [None], ["x"], [[]], {}, {"x": None})
    if isinstance(value, dict):
        for key, part in value.items():
            for other in _altered(part):
                yield {**value, key: other}
    if isinstance(value, list):
        for at, part in enumerate(value):
            for other in _altered(part):
                yield [*value[:at], other, *value[at + 1 :]]


def test_each_part_of_a_machine_is_read_or_named_as_wrong():
    assert machine_request.wrong_part(MACHINE) is None
    assert machine_request.sandbox_of(MACHINE, "me") == ID
    wrong = set()
    for altered in _altered(MACHINE):
        part = machine_request.wrong_part(altered)
        if part is None:
            # Nothing of it raises.
            machine_request.service_port(altered)
            machine_request.gate_port(altered)
            machine_request.sandbox_of(altered, "me")
            machine_request.is_destroyed(altered)
            machine_request.has_ended(altered)
            machine_request.end_of(altered)
        else:
            wrong.add(part)
    assert {"machine", "name", "config.services[]", "events[].request.exit_event"} <= wrong


def test_large_files_are_refused():
    order = replace(ORDER, files={"/data": bytes(machine_request.MOST_FILE_BYTES + 1)})
    with pytest.raises(UnsupportedByBackend, match="files"):
        machine_request.create_body(order, OPTIONS, None)


@pytest.mark.parametrize(
    ("cpus", "mib", "kind", "size"),
    [
        (0.5, 100, "shared", Size(1, 256)),
        (1, 512, "shared", Size(1, 512)),
        (1, 513, "shared", Size(1, 768)),
        (3, 512, "shared", Size(4, 1024)),
        (1, 4096, "shared", Size(2, 4096)),
        (1, 512, "performance", Size(1, 2048)),
        (9, 512, "performance", Size(10, 20480)),
    ],
)
def test_a_sandbox_gets_the_smallest_size_that_has_what_it_asks_for(cpus, mib, kind, size):
    chosen = machine_request.size(cpus, mib << 20, kind)
    assert chosen == size
    guest = {"cpu_kind": kind, "cpus": chosen.cpus, "memory_mb": chosen.memory_mib}
    body = {"config": {"image": "x", "guest": guest}}
    assert fly_facts.wrong_body(CREATE, body) == []


@pytest.mark.parametrize(("cpus", "gib"), [(9, 1), (1, 17)])
def test_a_size_that_fly_does_not_have_is_refused_by_name(cpus, gib):
    with pytest.raises(UnsupportedByBackend, match="no Fly machine") as raised:
        machine_request.size(cpus, gib << 30, "shared")
    assert "performance" in raised.value.hint


def test_a_port_that_is_taken_is_not_chosen():
    first, last = machine_request.FIRST_PORT, machine_request.LAST_PORT
    assert machine_request.free_port({last}, last) == first
    with pytest.raises(UnsupportedByBackend, match="ports"):
        machine_request.free_port(range(first, last + 1), first)


def test_the_name_of_a_machine_follows_from_its_installation_and_its_sandbox():
    assert machine_request.machine_name("me", ID) == "sandkasten-me-sbx-0123456789abcdef"


@pytest.mark.parametrize(
    ("machine", "end"),
    [
        ({"state": "failed"}, "its state is failed"),
        (
            {"events": [{"request": {"exit_event": {"exit_code": 137, "oom_killed": True}}}]},
            "out of memory (exit code 137)",
        ),
        (
            {"events": [{}, {"request": {"MonitorEvent": {"exit_event": {"exit_code": 2}}}}]},
            "its first process ended (exit code 2)",
        ),
    ],
)
def test_the_end_of_a_machine_is_told_from_its_events(machine, end):
    assert machine_request.end_of(machine) == end


@pytest.mark.parametrize(
    ("port_text", "port"),
    [("8484", 8484), ("65536", 0), ("\u00b2", 0), ("-1", 0), ("99999999999", 0), (None, 0)],
)
def test_a_port_that_cannot_be_one_is_none(port_text, port):
    assert (
        machine_request.gate_port({"config": {"metadata": {"sandkasten_port": port_text}}}) == port
    )
    services = [{"ports": [{"port": port or 1 << 20}]}]
    assert machine_request.service_port({"config": {"services": services}}) == (port or None)


def test_a_machine_whose_host_is_away_is_still_ours():
    machine = {"id": "m", "name": machine_request.machine_name("me", ID), "incomplete_config": {}}
    assert machine_request.sandbox_of(machine, "me") == ID


@pytest.mark.parametrize("id_text", ["sbx_fedcba9876543210", "../owner", ""])
def test_a_machine_that_changed_its_metadata_is_no_other_sandbox(id_text):
    name, metadata = machine_request.machine_name("me", ID), {"sandkasten_id": id_text}
    machine = {"id": "m", "name": name, "config": {"metadata": metadata}}
    assert machine_request.sandbox_of(machine, "me") == ID
    assert machine_request.sandbox_of(machine, "m") is None
    assert machine_request.sandbox_of({**machine, "name": "else"}, "me") is None
