"""How the kernel for a language is found and started. Pure."""

from __future__ import annotations

import json

import pytest

from sandkasten_runtime.engine.code.kernel_specs import commands, environment_code

pytestmark = pytest.mark.promise("P80")


def test_a_kernel_for_java_is_found_with_its_files_and_gets_ports(tmp_path, monkeypatch):
    own = tmp_path / "kernels" / "java"
    own.mkdir(parents=True)
    argv = ["java", "-jar", "{resource_dir}/kernel.jar", "{connection_file}"]
    spec = {"argv": argv, "language": "Java", "interrupt_mode": "message"}
    (own / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    assert commands("")["java"] == {
        "argv": ["java", "-jar", f"{own}/kernel.jar", "{connection_file}"],
        "env": {},
        "transport": "tcp",
        "interrupt": "message",
    }


def test_variables_of_java_are_properties():
    code = environment_code("java", {"A": 'say "hi" \\ \n', "B": None})
    assert code.splitlines() == [
        'System.setProperty("A", "say \\"hi\\" \\\\ \\n");',
        'System.clearProperty("B");',
    ]
