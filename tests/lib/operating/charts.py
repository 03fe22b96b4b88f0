"""The chart of ``examples/deploy``, rendered."""

import json
import shutil
import subprocess

import pytest
import yaml

from operating.installing import ROOT

DEPLOY = ROOT / "examples" / "deploy"
CHART = DEPLOY / "helm" / "hexkv"


def rendered(values, tmp_path):
    """The chart's manifests by kind and name: by Helm itself, or by its library in Python."""
    if shutil.which("helm"):
        file = tmp_path / "values.json"
        file.write_text(json.dumps(values))
        words = ["helm", "template", "kv", str(CHART), "--values", str(file)]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    else:
        charts = pytest.importorskip("helm_python.chart")
        text = "\n---\n".join(charts.Chart.load(CHART).render(values, name="kv").values())
    found = [manifest for manifest in yaml.safe_load_all(text) if manifest]
    return {(it["kind"], it["metadata"]["name"]): it for it in found}
