"""Frames by kvikio, where it is installed: in processes of their own, for it is set up at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hexkv.adapters.gds.plugin import GdsSettings
from hexkv.plugins.spec import SettingError

HERE = Path(__file__).parent
PLACE = Path(sys.prefix) / "kvikio"

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def place():
    if not (PLACE / "kvikio").is_dir():
        pytest.skip("kvikio is missing: make .venv/kvikio/made")
    return PLACE


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """A folder with a libcuda."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the double of libcuda")
    made = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
    options = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    source = HERE / "cuda_double.c"
    subprocess.run([compiler, *options, "-o", made, source], check=True, timeout=600)
    return made.parent


def run(place, libraries, *command):
    libraries = [*map(str, libraries), str(place / "nvidia" / "cufile" / "lib")]
    paths = {"PYTHONPATH": str(place), "LD_LIBRARY_PATH": ":".join(libraries)}
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | paths | {"KVIKIO_COMPAT_MODE": "ON"},
        capture_output=True,
        text=True,
        timeout=1200,
    )


def test_the_store_keeps_its_contract_by_kvikio(place, driver):
    pytest_ = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", ""]
    done = run(place, [driver], *pytest_, HERE / "by_kvikio")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


OPENED = """
import logging, sys
from hexkv.adapters.gds.plugin import hexkv_adapters
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext

logging.basicConfig(format="%(message)s", stream=sys.stdout)
(spec,) = hexkv_adapters()
settings = parse_settings(spec, {"root": sys.argv[1], "driver": "kvikio"})
store = spec.open(settings, OpenContext(SystemClock()))
print(store.reads_to_devices)
store.close()
"""


def test_without_a_driver_of_cuda_the_store_is_disk_and_says_why_in_one_line(place, tmp_path):
    done = run(place, [], "-c", OPENED, tmp_path)
    if "True" in done.stdout:
        pytest.skip("there is a driver of CUDA here")
    line, reads = done.stdout.splitlines()
    assert "libcuda.so.1" in line
    assert "the host reads, as with disk" in line
    assert reads == "False", done.stderr


def test_without_kvikio_the_store_is_disk(tmp_path):
    done = run(tmp_path, [], "-c", OPENED, tmp_path)
    line, reads = done.stdout.splitlines()
    assert "kvikio cannot be imported" in line
    assert reads == "False", done.stderr


def test_a_library_is_cufiles_alone():
    with pytest.raises(SettingError, match="kvikio"):
        GdsSettings("root", driver="kvikio", library="libcufile.so.0")
