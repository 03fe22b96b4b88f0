"""A real Prometheus with the project's rules, whose minutes may be shorter than others'."""

import importlib.util
import json
import re
import subprocess
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from processes import PATIENCE, free_port, until

HERE = Path(__file__).parents[3] / "examples" / "deploy" / "monitoring"


def generator():
    """The module that writes the dashboard and the rules."""
    spec = importlib.util.spec_from_file_location("generate", HERE / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def shortened(groups, minute, day, least=0):
    """The text of a file of rules, with a minute and a day of these lengths in seconds.

    An alert that waits at all waits for *least* seconds.
    """
    units = {"m": minute, "h": 60 * minute, "d": day}

    def timed(text):
        return re.sub(r"\b(\d+)([mhd])\b", lambda m: f"{int(m[1]) * units[m[2]]}s", text)

    for rule in (rule for group in groups for rule in group["rules"]):
        rule["expr"] = timed(rule["expr"])
        if seconds := int(timed(rule.get("for", "0s")).removesuffix("s")):
            rule["for"] = f"{max(seconds, least)}s"
    return yaml.safe_dump({"groups": groups}, sort_keys=False)


class Prometheus:
    """Asked over HTTP."""

    def __init__(self, port):
        self.url = f"http://127.0.0.1:{port}"

    def get(self, path, **said):
        """What an answer says; ``None`` while there is none."""
        url = f"{self.url}/api/v1/{path}"
        try:
            with urlopen(f"{url}?{urlencode(said)}" if said else url, timeout=PATIENCE) as answer:
                found = json.load(answer)
        except HTTPError as error:
            if error.code == 503:  # it has just begun
                return None
            raise
        except URLError as error:
            if isinstance(error.reason, ConnectionError):
                return None
            raise
        assert found["status"] == "success", said
        return found["data"]

    def ask(self, query):
        """The series of an expression, right now."""
        found = self.get("query", query=query)
        return [] if found is None else found["result"]

    def alerts(self, state="firing"):
        """Alerts in *state* now: name, job and tier of each."""
        found = self.get("alerts") or {"alerts": []}
        return {
            (labels["alertname"], labels.get("job", ""), labels.get("tier", ""))
            for alert in found["alerts"]
            if alert["state"] == state
            for labels in [alert["labels"]]
        }

    def ever(self, seconds):
        """Which alerts fired within the last *seconds*."""
        query = f'count by (alertname) (last_over_time(ALERTS{{alertstate="firing"}}[{seconds}s]))'
        return {row["metric"]["alertname"] for row in self.ask(query)}


@contextmanager
def prometheus(folder, jobs, rules):
    """One that scrapes each of *jobs*, addresses by name, every second.

    Args:
        folder: where it keeps its files.
        jobs: addresses by name.
        rules: the text of a file of rules.
    """
    port = free_port()
    (folder / "rules.yaml").write_text(rules)
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(folder / "rules.yaml")],
        "scrape_configs": [
            {"job_name": name, "static_configs": [{"targets": [address]}]}
            for name, address in jobs.items()
        ],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config))
    command = [
        *("prometheus", f"--config.file={folder / 'prometheus.yaml'}"),
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        found = Prometheus(port)

        def up():
            assert process.poll() is None, (folder / "prometheus.log").read_text()
            return len(found.ask("up == 1")) == len(jobs)

        until(up)
        yield found
    finally:
        process.terminate()
        process.wait(PATIENCE)
