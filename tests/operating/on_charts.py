"""Values for Helm charts against the charts' own schemas: ``make test-charts``, given the charts.

The charts are in no package registry, so whoever has a clone says where it is.
"""

import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml

VALUES = Path(__file__).parents[2] / "examples" / "deploy" / "helm"
CHARTS = {
    "production-stack": ("PRODUCTION_STACK", "helm/values.schema.json"),
    "llm-d": ("LLM_D_MODELSERVICE", "charts/llm-d-modelservice/values.schema.json"),
}


def unknown(value, schema, way=()):
    """Keys that the schema does not name, where it names any: Helm passes over such."""
    if isinstance(value, list):
        return [key for item in value for key in unknown(item, schema.get("items", {}), way)]
    if (
        way[-1:] == ("labels",)
        or not isinstance(value, dict)
        or not (known := schema.get("properties"))
    ):
        return []
    strange = [(*way, key) for key in value if key not in known]
    inner = ((key, item) for key, item in value.items() if key in known)
    return strange + [k for key, item in inner for k in unknown(item, known[key], (*way, key))]


@pytest.mark.parametrize("chart", CHARTS)
def test_values_are_what_the_chart_takes(chart):
    variable, place = CHARTS[chart]
    if not (clone := os.environ.get(variable)):
        pytest.skip(f"{variable} does not say where a clone of the chart is")
    schema = json.loads((Path(clone) / place).read_text())
    values = yaml.safe_load((VALUES / f"{chart}.yaml").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    assert [error.message for error in validator.iter_errors(values)] == []
    assert unknown(values, schema) == []
