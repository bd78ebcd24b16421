"""The SparkApplication of kubeflow's Spark operator, as the API server and kubeconform know it: from its Python models.

They are generated from the operator's API. In the operator's own definition the pods' templates have no schema; here
they have that of Kubernetes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests.deploy.programs import ensure_tools

_MODEL = "SparkV1beta2SparkApplication"
_PRINT_SCHEMA = (
    f"import json; from kubeflow_spark_api.models import {_MODEL}; print(json.dumps({_MODEL}.model_json_schema()))"
)
_GROUP, _PLURAL = "sparkoperator.k8s.io", "sparkapplications"
_KEPT = ("type", "enum", "format", "required")
_NUMBER_OR_TEXT = ("IntOrString", "Quantity")
"""Ends of the names of models that hold either."""


def spark_application_definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    done = subprocess.run(
        [sys.executable, "-c", _PRINT_SCHEMA],
        env={**os.environ, "PYTHONPATH": str(ensure_tools())},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    models = json.loads(done.stdout)
    schema = _structural(models, models["$defs"])
    # The API server has its own.
    schema["properties"]["metadata"] = {"type": "object"}
    version = {"name": "v1beta2", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": "SparkApplication", "plural": _PLURAL, "singular": "sparkapplication"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{_PLURAL}.{_GROUP}",
            # Without it nobody may define a group of this domain.
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubeflow/spark-operator/pull/1298"},
        },
        "spec": {"group": _GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def _structural(schema: dict[str, Any], models: dict[str, Any]) -> dict[str, Any]:
    """Return a schema without references and nulls, which a definition may not have."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        either = name.endswith(_NUMBER_OR_TEXT)
        return {"x-kubernetes-int-or-string": True} if either else _structural(models[name], models)
    if "anyOf" in schema:
        [only] = [choice for choice in schema["anyOf"] if choice != {"type": "null"}]
        return _structural(only, models)
    made = {key: schema[key] for key in _KEPT if key in schema}
    if "properties" in schema:
        made["properties"] = {name: _structural(inner, models) for name, inner in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            made[key] = _structural(schema[key], models)
    if schema.get("additionalProperties") is True:
        made["x-kubernetes-preserve-unknown-fields"] = True
    return made
