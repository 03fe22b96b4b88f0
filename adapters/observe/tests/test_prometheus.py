"""A real Prometheus scrapes an engine, in the format that it asks for first."""

import json
import shutil
import subprocess
from http.client import HTTPConnection
from urllib.parse import quote

import pytest

from configured import CHUNK, PROMPT, built, computed, hit
from processes import PATIENCE, held_port, until

pytestmark = pytest.mark.thorough


def ask(port, path):
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())["data"]
    except (OSError, ValueError):
        return None
    finally:
        connection.close()


def test_prometheus_finds_each_number_and_promtool_nothing_to_say(tmp_path):
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        pytest.skip("needs Debian's prometheus")
    shown, events, port = held_port(), held_port(), held_port()
    scraped = {"job_name": "hexkv", "static_configs": [{"targets": [f"127.0.0.1:{shown}"]}]}
    whole = {"global": {"scrape_interval": "1s"}, "scrape_configs": [scraped]}
    (tmp_path / "prometheus.yml").write_text(json.dumps(whole))
    observe = {"address": f"127.0.0.1:{shown}", "events": f"127.0.0.1:{events}"}
    with built(tmp_path / "disk", observe=observe) as engine:
        engine.store(PROMPT, computed())
        engine.flush()
        assert hit(engine) == len(PROMPT)
        command = ["prometheus", f"--config.file={tmp_path}/prometheus.yml"]
        command += [
            f"--storage.tsdb.path={tmp_path}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:

            def found(query):
                answer = ask(port, f"/api/v1/query?query={quote(query)}")
                assert process.poll() is None, (tmp_path / "log").read_text()
                return [float(row["value"][1]) for row in answer["result"]] if answer else []

            count = len(PROMPT) // CHUNK
            for query, value in (
                ("up", 1),
                ("sum(hexkv_hits_total)", count),
                ('sum(hexkv_stored_tokens_total{tier="disk"})', len(PROMPT)),
                ('hexkv_events_announced_chunks{medium="DISK"}', count),
            ):
                until(lambda query=query, value=value: found(query) == [value])
            (target,) = ask(port, "/api/v1/targets")["activeTargets"]
            assert target["lastError"] == ""
            kinds = ask(port, "/api/v1/metadata?metric=hexkv_hits")
            assert kinds["hexkv_hits"][0]["type"] == "counter", "as OpenMetrics names it"
        finally:
            process.terminate()
            process.wait(PATIENCE)
        connection = HTTPConnection("127.0.0.1", shown, timeout=PATIENCE)
        connection.request("GET", "/metrics")
        page = connection.getresponse().read()
        connection.close()
    checked = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True)
    assert (checked.returncode, checked.stderr) == (0, b""), checked.stderr.decode()
