"""`doctor`: every backend with its reason and remedy; the default one decides the status."""

from __future__ import annotations

import json

import pytest

import sandkasten
from sandkasten.client.import_clash import find_clash
from sandkasten.model.backends.backend_features import BackendReport, features_here
from sandkasten.model.sandbox.limits import Unenforced
from sandkasten.model.sandbox.readiness import Readiness, Requirement, Tier
from sandkasten_runtime.backends.backend_catalog import CAPABILITIES
from sandkasten_runtime.engine.placement.backend_survey import BackendSurvey
from sandkasten_runtime.engine.placement.tier_survey import TierSurvey
from sandkasten_server.api.routes import health
from tests.unisolated.backend import UnisolatedBackend

pytestmark = pytest.mark.promise("P05")


FEATURES = {name: can.features for name, can in CAPABILITIES.items()}


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
    assert set(found) == set(health.Doctor.model_fields)
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
    done = cli("doctor", "--all")
    assert "ok    backend unisolated (default): ready, image host, create " in done.out
    assert "--    backend gvisor: not ready: " in done.out
    assert done.out.endswith("ready: sandboxes work on this machine\n")
    assert done.status == 0


def test_doctor_shows_the_default_backend_and_one_line_for_the_others(cli):
    done = cli("doctor")
    default, others, verdict = done.out.splitlines()[-3:]
    assert default.startswith("ok    backend unisolated (default): ready, image host, create ")
    assert others == "--    other backends: oci, gvisor, docker not ready (sandkasten doctor --all)"
    assert verdict == "ready: sandboxes work on this machine"
    assert "gvisor: not ready" not in done.out


def test_what_this_machine_lacks_is_not_listed_as_a_feature():
    lacking = Readiness(True, lacks=("pause", "dev_profile"))
    features = features_here(FEATURES["local"], lacking)
    assert (features.pause, features.dev_profile, features.snapshots) == (False, False, True)
    assert features_here(FEATURES["local"], Readiness(True)) == FEATURES["local"]


def test_doctor_says_what_each_backend_can_and_cannot_do(cli, monkeypatch):
    (default, *_) = json.loads(cli("doctor", "--no-measure", "--json").out)["backends"]
    assert (default["name"], default["default"], default["ready"]) == ("unisolated", True, True)

    async def reports(self) -> list[BackendReport]:
        told = BackendReport("local", True, "standard", True, features=FEATURES["local"])
        return [told, BackendReport("kubernetes", features=FEATURES["kubernetes"])]

    monkeypatch.setattr(BackendSurvey, "reports", reports)
    shown = cli("doctor", "--no-measure", "--all").out
    assert (
        "ok    backend local (default): ready\n"
        "      has: isolation standard; network none, full, rules; "
        "limits cpu, memory, pids, workspace; sessions; " in shown
    )
    assert "resize\n      lacks: GPUs\n" in shown
    assert "--    backend kubernetes: not ready: not examined\n" in shown
    assert "      lacks: limits pids, workspace; secrets; host mounts; " in shown
    listed = json.loads(cli("doctor", "--no-measure", "--json").out)["backends"]
    assert listed[1]["features"]["limits"] == ["cpu", "memory"]


def test_doctor_says_why_a_backend_without_a_tier_is_not_ready(cli, monkeypatch):
    async def reports(self) -> list[BackendReport]:
        away = BackendReport(
            "e2b",
            reason="no key is set",
            remedy="set E2B_API_KEY",
            features=FEATURES["e2b"],
        )
        tier = BackendReport("docker", reason="away", remedy="none", features=FEATURES["docker"])
        return [away, tier]

    monkeypatch.setattr(BackendSurvey, "reports", reports)
    lines = cli("doctor", "--no-measure", "--all").out.splitlines()
    at = lines.index("--    backend e2b: not ready: no key is set")
    assert lines[at + 1] == "      remedy: set E2B_API_KEY"
    assert [line[:12] for line in lines[at + 2 :]] == [
        "      has: i",
        "      lacks:",
        "ready: sandb",
    ]
    assert sum(line.startswith("--    backend docker: ") for line in lines) == 1


def test_doctor_warns_of_a_limit_that_another_backend_does_not_enforce_here(cli, monkeypatch):
    volumes = Unenforced("workspace", "volumes have no size", "use workspace_mode bind")
    known = Unenforced("pids", "Modal has no limit of processes")

    async def reports(self) -> list[BackendReport]:
        west, modal = (
            BackendReport(name, ready=True, features=FEATURES[kind], unenforced=(limit,))
            for name, kind, limit in (
                ("docker/west", "docker", volumes),
                ("modal", "modal", known),
            )
        )
        return [west, modal]

    monkeypatch.setattr(BackendSurvey, "reports", reports)
    shown = cli("doctor", "--no-measure", "--all").out
    assert (
        "warn  backend docker/west: limit workspace is not enforced: volumes have no size\n"
        "      remedy: use workspace_mode bind\n" in shown
    )
    # The features of docker/west do not contradict its warning.
    assert shown.count("lacks: limits workspace; ") == 1
    assert "backend modal: limit pids" not in shown  # Its line says "lacks: limits pids".


def test_doctor_shows_a_warning_of_a_tier_once(cli, monkeypatch):
    old = Requirement("runc release", False, "1.1.5 has CVE-2025-31133", "update", required=False)
    ours = Requirement("cgroups", False, "none", "mount them", required=False)

    async def survey(self, *, measure: bool = True) -> list[Tier]:
        return [Tier("unisolated", "unisolated", True, default=True, warnings=(ours,)),
                Tier("oci", "oci", True, warnings=(ours, old))]  # fmt: skip

    async def probe(self) -> Readiness:
        return Readiness(True, requirements=(ours,))

    monkeypatch.setattr(TierSurvey, "tiers", survey)
    monkeypatch.setattr(UnisolatedBackend, "probe", probe)
    shown = cli("doctor", "--all").out
    assert "warn  backend oci: runc release: 1.1.5 has CVE-2025-31133\n" in shown
    assert "remedy: update\n" in shown
    assert shown.count("cgroups: none") == 1


def test_no_measure_creates_nothing_and_shows_no_time(cli):
    (first, *_) = json.loads(cli("doctor", "--no-measure", "--json").out)["tiers"]
    assert (first["ready"], first["tried"], first["create_ms"]) == (True, False, None)
    assert "create" not in cli("doctor", "--no-measure").out


def test_a_default_backend_that_is_not_ready_is_status_1_with_the_remedy(cli, unready_default):
    done = cli("doctor")
    assert done.status == 1
    assert (
        "MISS  backend unisolated (default): not ready: no runner\n      remedy: build it"
        in done.out
    )
    assert "not ready: no runner" in done.out.splitlines()[-2]
    found = json.loads(cli("doctor", "--json").out)
    assert (found["ready"], found["tiers"][0]["ready"]) == (False, False)
    assert found["tiers"][0]["create_ms"] is None


@pytest.fixture
def other_project(tmp_path, monkeypatch):
    """The metadata of the other project with our import name, where Python looks for it."""
    info = tmp_path / "site" / "sandkasten-0.3.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sandkasten\nVersion: 0.3.0\n")
    monkeypatch.syspath_prepend(str(info.parent))


def test_another_package_with_our_import_name_is_a_warning(cli, other_project):
    done = cli("doctor", "--no-measure")
    assert done.out.startswith(
        "warn  import name: the distribution sandkasten 0.3.0, another project with the same "
        "import name, is installed; the two replace each other's files\n"
        "      remedy: pip uninstall sandkasten sandkasten-client, then install "
        "sandkasten-client again\n"
    )
    assert done.status == 0


def test_a_name_of_the_other_project_is_explained_when_imported(other_project):
    with pytest.raises(ImportError, match="another project with the same import name"):
        from sandkasten import SandkastenAPIError  # noqa: F401


def test_an_unknown_name_is_an_ordinary_error_without_the_other_project():
    assert not hasattr(sandkasten, "SandkastenAPIError")
    assert find_clash() is None
