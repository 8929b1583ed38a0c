"""Which plugin has the shared database, and what happens without one."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from sandkasten.errors import BackendUnavailable, InvalidConfiguration
from sandkasten.plugins.installed import Installed
from sandkasten.ports.store_plugins import StorePlugin
from sandkasten_runtime.assembly import store_catalog
from sandkasten_runtime.assembly.settings.resolver import load
from sandkasten_runtime.assembly.settings.unknown_settings import unknown_setting
from sandkasten_runtime.assembly.shared_store import open_shared
from sandkasten_runtime.assembly.store_catalog import active_store
from sandkasten_server.daemon import shared_records as records_module
from sandkasten_server.daemon.shared_records import shared_records

if TYPE_CHECKING:
    from sandkasten.ports.store_plugins import SharedStore

pytestmark = pytest.mark.promise("P98")


async def _fail(_):
    raise BackendUnavailable("away")


def _plugin(name, is_active=True):
    return StorePlugin(name=name, is_active=lambda _: is_active, open=_fail)


@pytest.fixture
def install(monkeypatch):
    """Return a function that makes these plugins the installed ones."""

    def replace(*plugins):
        monkeypatch.setattr(store_catalog, "store_plugins", lambda: plugins)
        monkeypatch.setattr(records_module, "installed", lambda *_: Installed((), {}, ()))

    return replace


def test_two_active_stores_are_refused(tmp_path, install):
    install(_plugin("one"), _plugin("other"))
    with pytest.raises(InvalidConfiguration, match="one and other") as caught:
        active_store(load({}, {}, tmp_path))
    assert caught.value.details["setting"] == "store"


async def test_a_database_that_is_away_leaves_no_node(tmp_path, install):
    install(_plugin("one"))
    with pytest.raises(BackendUnavailable):
        await open_shared(load({"data_dir": str(tmp_path / "data")}, {}, tmp_path))
    assert not (tmp_path / "data" / "node").exists()


async def test_a_ledger_in_a_database_is_refused_without_the_plugin(tmp_path, install):
    (tmp_path / "node").write_text("node_1")
    settings = load({"data_dir": str(tmp_path)}, {}, tmp_path)
    install(_plugin("one", is_active=False))
    with pytest.raises(InvalidConfiguration, match="recorded in a database") as caught:
        await open_shared(settings)
    assert "pip install" not in caught.value.hint
    install()
    with pytest.raises(InvalidConfiguration, match="recorded in a database") as caught:
        await open_shared(settings)
    assert "[postgres]" in caught.value.hint


async def test_a_store_without_records_serves_no_daemon(tmp_path, install):
    install(_plugin("one"))
    with pytest.raises(InvalidConfiguration, match="no records of a server"):
        shared_records(load({}, {}, tmp_path), cast("SharedStore", object()))


@pytest.mark.parametrize("name", ["store.url", "store.files", "store.files.bucket"])
def test_a_setting_of_the_database_or_its_bucket_without_the_plugin_names_the_extra(name):
    error = unknown_setting(f"{name!r} is not a setting", name, ["backend"])
    assert "[postgres]" in error.hint
