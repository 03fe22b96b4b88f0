"""The cause for which SGLang cannot start is the last line of the first process."""

import signal
import subprocess
import sys

import pytest

RANK = """
from hexkv.plugins.support.causes import causing
from hexkv.ports import ConfigError
@causing()
def opened():
    raise ConfigError("tiers[1].settings.root: cannot be made")
opened()
"""
FIRST = f"""
import os, signal, subprocess, sys, types
engine = types.ModuleType("sglang.srt.utils.common")
def kill_process_tree(parent_pid, include_parent=True):
    print("killed:", include_parent, file=sys.stderr, flush=True)
    if include_parent:
        os._exit(0)
engine.kill_process_tree = kill_process_tree
sys.modules[engine.__name__] = engine
from hexkv.adapters.sglang import hooks
hooks.install()
hooks.install()
subprocess.run([sys.executable, "-c", {RANK!r}])
def launch_phase_sigquit_handler(*_): pass
signal.signal(signal.SIGQUIT, launch_phase_sigquit_handler)
engine.kill_process_tree(os.getpid(), include_parent=False)  # the end of a program's own engine
engine.kill_process_tree(os.getpid())
"""


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="processes find each other in /proc")
def test_the_first_process_writes_the_cause_of_a_scheduler_after_the_others_are_killed():
    done = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr.splitlines()[-4:] == [
        "killed: False",
        "killed: False",
        "SGLang does not start, because hexkv cannot:",
        "ConfigError: tiers[1].settings.root: cannot be made",
    ]
