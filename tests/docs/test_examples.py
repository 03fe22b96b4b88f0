"""Examples work as their docstrings state."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hexkv.contracts.kit.cases import each
from servers.lm_servers import SMALL, served

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.thorough
@each("name", ["numpy_alone.py", "with_asyncio.py", "http_server.py"])
def test_an_example_ends_with_the_answer_that_it_checks(name, tmp_path):
    path = os.pathsep.join(filter(None, (str(EXAMPLES), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_client_in_c_puts_a_value_into_the_server_and_gets_it_back(tmp_path):
    client = tmp_path / "lm_client"
    source = EXAMPLES / "lm_client.c"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", client, source], check=True)
    with served(*SMALL) as server:
        subprocess.run([client, str(server.port)], check=True, timeout=60)
