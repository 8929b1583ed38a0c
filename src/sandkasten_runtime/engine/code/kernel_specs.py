"""Find the kernel for a language in an image. Runs in the sandbox, on Python 3.8, without imports
from Sandkasten.

Kernels are found by their specification (`kernel.json`). Some need none: ipykernel, deno, and bash
with the kernel that the engine sends along.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from typing import Any

MAX_SPEC_BYTES = 65536
# Without these, deno colours what it displays and asks its server for updates.
DENO_ENV = {
    "NO_COLOR": "1",
    "DENO_NO_UPDATE_CHECK": "1",
    "DENO_NO_PACKAGE_JSON": "1",
    "DENO_UNSTABLE_BARE_NODE_BUILTINS": "1",
}
# Programs whose kernels cannot listen on Unix sockets.
ON_PORTS = ("deno", "java")
# Kernels that were installed with the Python packages of a sandbox.
PACKAGES = "/opt/sandkasten/python/share"
# Java cannot change its environment, so a variable is a property of the system too.
JAVA_PRELUDE = (
    "System.getenv().forEach((name, value) -> {"
    " if (System.getProperty(name) == null) System.setProperty(name, value); });"
)


class NoKernel(Exception):
    """The image has no kernel for the language."""


def kernel_command(language: str, bash_kernel: str) -> dict[str, Any]:
    """Return the argv, environment, interrupt mode and transport of the kernel for a language."""
    if importlib.util.find_spec("zmq") is None:
        raise NoKernel("the image has no pyzmq, which code contexts need")
    kernels = commands(bash_kernel, language)
    if language in kernels:
        return kernels[language]
    for name, spec in specifications():
        if name == language:
            return command_of(spec)
    names = ", ".join(sorted(kernels)) or "none"
    raise NoKernel(f"the image has no kernel for {language} (it has: {names})")


def commands(bash_kernel: str, only: str = "") -> dict[str, dict[str, Any]]:
    """Return the kernel of each language; with `only` python, perhaps only that one."""
    kernels: dict[str, dict[str, Any]] = {}
    ipykernel = importlib.util.find_spec("ipykernel_launcher") is not None
    if ipykernel:
        launch = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        kernels["python"] = {"argv": [*launch, "--HistoryManager.enabled=False"]}
        if only == "python":
            return kernels
    for _, spec in specifications():
        spoken = str(spec.get("language", "")).lower()
        if spoken:
            kernels.setdefault(spoken, command_of(spec))
    if ipykernel and shutil.which("bash"):
        launch = [sys.executable, "-c", bash_kernel, "-f", "{connection_file}"]
        kernels.setdefault("bash", {"argv": launch})
    deno = shutil.which("deno")
    if deno:
        command = command_of({"argv": [deno, "jupyter", "--kernel", "--conn", "{connection_file}"]})
        kernels.setdefault("javascript", command)
        kernels.setdefault("typescript", command)
    return kernels


def command_of(spec: dict[str, Any]) -> dict[str, Any]:
    """Return how to start the kernel of a specification."""
    argv, env = [str(word) for word in spec["argv"]], spec.get("env")
    command: dict[str, Any] = {"argv": argv, "env": env if isinstance(env, dict) else {}}
    program = os.path.basename(argv[0])
    if program in ON_PORTS:
        command["transport"] = "tcp"
    if program == "deno":
        return {**command, "env": {**DENO_ENV, **command["env"]}}
    return {**command, "interrupt": spec.get("interrupt_mode")}


def specifications() -> list[tuple[str, dict[str, Any]]]:
    """Return the valid kernel specifications of the image with their names, first found first."""
    places = [folder for folder in os.environ.get("JUPYTER_PATH", "").split(":") if folder]
    shares = [os.path.expanduser("~/.local/share"), os.path.join(sys.prefix, "share")]
    shares += [PACKAGES, "/usr/local/share", "/usr/share"]
    specs = []
    for place in [*places, *(os.path.join(share, "jupyter") for share in shares)]:
        directory = os.path.join(place, "kernels")
        for name in sorted(os.listdir(directory)) if os.path.isdir(directory) else ():
            try:
                with open(os.path.join(directory, name, "kernel.json"), "rb") as file:
                    spec = json.loads(file.read(MAX_SPEC_BYTES))
                if spec["argv"] and isinstance(spec["argv"], list):
                    own = os.path.join(directory, name)
                    argv = [str(word).replace("{resource_dir}", own) for word in spec["argv"]]
                    specs.append((name.lower(), {**spec, "argv": argv}))
            except (OSError, ValueError, KeyError, TypeError):
                continue
    return specs


def environment_code(language: str, env: dict[str, str | None]) -> str:
    """Return code that sets environment variables, and removes those with the value None."""
    lines = []
    for name, value in env.items():
        text = json.dumps(value, ensure_ascii=False)
        if language == "bash":
            quoted = "'" + (value or "").replace("'", "'\\''") + "'"
            lines.append(f"unset {name}" if value is None else f"export {name}={quoted}")
        elif language == "r":
            lines.append(
                f'Sys.unsetenv("{name}")' if value is None else f'Sys.setenv("{name}"={text})'
            )
        elif language == "java":
            lines.append(
                f'System.clearProperty("{name}");'
                if value is None
                else f'System.setProperty("{name}", {text});'
            )
        elif value is None:
            lines.append(f'delete globalThis.process.env["{name}"];')
        else:
            lines.append(f'globalThis.process.env["{name}"] = {text};')
    return "\n".join(lines)
