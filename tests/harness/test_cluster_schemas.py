"""Schemas for kubeconform: no field passes that a release does not name, and each kind has its file."""

from __future__ import annotations

from tests.harness.cluster.schemas import custom_schemas, release_schemas, strict


def test_unnamed_fields_are_refused_at_every_depth():
    inner = {"type": "object", "properties": {"port": {"type": "integer"}}}
    schema = {"properties": {"ports": {"type": "array", "items": inner}, "labels": {"additionalProperties": {}}}}
    closed = strict(schema)
    assert closed["additionalProperties"] is False
    assert closed["properties"]["ports"]["items"]["additionalProperties"] is False
    assert closed["properties"]["labels"] == {"additionalProperties": {}}


def test_field_called_properties_is_no_schema():
    closed = strict({"properties": {"properties": {"type": "string"}}})
    assert closed["properties"] == {"properties": {"type": "string"}}


def test_preserved_fields_stay_open():
    schema = {"properties": {"a": {}}, "x-kubernetes-preserve-unknown-fields": True}
    assert "additionalProperties" not in strict(schema)


def test_each_kind_has_its_file():
    kinds = [{"group": "networking.k8s.io", "version": "v1", "kind": "NetworkPolicy"}]
    core = [{"group": "", "version": "v1", "kind": "Secret"}]
    definitions = {
        "np": {"x-kubernetes-group-version-kind": kinds},
        "secret": {"x-kubernetes-group-version-kind": core},
    }
    files = dict(release_schemas({"definitions": definitions}))
    assert files["networkpolicy-networking-v1"] == {"$ref": "all.json#/definitions/np"}
    assert files["secret-v1"] == {"$ref": "all.json#/definitions/secret"}


def test_custom_resource_has_a_file_for_each_version():
    versions = [{"name": name, "schema": {"openAPIV3Schema": {"properties": {}}}} for name in ("v1", "v2")]
    spec = {"group": "monitoring.coreos.com", "names": {"kind": "PodMonitor"}, "versions": versions}
    assert set(dict(custom_schemas({"spec": spec}))) == {"podmonitor-monitoring-v1", "podmonitor-monitoring-v2"}
