"""Secrets at rest: a value is readable only with its key, and only where it belongs."""

from __future__ import annotations

import json
import stat

import pytest

from sandkasten.errors import NotFound, StoreUnusable
from sandkasten.model.access.stored_secrets import SecretRequest
from sandkasten_runtime.store.secret_directory import SecretDirectory

VALUE = "s3cret-value"
REQUEST = SecretRequest("TOKEN", VALUE, ("api.example.com",), header="X: {value}")
KEY = "k" * 32


async def test_a_value_comes_back_with_its_key_alone(tmp_path):
    stored = SecretDirectory(tmp_path, KEY)
    await stored.put("acme", REQUEST)
    (opened,) = await stored.open("acme", ["TOKEN"])
    assert opened.value == VALUE
    assert VALUE not in repr(opened) + repr(REQUEST)
    with pytest.raises(StoreUnusable, match="cannot be decrypted"):
        await SecretDirectory(tmp_path, "x" * 32).open("acme", ["TOKEN"])
    with pytest.raises(NotFound):
        await stored.open("default", ["TOKEN"])


async def test_without_a_key_one_is_made_for_its_owner_alone(tmp_path):
    await SecretDirectory(tmp_path / "secrets", None).put("default", REQUEST)
    key = tmp_path / "secrets" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    (opened,) = await SecretDirectory(tmp_path / "secrets", None).open("default", ["TOKEN"])
    assert opened.value == VALUE


@pytest.mark.parametrize(
    "change",
    [{"hosts": ["evil.example.com"]}, {"header": "Y: {value}"}, {"name": "OTHER"}, {"body": True}],
)
async def test_a_value_is_bound_to_its_hosts_and_its_place(tmp_path, change):
    stored = SecretDirectory(tmp_path, KEY)
    await stored.put("acme", REQUEST)
    path = tmp_path / "tenants" / "acme" / "TOKEN.json"
    found = json.loads(path.read_text())
    found["secret"] |= change
    path.write_text(json.dumps(found))
    with pytest.raises(StoreUnusable):
        await stored.open("acme", ["TOKEN"])


async def test_a_file_cannot_be_moved_to_another_tenant(tmp_path):
    stored = SecretDirectory(tmp_path, KEY)
    await stored.put("acme", REQUEST)
    (tmp_path / "tenants" / "acme").rename(tmp_path / "tenants" / "other")
    with pytest.raises(StoreUnusable):
        await stored.open("other", ["TOKEN"])
    for content in ("", "{}", "[1]", '{"secret": {}, "sealed": ""}'):
        (tmp_path / "tenants" / "other" / "TOKEN.json").write_text(content)
        with pytest.raises(StoreUnusable):
            await stored.open("other", ["TOKEN"])
