"""The report on every backend. Each is the unisolated backend, renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sandkasten.errors import BackendUnavailable
from sandkasten_runtime.backends.local.capabilities import LOCAL
from sandkasten_runtime.backends.oci.capabilities import GVISOR
from sandkasten_runtime.engine.placement import backend_survey
from sandkasten_runtime.engine.placement.backend_survey import BackendSurvey
from tests.engine.unavailable_backend import FarBackend
from tests.unisolated.backend import UnisolatedBackend, standing_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sandkasten.model.backends.backend_features import BackendReport
    from sandkasten.model.sandbox.readiness import Readiness
    from sandkasten.ports import Backend

pytestmark = [pytest.mark.anyio, pytest.mark.promise("P05")]


class Renamed(UnisolatedBackend):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.capabilities = standing_for(name)


class Failing(Renamed):
    async def probe(self) -> Readiness:
        raise BackendUnavailable("no runsc", hint="install it")


async def surveyed(*backends: Backend) -> Sequence[BackendReport]:
    return await BackendSurvey({one.name: one for one in backends}, backends[-1].name).reports()


async def test_report_has_the_features_and_the_readiness_of_each_the_default_first():
    first, second = await surveyed(Renamed("gvisor"), Renamed("local"))
    assert (first.name, first.default, first.ready) == ("local", True, True)
    assert (second.name, second.default, second.isolation) == ("gvisor", False, "gvisor")
    assert (first.features, second.features) == (LOCAL.features, GVISOR.features)


async def test_backend_that_fails_or_hangs_is_reported_and_the_others_too(monkeypatch):
    monkeypatch.setattr(backend_survey, "_PROBE_TIMEOUT_S", 0.05)
    docker = FarBackend()
    docker.mode = "hanging"
    local, failing, hanging = await surveyed(Failing("gvisor"), docker, Renamed("local"))
    assert local.ready
    assert (failing.ready, failing.reason, failing.remedy) == (False, "no runsc", "install it")
    assert (hanging.ready, hanging.name) == (False, "docker")
    assert "did not answer" in hanging.reason
