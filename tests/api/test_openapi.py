"""The OpenAPI document: what the app serves, and the file in spec/."""

from __future__ import annotations

import json
import re

import pytest
from jsonschema_rs import Draft202012Validator, meta

from sandkasten.errors import ImageNotFound, RegistryUnavailable, SandkastenError
from sandkasten.model.sandbox.network_policy import parse_network
from sandkasten_server.api.error_responses import STATUS
from sandkasten_server.api.response.openapi_document import document
from sandkasten_server.api.route import EVENTS
from sandkasten_server.api.routes.route_table import route_table
from tests.api.openapi_check import check
from tests.repo import tree

DOCUMENT = json.loads((tree.ROOT / "spec" / "openapi.json").read_text())
ERRORS = json.loads((tree.ROOT / "spec" / "errors.json").read_text())["errors"]


@pytest.mark.promise("P37")
async def test_the_openapi_file_equals_the_served_document(daemon):
    daemon.server.facts.version = DOCUMENT["info"]["version"]
    served = (await daemon.ask("GET", "/openapi.json")).json
    assert served == DOCUMENT, "run .venv/bin/python scripts/reference.py"


def test_every_route_is_in_the_document_with_its_parameters():
    for route in route_table().routes:
        path = re.sub(r"\{([a-z_]+)(:path)?\}", r"{\1}", route.path)
        method = {"ANY": "post", "WS": "get"}.get(route.method, route.method.lower())
        about = DOCUMENT["paths"][path][method]
        assert about["summary"]
        named = {one["name"] for one in about["parameters"] if one["in"] == "query"}
        if route.query is not None:
            assert named == set(route.query.model_fields)
        assert ("requestBody" in about) == (route.body is not None or route.reads_body)
        assert (about.get("security") == []) == (route.scope is None)


def test_operation_ids_are_unique():
    ids = [one["operationId"] for item in DOCUMENT["paths"].values() for one in item.values()]
    assert len(ids) == len(set(ids))


def test_schema_names_do_not_depend_on_where_a_class_is_defined():
    """Two classes of one name would be told apart by their modules, which may move."""
    assert [name for name in DOCUMENT["components"]["schemas"] if "__" in name] == []


def test_every_reference_resolves_and_every_schema_is_valid():
    for ref in re.findall(r'"\$ref": "([^"]+)"', json.dumps(DOCUMENT)):
        found = DOCUMENT
        for part in ref.removeprefix("#/").split("/"):
            found = found[part]
    for schema in DOCUMENT["components"]["schemas"].values():
        meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_every_error_answer_has_the_standard_body():
    body = {"$ref": "#/components/schemas/ErrorBody"}
    for response in DOCUMENT["components"]["responses"].values():
        assert response["content"]["application/json"]["schema"] == body
    for item in DOCUMENT["paths"].values():
        for about in item.values():
            assert {"400", "403", "421", "422", "429", "500", "503"} <= set(about["responses"])
            if about.get("security") != []:
                assert "401" in about["responses"]


def test_every_error_class_has_the_status_of_its_row():
    rows = {row["class"]: row["status"] for row in ERRORS if row["class"] != "SandkastenError"}
    assert rows == {kind.__name__: status for kind, status in STATUS.items()}
    assert next(row["status"] for row in ERRORS if row["class"] == "SandkastenError") == 500
    assert all(issubclass(kind, SandkastenError) for kind in STATUS)


def test_the_schema_refuses_what_the_body_model_refuses():
    whole = {**DOCUMENT["components"]["schemas"]["ExecBody"], "components": DOCUMENT["components"]}
    schema = Draft202012Validator(whole)
    assert schema.is_valid({"cmd": "a", "timeout_ms": 5, "pty": {"rows": 5}})
    for body in ({"cmd": 1}, {"timeout_ms": -1}, {"pty": {"rows": 0}}, {"nonsense": 1}):
        assert not schema.is_valid(body)


@pytest.mark.promise("P37")
def test_an_answer_that_violates_the_document_is_detected():
    good = json.dumps({"status": "ok", "version": "1"}).encode()
    check("GET", "/healthz", 200, "application/json", good)
    for status, kind, raw in (
        (200, "application/json", b"{}"),
        (200, "text/html", good),
        (299, "application/json", good),
        (503, "application/json", b'{"error": "x"}'),
    ):
        with pytest.raises(AssertionError):
            check("GET", "/healthz", status, kind, raw)


def test_other_routes_give_another_document():
    assert document(route_table().routes[:1], "1")["paths"].keys() == {route_table().routes[0].path}


def test_every_route_that_makes_a_sandbox_of_an_image_may_miss_the_registry():
    makes = [
        one
        for one in route_table().routes
        if one.body is not None and "image" in one.body.model_fields
    ]
    assert {one.path for one in makes} >= {"/v1/sessions", "/v1/run"}
    for one in makes:
        if ImageNotFound in one.errors:
            assert RegistryUnavailable in one.errors, one.path


def test_every_query_that_follows_answers_with_events():
    follows = [
        one
        for one in route_table().routes
        if one.query is not None
        for field in one.query.model_fields.values()
        if "server-sent events" in (field.description or "")
    ]
    assert [one.path for one in follows if EVENTS not in one.gives] == []
    assert "/v1/sessions/{id}/network/log" in [one.path for one in follows]


@pytest.mark.parametrize("limits", [None, {}, {"connections": None}, {"connections": 4}])
def test_null_is_like_a_limit_that_is_left_out(limits):
    network = {"allow": ["example.com"], "limits": limits}
    schema = document(route_table().routes, "test")["components"]["schemas"]["CreateBody"]
    found = Draft202012Validator({**schema["properties"]["network"], "components": {}})
    assert found.is_valid(network)
    asked = {name: one for name, one in (limits or {}).items() if one is not None}
    assert parse_network(network).requested_limits == asked
