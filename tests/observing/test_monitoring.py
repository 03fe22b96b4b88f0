"""The dashboard, the recording rules and the alerts that come along stay true to the metrics."""

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
import yaml

from configured import PROMPT, built, computed, hit
from hexkv.plugins.observing.families import DROP_REASONS, MISS_REASONS
from hexkv.plugins.observing.telemetry import families
from processes import PATIENCE, free_port, held_port, until

HERE = Path(__file__).parents[2] / "examples" / "deploy" / "monitoring"
SALT = "0123456789abcdef0123456789abcdef"
OF_DIRECTORIES = {"hexkv_directory_members"}
CONFIGURATION = {
    "directory": {"adapter": "embedded"},
    "compute_rate": 1000.0,
    "tenants": [{"name": "one", "salt": SALT, "quotas": {"memory": "64KiB"}}],
}


@pytest.fixture(scope="module")
def made():
    """The module that writes the files."""
    spec = importlib.util.spec_from_file_location("generate", HERE / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def queries(found):
    """Every expression in a dashboard or in rules."""
    if isinstance(found, dict):
        more = queries(list(found.values()))
        return [found["expr"], *more] if "expr" in found else more
    return [each for item in found for each in queries(item)] if isinstance(found, list) else []


def all_queries():
    dashboard = json.loads((HERE / "dashboard.json").read_text())
    return queries(dashboard), queries(yaml.safe_load((HERE / "rules.yaml").read_text()))


def test_what_is_committed_is_what_the_code_writes(made):
    assert (HERE / "dashboard.json").read_text() == made.dashboard()
    assert (HERE / "rules.yaml").read_text() == made.rules()


def test_each_family_is_used_or_left_out_for_a_reason_and_no_other_is_named(made, tmp_path):
    with built(tmp_path, **CONFIGURATION) as engine:
        exported = {family.name: family.kind for family in families(engine)}
    shown, ruled = all_queries()
    named = {name for query in shown + ruled for name in re.findall(r"\bhexkv_\w+", query)}
    used = {re.sub("_bucket$", "", name) for name in named} - OF_DIRECTORIES
    assert used <= set(exported)
    assert used | set(made.LEFT_OUT) == set(exported)
    assert not used & set(made.LEFT_OUT)
    recorded = {name for query in shown for name in re.findall(r"\bhexkv:[\w:]+", query)}
    assert recorded <= set(made.RECORDED)
    for query in shown + ruled:
        for name in re.findall(r"rate\((\w+)", query):
            assert exported[re.sub("_bucket$", "", name)] in ("counter", "histogram"), query


def test_each_alert_has_a_paragraph_and_each_panel_a_description(made):
    text = (HERE.parents[2] / "docs" / "symptoms.md").read_text()
    assert {f"### {alert.name}" for alert in made.ALERTS} <= set(text.splitlines())
    for alert in yaml.safe_load((HERE / "rules.yaml").read_text())["groups"][1]["rules"]:
        assert alert["annotations"]["runbook_url"] == f"{made.RUNBOOKS}#{alert['alert'].lower()}"
    panels = [p for p in json.loads(made.dashboard())["panels"] if p["type"] != "row"]
    assert len(panels) > 30
    assert {panel["title"] for panel in panels if not panel.get("description")} == set()


def test_each_reason_has_a_remedy():
    """Of a miss, and of a chunk that is not stored: a row of its table in Troubleshooting."""
    text = (HERE.parents[2] / "docs" / "symptoms.md").read_text()
    missed, _, dropped = text.partition("## KV is not stored")
    for part, reasons in ((missed, MISS_REASONS), (dropped, DROP_REASONS)):
        rows = " ".join(re.findall(r"^\| (`[^|]+) \|", part, re.MULTILINE))
        assert {reason for reason in reasons if f"`{reason}`" not in rows} == set()


def test_each_alert_is_tested_where_it_fires_and_where_it_does_not(made):
    cases = yaml.safe_load((HERE / "rules.test.yaml").read_text())["tests"]
    asked = [
        (one["alertname"], bool(one["exp_alerts"])) for t in cases for one in t["alert_rule_test"]
    ]
    names = [alert.name for alert in made.ALERTS]
    assert set(asked) == {(name, fires) for name in names for fires in (False, True)}


def prometheus_is_there():
    return shutil.which("promtool") and shutil.which("prometheus")


needs_prometheus = pytest.mark.skipif(
    not prometheus_is_there(), reason="Debian's prometheus is not installed: `make servers` does so"
)


@needs_prometheus
def test_promtool_takes_the_rules_and_their_tests():
    command = ["promtool", "test", "rules", "rules.test.yaml"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
@pytest.mark.thorough
def test_every_query_gives_series_in_a_real_prometheus(tmp_path):
    port, own = held_port(), free_port()
    scraped = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(HERE / "rules.yaml")],
        "scrape_configs": [
            {"job_name": "hexkv", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
        ],
    }
    config = tmp_path / "prometheus.yaml"
    config.write_text(yaml.safe_dump(scraped))
    command = [
        *("prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"),
        f"--web.listen-address=127.0.0.1:{own}",
    ]

    def ask(query):
        query = query.replace("$job", ".*").replace("$__rate_interval", "1m")
        url = f"http://127.0.0.1:{own}/api/v1/query?{urlencode({'query': query})}"
        with urlopen(url, timeout=PATIENCE) as answer:
            found = json.load(answer)
        assert found["status"] == "success", query
        return found["data"]["result"]

    def answers():
        try:
            return bool(ask("up == 1"))
        except OSError:
            return False

    shown, ruled = all_queries()
    with (
        built(tmp_path, observe={"address": f"127.0.0.1:{port}"}, **CONFIGURATION) as engine,
        subprocess.Popen(command, stderr=subprocess.DEVNULL) as prometheus,
    ):
        try:
            until(answers)
            engine.store(PROMPT, computed())
            assert hit(engine) == len(PROMPT)
            until(lambda: ask("sum(rate(hexkv_hit_tokens_total[1m])) > 0"))
            until(lambda: all(ask(query) for query in shown))
            for query in ruled:
                ask(query)
        finally:
            prometheus.terminate()
