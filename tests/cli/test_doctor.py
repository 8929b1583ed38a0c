"""`doctor`: every backend with its reason and remedy; the default one decides the status."""

from __future__ import annotations

import json

import pytest

from sandkasten.model.sandbox.readiness import Readiness
from tests.unisolated.backend import UnisolatedBackend

pytestmark = pytest.mark.promise("P05")


@pytest.fixture
def unready_default(monkeypatch):
    """A host on which the default backend is not ready."""

    async def probe(self) -> Readiness:
        return Readiness(ready=False, reason="no runner", remedy="build it")

    monkeypatch.setattr(UnisolatedBackend, "probe", probe)


def test_doctor_shows_the_create_time_of_a_ready_backend(cli):
    done = cli("doctor", "--json")
    found = json.loads(done.out)
    assert done.status == 0
    assert {"ready", "reason", "remedy", "requirements", "unenforced", "tiers"} == set(found)
    first, *others = found["tiers"]
    assert (first["name"], first["default"], first["ready"]) == ("unisolated", True, True)
    assert first["tried"]
    assert first["create_ms"] >= 0
    assert {one["name"] for one in others} == {"oci", "gvisor", "docker"}
    for one in others:
        assert (one["ready"], one["create_ms"]) == (False, None)
        assert one["reason"]
        assert one["remedy"]


def test_doctor_names_each_backend_and_its_remedy(cli):
    done = cli("doctor")
    assert "ok    tier unisolated (default): ready, image host, create " in done.out
    assert "--    tier gvisor: not ready: " in done.out
    assert done.out.endswith("ready: sandboxes work on this machine\n")
    assert done.status == 0


def test_no_measure_creates_nothing_and_shows_no_time(cli):
    (first, *_) = json.loads(cli("doctor", "--no-measure", "--json").out)["tiers"]
    assert (first["ready"], first["tried"], first["create_ms"]) == (True, False, None)
    assert "create" not in cli("doctor", "--no-measure").out


def test_a_default_backend_that_is_not_ready_is_status_1_with_the_remedy(cli, unready_default):
    done = cli("doctor")
    assert done.status == 1
    assert (
        "MISS  tier unisolated (default): not ready: no runner\n      remedy: build it" in done.out
    )
    assert "not ready: no runner" in done.out.splitlines()[-2]
    found = json.loads(cli("doctor", "--json").out)
    assert (found["ready"], found["tiers"][0]["ready"]) == (False, False)
    assert found["tiers"][0]["create_ms"] is None
