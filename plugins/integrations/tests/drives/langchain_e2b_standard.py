"""LangChain's standard tests, on the third-party backend for E2B and a daemon of ours."""

import pytest
from e2b import Sandbox
from e2b_daemon import e2b_daemon
from langchain_e2b import E2BSandbox
from langchain_tests.integration_tests import SandboxIntegrationTests


class TestE2bBackend(SandboxIntegrationTests):
    @pytest.fixture(scope="class")
    def sandbox(self):
        with e2b_daemon(), Sandbox.create(timeout=1200) as box:
            yield E2BSandbox(sandbox=box)
