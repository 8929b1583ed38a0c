"""LangChain's standard tests of sandbox backends, on ours. Runs in the environment of LangChain."""

import pytest
from langchain_tests.integration_tests import SandboxIntegrationTests

from sandkasten import Sandbox
from sandkasten.integrations.langchain_backend import SandkastenBackend


class TestSandkastenBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with Sandbox() as box:
            yield SandkastenBackend(box)


@pytest.fixture
def backend():
    with Sandbox() as box:
        yield SandkastenBackend(box)


def test_timeout_is_a_result_with_the_output_so_far(backend):
    # A busy machine may need longer for the first word.
    for timeout in (1, 5, 20):
        response = backend.execute("echo begun; sleep 60", timeout=timeout)
        if "begun" in response.output:
            break
    assert response.exit_code == 124
    assert response.output.startswith("begun\n\n[timed out after ")


def test_command_that_cannot_be_a_command_is_told_to_the_model(backend):
    response = backend.execute("echo a\0b")
    assert response.exit_code is None
    assert response.output


def test_command_that_fails_has_its_own_status(backend):
    assert backend.execute("exit 3").exit_code == 3
    assert backend.execute("kill -9 $$").exit_code == 137


def test_directory_of_a_file_is_an_invalid_path(backend):
    [result] = backend.upload_files([("/workspace/a", b"1")])
    assert result.error is None
    [refused] = backend.upload_files([("/workspace/a/b", b"2")])
    assert refused.error == "invalid_path"
    [refused] = backend.upload_files([("/etc/new", b"2")])
    assert refused.error == "permission_denied"
