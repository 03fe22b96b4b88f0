"""What runs as a process of its own shows its numbers, too."""

import subprocess
import sys
from contextlib import suppress
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from processes import PATIENCE, held_port, until


@pytest.mark.parametrize(
    ("command", "family"),
    [
        (["directory", "--port=0", "--observe=0.0.0.0:{}", "--exposed"], "hexkv_directory_members"),
        (
            ["serve", "--budget=64MiB", "--largest=8MiB", "--observe=127.0.0.1:{}"],
            "hexkv_pool_bytes",
        ),
    ],
    ids=["directory", "serve"],
)
def test_a_command_shows_numbers_and_that_it_is_ready(command, family, tmp_path):
    port = held_port()
    words = [*(word.format(port) for word in command), "--json"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "hexkv.plugins", *words], stdout=log, stderr=log
        )
    try:

        def ready():
            assert process.poll() is None, (tmp_path / "log").read_text()
            with (
                suppress(OSError),
                urlopen(f"http://127.0.0.1:{port}/readyz", timeout=PATIENCE) as answer,
            ):
                return answer.status == 200
            return False

        until(ready)
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE) as answer:
            families = text_string_to_metric_families(answer.read().decode())
            assert family in {one.name for one in families}
    finally:
        process.terminate()
        assert process.wait(PATIENCE) == 0
