"""A directory or a driver that is dead, slow, lying, full or read-only, where GPUs read files.

What the contract breaks (the directory is gone, or full; somebody keeps its ledger) is in
``test_store.py``; what an engine does meanwhile, in ``interpreted``.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from devices import device_rooms
from devices.device_rooms import Memory, fetch, put
from hexkv.contracts.doubles import ListSink, chunk_key, deadline
from hexkv.contracts.kit.waiting import UnderWay
from hexkv.ports import PAGE, Corrupt, Failed, Hit, Miss
from media.chunk_files import Files
from media.mounts import NAMESPACE, needs_mounts
from processes import until

KEY = chunk_key("a")


def test_a_driver_that_says_more_came_than_was_asked_for_has_failed(open_gds, cufile):
    store, memory = open_gds(cufile.path), Memory()
    frame = put(store, KEY, 3 * PAGE)
    cufile.lie("more came")
    outcome, _ = fetch(store, KEY, memory, 0, 2 * PAGE)
    assert isinstance(outcome, Failed)
    assert "were asked for" in str(outcome.error)
    cufile.lie("")
    assert fetch(store, KEY, memory, 0, 2 * PAGE) == (Hit(len(frame)), frame)


@pytest.mark.thorough
def test_a_driver_that_ends_each_read_early_has_the_rest_read_and_a_file_that_does_is_corrupt(
    open_gds, cufile, tmp_path
):
    store, memory = open_gds(cufile.path), Memory()
    frame = put(store, KEY, 9 * PAGE)
    cufile.short(PAGE)
    assert fetch(store, KEY, memory, 0, 8 * PAGE) == (Hit(len(frame)), frame)
    cufile.short(PAGE - 512)
    assert isinstance(fetch(store, KEY, memory, 0, 8 * PAGE)[0], Corrupt)


@pytest.mark.thorough
def test_a_directory_that_is_gone_is_no_hit_and_the_driver_is_kept_for_its_return(
    open_gds, cufile, tmp_path_factory
):
    root = tmp_path_factory.mktemp("frames") / "mounted"
    store, memory = open_gds(cufile.path, root), Memory()
    frame = put(store, KEY, 2 * PAGE)
    away = root.with_name("elsewhere")
    root.rename(away)
    for _ in range(5):
        assert isinstance(fetch(store, KEY, memory, 0, PAGE)[0], Miss | Failed)
    away.rename(root)
    assert store.reads_to_devices
    assert fetch(store, KEY, memory, 0, PAGE) == (Hit(2 * PAGE), frame)
    assert cufile.broken == 0


@pytest.mark.thorough
def test_a_read_that_hangs_holds_up_nobody_else_and_closing_does_not_wait_for_it(open_gds, cufile):
    store, memory, other = open_gds(cufile.path), Memory(), Memory()
    frames = [put(store, chunk_key(name), 2 * PAGE) for name in "ab"]
    outcomes = {}
    cufile.stall()

    def read(name, into):
        outcomes[name] = fetch(store, chunk_key(name), into, 0, PAGE)

    reads = {"a": lambda: read("a", memory), "b": lambda: read("b", other)}
    with UnderWay(reads, cufile.go_on, patience=60.0):
        until(lambda: cufile.waiting == 2)
        sink = ListSink()
        calls = {
            "the host": lambda: store.read([KEY], sink, deadline()),
            "writing": lambda: put(store, chunk_key("c"), 5000),
            "closing": store.close,
        }
        for name, call in calls.items():
            with UnderWay({name: call}, patience=30.0) as one:
                assert not one.late(30.0), f"{name} waits for the driver"
        assert sink.data(0) == frames[0]
        assert cufile.held == (2, 2), "what is read into stays registered until that is over"
    assert outcomes == {
        name: (Hit(2 * PAGE), frame) for name, frame in zip("ab", frames, strict=True)
    }
    assert cufile.held == (0, 0)


READ_ONLY = """
import subprocess, sys
sys.path.insert(0, sys.argv[3])
from hexkv.contracts.doubles import chunk_key, deadline
from hexkv.adapters.gds.cufile import CuFile
from hexkv.adapters.gds.plugin import hexkv_adapters
from hexkv.plugins.clock import SystemClock
from hexkv.plugins.configuration.settings import parse_settings
from hexkv.plugins.spec import OpenContext
from hexkv.ports import PAGE, Hit, Item
from devices.device_rooms import Memory, fetch, put

root, library = sys.argv[1:3]
(spec,) = hexkv_adapters()

def opened():
    settings = {"root": root, "library": library, "directory": "fs"}
    return spec.open(parse_settings(spec, settings), OpenContext(SystemClock()))

def mount(*options):
    subprocess.run(["mount", *options, root], check=True)

mount("-t", "tmpfs", "-o", "size=1m", "none")
store, memory = opened(), Memory()
frame = put(store, chunk_key("a"), 3 * PAGE)
with open(f"{root}/filler", "wb", buffering=0) as file:
    try:
        while file.write(bytes(PAGE)):
            pass
    except OSError as error:
        print(error.strerror)
for state in ("full", "read-only"):
    if state == "read-only":
        mount("-o", "remount,ro")
    right = fetch(store, chunk_key("a"), memory, 0, 2 * PAGE) == (Hit(3 * PAGE), frame)
    item = Item(chunk_key("b"), memoryview(bytes(3 * PAGE)))
    (written,) = store.write([item], deadline())
    store.close()
    store = opened()
    again = fetch(store, chunk_key("a"), memory, 0, 2 * PAGE) == (Hit(3 * PAGE), frame)
    error = type(getattr(written, "error", written)).__name__
    print(state, right, error, store.reads_to_devices, again)
store.close()
"""


@needs_mounts
@pytest.mark.thorough
def test_a_directory_that_is_full_or_read_only_is_read_into_devices_even_from_a_new_start(
    cufile, tmp_path
):
    lib = str(Path(device_rooms.__file__).parents[1])
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", READ_ONLY, str(tmp_path), cufile.path, lib],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.stdout.splitlines() == [
        "No space left on device",
        "full True StoreFull True True",
        "read-only True StoreUnreachable True True",
    ], done.stderr


@pytest.mark.thorough
def test_what_is_damaged_on_the_medium_comes_as_it_is_for_the_device_to_refuse(
    open_gds, cufile, tmp_path
):
    """The store guesses nothing; who verifies is the device, and then the host."""
    store, memory = open_gds(cufile.path), Memory()
    frame = put(store, KEY, 3 * PAGE)
    damaged = frame[: 2 * PAGE] + bytes([frame[2 * PAGE] ^ 1]) + frame[2 * PAGE + 1 :]
    Files(tmp_path).put(KEY, damaged)
    assert fetch(store, KEY, memory, 0, 2 * PAGE) == (Hit(len(frame)), damaged)
    Files(tmp_path).put(KEY, frame[:-1])
    assert isinstance(fetch(store, KEY, memory, 0, 2 * PAGE)[0], Miss)
