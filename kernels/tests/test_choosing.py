"""Nobody waits for a compiler, and nobody needs one."""

import logging
import subprocess
import sys
from threading import Event

import pytest

from hexkv.kernels.coding import compiled, plain
from hexkv.kernels.coding.choosing import Choice


def test_numpy_codes_until_the_compiled_code_is_there():
    go = Event()

    def load():
        assert go.wait(60)
        return compiled

    choice = Choice(load)
    assert choice.coder is plain
    assert choice.coder is plain
    go.set()
    assert choice.wait(60)
    assert choice.coder is compiled


def test_nothing_is_compiled_before_it_is_wanted():
    loads = []
    choice = Choice(lambda: loads.append(1) or compiled)
    assert loads == []
    assert choice.wait(60)
    assert choice.wait(60)
    assert loads == [1]


def test_without_a_compiler_numpy_goes_on_and_the_log_says_so(caplog):
    def load():
        raise ImportError("no module named numba")

    choice = Choice(load)
    with caplog.at_level(logging.WARNING):
        assert not choice.wait(60)
    assert choice.coder is plain
    assert "no module named numba" in caplog.text


def test_coding_needs_no_torch():
    """An import of the coder must not cost seconds and gigabytes."""
    check = "import sys; import hexkv.kernels.coding.choosing; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


@pytest.mark.thorough
def test_a_folder_that_cannot_be_written_to_does_not_keep_numba_from_compiling(tmp_path):
    """The cache is for speed; a read-only installation has none."""
    check = (
        "import numba.core.caching as caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from hexkv.kernels.coding.compiled import moments\n"
        "import numpy as np\n"
        "assert moments(np.ones((3, 2), np.uint8))[0].tolist() == [3, 3]\n"
    )
    subprocess.run([sys.executable, "-c", check], check=True)
