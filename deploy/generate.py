"""Write the generated files of the chart: `python -m deploy.generate`.

A test compares them with what is checked in.

- `values.schema.json`: of the values, with the settings as `schemas/` has them, so that an unknown key is refused
- `files/spark.conf`, `files/prometheus-rules.json`: those of `conf/`
- `files/dashboards/`: `deploy.dashboards`
"""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from deploy.dashboards import DASHBOARDS, dashboard
from schemas.settings.root import Settings

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "anabranch"
_CHOICES = {
    ("job", "kind"): ["StatefulSet", "SparkApplication"],
    ("kafka", "securityProtocol"): ["PLAINTEXT", "SSL", "SASL_SSL", "SASL_PLAINTEXT"],
    ("executor", "mode"): ["observe", "approve", "act"],
    ("image", "pullPolicy"): ["Always", "IfNotPresent", "Never"],
}
_FORMS = {
    r"(Secret|Claim|storageClass)$": r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
    r"([rR]epository|^tag)$": r"^[\w./:-]*$",
    r"^(memory|storage)$": r"^[0-9]+([.][0-9]+)?([KMGT]i?|k)?$",
    r"(Memory|memoryOverhead)$": r"^[0-9]+[kmgt]$",
    r"^metadata$": r"^(sqlite|zks?://[^/\s]+(/[\w.-]+)*/?)$",
    r"^master$": r"^(spark://[\w.,:-]+)?$",
}
"""Forms of values by their last names: templates put these into YAML and files without quotes."""
_OPEN = {"podLabels", "nodeSelector", "affinity", "annotations", "labels"}
"""Values that Kubernetes checks itself."""


def settings_schema() -> dict[str, Any]:
    """Return the JSON Schema of any part of the settings, without secrets."""
    schema = Settings.model_json_schema(ref_template="#/$defs/{model}")
    definitions = schema.pop("$defs")
    for model in (schema, *definitions.values()):
        model.pop("required", None)
        properties = model.get("properties", {})
        for name in [name for name, value in properties.items() if '"format": "password"' in json.dumps(value)]:
            del properties[name]
    del schema["properties"]["home"]
    return {"settings": schema, "$defs": definitions}


def values_schema() -> dict[str, Any]:
    """Return the JSON Schema of `values.yaml`: its keys and types, and no others."""
    parts = settings_schema()
    schema = _schema_of(yaml.safe_load((CHART / "values.yaml").read_text()), ())
    schema["properties"]["settings"] = parts["settings"]
    # Helm itself sets it for subcharts.
    schema["properties"]["global"] = {"type": "object"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "$defs": parts["$defs"]}


def _schema_of(value: Any, path: tuple[str, ...]) -> dict[str, Any]:
    if path in _CHOICES:
        return {"enum": _CHOICES[path]}
    if isinstance(value, dict):
        if path and path[-1] in _OPEN:
            return {"type": "object"}
        properties = {name: _schema_of(inner, (*path, name)) for name, inner in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int):
        return {"type": "integer", "minimum": 0 if path[-1] == "actionsPerMinute" else 1}
    if isinstance(value, list):
        return {"type": "array"}
    pattern = next((form for names, form in _FORMS.items() if re.search(names, path[-1])), None)
    return {"type": "string", **({"pattern": pattern} if pattern else {})}


def generated() -> dict[Path, str]:
    """Return the text of every generated file."""
    rules = json.loads(_without_comments((ROOT / "conf" / "prometheus-alerts.yml").read_text()))
    return {
        CHART / "values.schema.json": _json(values_schema()),
        CHART / "files" / "spark.conf": (ROOT / "conf" / "spark.conf").read_text(),
        CHART / "files" / "prometheus-rules.json": _json(rules),
        **{CHART / "files" / "dashboards" / f"{one.name}.json": _json(dashboard(one)) for one in DASHBOARDS},
    }


def _without_comments(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


if __name__ == "__main__":
    for file, text in generated().items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
