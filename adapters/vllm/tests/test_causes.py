"""The cause for which a rank cannot start is the last line of the first process."""

import subprocess
import sys

import pytest

RANK = """
from hexkv.plugins.support.causes import causing
from hexkv.ports import ConfigError
with causing():
    raise ConfigError("tiers[1].settings.root: cannot be\\nmade")
"""
BETWEEN = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {RANK!r}])"
FIRST = """
import subprocess, sys
from hexkv.adapters.vllm.configuration.early import end_with_cause
end_with_cause()
subprocess.run([sys.executable, '-c', {}])
raise RuntimeError("Engine core initialization failed. See root cause above.")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="processes find each other in /proc")
def test_the_first_process_ends_its_log_with_the_cause_of_a_rank():
    done = subprocess.run(
        [sys.executable, "-c", FIRST.format(repr(BETWEEN))], capture_output=True, text=True
    )
    *_, first, last = done.stderr.splitlines()
    assert first == "vLLM does not start, because hexkv cannot:"
    assert last == "ConfigError: tiers[1].settings.root: cannot be made"


def test_without_a_cause_the_log_ends_as_it_did():
    done = subprocess.run(
        [sys.executable, "-c", FIRST.format(repr("pass"))], capture_output=True, text=True
    )
    assert done.stderr.endswith("See root cause above.\n")
