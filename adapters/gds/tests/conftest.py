"""A double of cuFile, compiled once, loaded anew for each test."""

import ctypes
import itertools
import shutil
import subprocess
from pathlib import Path

import pytest

from hexkv.adapters.gds.plugin import hexkv_adapters
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext

NUMBERS = itertools.count()
FUNCTIONS = ("open", "handle", "unhandle", "buf", "unbuf", "read")
LIES = ("", "nothing came", "more came", "a bit is flipped", "of another place")


class Double:
    """The library at *path*, and what it was told and saw."""

    def __init__(self, path):
        self.path = str(path)
        self.library = ctypes.CDLL(self.path)
        self.library.double_short.argtypes = (ctypes.c_size_t,)

    def fail(self, function, number):
        self.library.double_fail(FUNCTIONS.index(function), number)

    def short(self, size):
        self.library.double_short(size)

    def lie(self, how):
        self.library.double_lie(LIES.index(how))

    def stall(self):
        """Have reads wait until they may go on."""
        self.library.double_stall(1)

    def go_on(self):
        self.library.double_stall(0)

    @property
    def waiting(self):
        """Reads that wait."""
        return self.library.double_waiting()

    def calls(self, function):
        return self.library.double_calls(FUNCTIONS.index(function))

    @property
    def broken(self):
        """Rules that were broken, and reads that were not aligned."""
        return self.library.double_broken() + self.library.double_unaligned()

    @property
    def held(self):
        """Files and rooms that are registered."""
        return self.library.double_held(0), self.library.double_held(1)


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler for the double of cuFile")
    made = tmp_path_factory.mktemp("cufile") / "libcufile_double.so"
    source = Path(__file__).with_name("cufile_double.c")
    options = ["-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run([compiler, *options, "-o", made, source], check=True, timeout=600)
    return made


@pytest.fixture
def cufile(compiled, tmp_path_factory):
    # A copy has a state of its own: a library is loaded once for each file.
    path = tmp_path_factory.mktemp("double") / f"libcufile_{next(NUMBERS)}.so"
    shutil.copy(compiled, path)
    return Double(path)


@pytest.fixture
def open_gds(tmp_path):
    """Opens stores as a configuration does; closes them."""
    (spec,) = hexkv_adapters()
    opened = []

    def open_gds(library="", root=tmp_path, **settings):
        made = parse_settings(spec, {"root": str(root), "library": library} | settings)
        opened.append(spec.open(made, OpenContext(SystemClock(), budget=128 << 20)))
        return opened[-1]

    yield open_gds
    for store in opened:
        store.close()
