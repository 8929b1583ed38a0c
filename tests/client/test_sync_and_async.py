"""`Sandbox` and `AsyncSandbox` have one interface: equal names, arguments and results."""

from __future__ import annotations

import inspect

import pytest

import sandkasten
from sandkasten import sync
from sandkasten.client import run_once

TWINS = [
    (sandkasten.AsyncSandbox, sandkasten.Sandbox),
    (sandkasten.AsyncProcess, sandkasten.Process),
    (sandkasten.AsyncTerminal, sandkasten.Terminal),
    (sandkasten.AsyncExecStream, sandkasten.ExecStream),
    (sandkasten.AsyncWatch, sandkasten.Watch),
    (sandkasten.AsyncImages, sandkasten.Images),
    (sandkasten.AsyncAgents, sandkasten.Agents),
    (sandkasten.AsyncRunEvents, sandkasten.RunEvents),
    (sandkasten.AsyncStoredFiles, sandkasten.StoredFiles),
    (sandkasten.AsyncWorkspaces, sandkasten.Workspaces),
    (sandkasten.AsyncSession, sandkasten.Session),
    (sandkasten.SandboxClient, sync.SandboxClient),
]
# How each world begins, ends and iterates; and what only a loop can be asked for.
WORLD = {"begin", "transport", "known", "aclose", "close"}


def _public(kind: type) -> dict[str, object]:
    return {
        name: value
        for name, value in inspect.getmembers_static(kind)
        if not name.startswith("_") and name not in WORLD
    }


def _signature(method: object) -> tuple[list[str], str]:
    if isinstance(method, classmethod):
        method = method.__func__
    if isinstance(method, property):
        method = method.fget
    signature = inspect.signature(method)  # type: ignore[arg-type]
    parameters = [str(one) for one in signature.parameters.values()]
    return parameters[1:], str(signature.return_annotation).replace("Async", "")


@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda kind: kind.__name__)
def test_synchronous_and_asynchronous_classes_have_the_same_names(one, other):
    # An attribute set in __init__ there is a property here.
    names = set(_public(one)) | ({"exec_id"} if one is sandkasten.AsyncProcess else set())
    assert names == set(_public(other))


@pytest.mark.promise("P35")
@pytest.mark.parametrize(("one", "other"), TWINS, ids=lambda kind: kind.__name__)
def test_synchronous_and_asynchronous_methods_have_the_same_signature(one, other):
    theirs = _public(other)
    for name, method in _public(one).items():
        assert _signature(method) == _signature(theirs[name]), name


def test_synchronous_and_asynchronous_constructors_have_the_same_arguments():
    assert _signature(sandkasten.AsyncSandbox.__init__) == _signature(sandkasten.Sandbox.__init__)
    assert _signature(sandkasten.AsyncImages.__init__) == _signature(sandkasten.Images.__init__)
    assert _signature(sandkasten.SandboxClient.__init__) == _signature(sync.SandboxClient.__init__)
    there, here = sandkasten.AsyncWorkspaces.__init__, sandkasten.Workspaces.__init__
    assert _signature(there) == _signature(here)


def test_the_two_one_shot_functions_have_the_same_arguments():
    assert inspect.signature(run_once.run) == inspect.signature(run_once.run_async)


def test_the_comparison_detects_a_difference():
    class Off:
        def stat(self, path: str) -> None:
            pass

    assert _signature(Off.stat) != _signature(sandkasten.AsyncSandbox.stat)


def test_every_method_has_a_docstring_or_a_telling_name():
    plain = {"info", "kill", "close_stdin", "resize", "signal", "mkdir", "move", "stat"}
    plain |= {"processes", "exec_id", "result", "id", "run"}
    for kind, _ in TWINS:
        silent = {name for name, value in _public(kind).items() if not inspect.getdoc(value)}
        assert silent <= plain
