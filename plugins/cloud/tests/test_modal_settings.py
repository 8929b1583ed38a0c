"""Settings `backends.modal.*`: the file with the token is checked at the start, and values that
Modal does not accept are refused.
"""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidConfiguration
from sandkasten_cloud.modal.modal_options import ModalOptions
from sandkasten_runtime.assembly.settings.resolver import load

SETTING = "backends.modal.token_file"
pytestmark = pytest.mark.promise("P116")


def test_without_settings_modal_has_no_token(tmp_path):
    assert load({}, {}, tmp_path).plugins["modal"] == ModalOptions()


def test_the_token_may_be_in_a_file_that_others_cannot_read(tmp_path):
    file = tmp_path / "token"
    file.write_text("ak-one\nas-two\n")
    file.chmod(0o600)
    assert load({SETTING: str(file)}, {}, tmp_path).plugins["modal"].token_file == file
    file.chmod(0o644)
    with pytest.raises(InvalidConfiguration, match="accessible to every user") as refused:
        load({SETTING: str(file)}, {}, tmp_path)
    assert refused.value.hint == f"chmod 600 {file}"
    assert refused.value.details["setting"] == SETTING


@pytest.mark.parametrize("content", [None, "", "as-only-the-secret", "ak-1 as-2 as-3"])
def test_a_file_without_a_token_is_refused_and_not_shown(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(0o600)
    with pytest.raises(InvalidConfiguration) as refused:
        load({SETTING: str(file)}, {}, tmp_path)
    assert refused.value.hint
    assert "as-" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [("app", "my app"), ("region", "eu/west"), ("lifetime_seconds", "25h")],
)
def test_a_value_that_modal_does_not_accept_is_refused(tmp_path, name, value):
    with pytest.raises(InvalidConfiguration, match=f"backends.modal.{name}") as refused:
        load({f"backends.modal.{name}": value}, {}, tmp_path)
    assert refused.value.hint
