"""Package requests: valid names, the operator's rules, and the environment inside."""

from __future__ import annotations

import pytest

from sandkasten.errors import InvalidRequest, PolicyDenied
from sandkasten.model.sandbox.cell_spec import HostMount
from sandkasten.model.sandbox.package_sets import (
    PackageSet,
    check_allowed,
    checked_packages,
    environment,
    npm_range,
    package_name,
)
from sandkasten_build.packages.package_fetch import last_lines

PYTHON = PackageSet("k", HostMount("/x", "/opt/python"), path="/opt/python/bin", variable="PP")
NODE = PackageSet("n", HostMount("/y", "/node_modules"), path="/node_modules/.bin", variable="NP")


@pytest.mark.parametrize(
    "spec",
    ["pandas", "PyYAML", "ruamel.yaml", "a", "requests[socks,security]", "numpy==1.26.4",
     "numpy>=1.20,<2", "numpy ~= 1.20", "x===1.0+local", "x==1.*", "x!=1!2.0rc1"],
)  # fmt: skip
def test_a_python_package_is_a_name_and_versions(spec):
    assert checked_packages(pip=[spec]).pip == (spec.replace(" ", ""),)


@pytest.mark.promise("P54")
@pytest.mark.parametrize(
    "spec",
    ["", " ", "-r", "--index-url=http://x", "-e .", ".", "..", "/etc/passwd", "./x", "a/b",
     "x @ https://h/x.whl", "https://h/x.whl", "git+https://h/x", "file:///x.whl", "x.whl/..",
     "x.whl", "x-1.0.tar.gz", "x.ZIP",
     "x; python_version<'3'", "x==1 --hash=sha256:0", "x\n--pre", "x==1\0", "x[../y]", "x y",
     "a" * 201, "x==", "==1", "x==-1", "ñ", 5, None, ["x"]],
)  # fmt: skip
def test_a_package_that_is_a_pip_option_or_address_is_refused(spec):
    with pytest.raises(InvalidRequest) as refused:
        checked_packages(pip=[spec])
    assert refused.value.details == {"field": "pip_packages"}
    assert "is not a valid package name" in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize(
    ("spec", "name", "range_"),
    [("left-pad", "left-pad", "latest"), ("@scope/pkg", "@scope/pkg", "latest"),
     ("lodash@4.17.21", "lodash", "4.17.21"), ("@s/p@^1.2", "@s/p", "^1.2"),
     ("x@>=1 <2 || 3.x", "x", ">=1<2 || 3.x"), ("x@next", "x", "next")],
)  # fmt: skip
def test_an_npm_package_is_a_name_and_a_range(spec, name, range_):
    (checked,) = checked_packages(npm=[spec]).npm
    assert (package_name("npm", checked), npm_range(checked)) == (name, range_)


@pytest.mark.parametrize(
    "spec",
    ["", "-g", "--registry=http://x", ".", "..", "../x", "/x", "./x", "a/b", "a/b/c", "@/x",
     "@s/", "@s/../x", "x@git+ssh://h/x", "x@https://h/x.tgz", "x@file:../y", "npm:x@1",
     "x@npm:y@1", "github:a/b", "x@1\n2", "x y", 5],
)  # fmt: skip
def test_a_package_that_is_an_npm_option_or_address_is_refused(spec):
    with pytest.raises(InvalidRequest) as refused:
        checked_packages(npm=[spec])
    assert refused.value.details == {"field": "npm_packages"}


@pytest.mark.parametrize("value", ["pandas", {"pandas": "1"}, 7, None])
def test_a_package_request_is_a_list(value):
    with pytest.raises(InvalidRequest) as refused:
        checked_packages(pip=value)
    assert refused.value.message == "pip_packages must be a list of names"


def test_more_than_a_hundred_packages_are_refused():
    with pytest.raises(InvalidRequest):
        checked_packages(pip=[f"x{number}" for number in range(101)])


def test_package_requests_are_compared_in_normal_form():
    assert checked_packages(pip=["b", "a == 1", "b"]) == checked_packages(pip=("a==1", "b"))
    assert not checked_packages()


def test_only_packages_the_operator_allows_are_provided():
    wish = checked_packages(pip=["Foo_Bar[x]>=1"], npm=["@s/p@1"])
    check_allowed(wish, None)
    check_allowed(wish, ["foo-bar", "npm:@s/p"])
    for allow in ([], ["foo-bar"], ["pip:@s/p", "foo-bar"], ["npm:foo-bar", "@s/p"]):
        with pytest.raises(PolicyDenied) as refused:
            check_allowed(wish, allow)
        assert "is not on the allow-list" in refused.value.message


def test_interpreters_and_path_find_the_packages():
    assert environment([PYTHON, NODE], "/usr/bin", {}) == {
        "PP": "/opt/python",
        "NP": "/node_modules",
        "PATH": "/opt/python/bin:/node_modules/.bin:/usr/bin",
    }
    assert environment([], "/usr/bin", {"PATH": "/mine"}) == {}


def test_the_callers_own_search_directories_come_first():
    assert environment([PYTHON], "/usr/bin", {"PP": "/a:/b", "PATH": "/mine:/bin"}) == {
        "PP": "/a:/b:/opt/python",
        "PATH": "/mine:/bin:/opt/python/bin",
    }


def test_installer_output_is_kept_without_credentials():
    output = (
        b"Looking in https://user:p@ss@index.example/simple\nsee https://index.example/@scope/x\n"
    )
    assert last_lines(output) == (
        "Looking in https://…@index.example/simple",
        "see https://index.example/@scope/x",
    )
