import ctypes
import errno
import mmap
import sys
import threading
from pathlib import Path

import pytest

from hexkv.contracts.kit.cases import each
from hexkv.contracts.memory import MemoryContract
from hexkv.plugins.memory import mapping
from hexkv.plugins.memory.mapping import MmapMemory, MmapRegion
from hexkv.plugins.support.available import available_bytes
from hexkv.ports import PAGE, PoolExhausted

MIB = 1 << 20


def resident_bytes(region: MmapRegion) -> int:
    """What the kernel has backed of the region alone: to it, neighbours may be one mapping."""
    size = len(region.buffer)
    backed = (ctypes.c_ubyte * (size // mmap.PAGESIZE))()
    address, length = ctypes.c_void_p(region.address), ctypes.c_size_t(size)
    assert ctypes.CDLL(None).mincore(address, length, backed) == 0
    return mmap.PAGESIZE * sum(state & 1 for state in backed)


@pytest.mark.thorough
class TestHugePages(MemoryContract):
    @pytest.fixture
    def provider(self):
        return MmapMemory()


class TestSmallPages(MemoryContract):
    @pytest.fixture
    def provider(self):
        return MmapMemory(huge_pages=False)


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
@each("huge_pages", [True, False])
def test_pages_are_backed_as_they_are_used_or_all_of_them_at_start(huge_pages):
    region = MmapMemory(huge_pages=huge_pages).allocate(16 * MIB)
    assert resident_bytes(region) == 0
    region.buffer[: 4 * MIB] = bytes([1]) * 4 * MIB
    assert 4 * MIB <= resident_bytes(region) < 8 * MIB
    region.close()
    region = MmapMemory(huge_pages=huge_pages, prefault=True).allocate(16 * MIB)
    assert resident_bytes(region) >= 16 * MIB
    region.close()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_pages_are_backed_ahead_of_use_and_only_so_far(monkeypatch):
    monkeypatch.setattr(mapping, "AHEAD", 4 * MIB)
    region = MmapMemory(huge_pages=False).allocate(32 * MIB)
    for used, backed in ((PAGE, 6), (3 * MIB, 6), (5 * MIB, 10), (31 * MIB, 32)):
        region.prefault(used)
        for thread in threading.enumerate():
            if thread.name == "hexkv-prefault":
                thread.join()
        assert resident_bytes(region) == backed * MIB
    region.close()


def test_where_no_thread_can_be_had_pages_wait_for_their_first_use(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    region = MmapMemory().allocate(PAGE)
    region.prefault(PAGE)
    region.buffer[:] = bytes(PAGE)
    region.close()


class OldKernelMap(mmap.mmap):
    """A mapping of a kernel that knows no advice at all."""

    def madvise(self, *advice: int) -> None:
        raise OSError(errno.EINVAL, "Invalid argument")


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_pages_are_backed_on_a_kernel_that_takes_no_advice(monkeypatch):
    monkeypatch.setattr(mmap, "mmap", OldKernelMap)
    region = MmapMemory(prefault=True).allocate(16 * MIB + PAGE)
    assert resident_bytes(region) >= 16 * MIB + PAGE
    region.close()


def test_more_than_the_machine_has_is_refused_with_both_numbers():
    with pytest.raises(PoolExhausted, match=r"8,192 bytes .* 8,191 are available"):
        MmapMemory(available=lambda: 8191).allocate(8192)


def test_what_the_system_refuses_is_pool_exhausted(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(PoolExhausted, match="Cannot allocate memory"):
        MmapMemory().allocate(PAGE)


V2 = ("0::", "", "memory.max", "memory.current", "inactive_file")
V1 = (
    "3:hugetlb,memory:",
    "memory",
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    "total_inactive_file",
)


def machine(
    root: Path,
    available_kib: int,
    groups: dict[str, tuple[str, int, int]],
    inside: str,
    version: tuple[str, str, str, str, str] = V2,
):
    """A fake /proc and /sys: each group has a limit, its use, and inactive page cache."""
    line, mount, most, now, idle = version
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal:  99999999 kB\nMemAvailable:   {available_kib} kB\n"
    )
    (root / "proc/self/cgroup").write_text(f"9:cpu:/\n{line}{inside}\n")
    for name, (limit, used, inactive) in groups.items():
        folder = root / "sys/fs/cgroup" / mount / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / most).write_text(f"{limit}\n")
        (folder / now).write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\n{idle} {inactive}\n")
    return root


def test_without_a_limit_the_machine_decides(tmp_path):
    assert available_bytes(machine(tmp_path, 7, {"a": ("max", 5, 0)}, "/a")) == 7 * 1024


@each("version", [V1, V2], ids=["cgroup 1", "cgroup 2"])
def test_the_tightest_group_around_the_process_decides(tmp_path_factory, version):
    tmp_path = tmp_path_factory.mktemp("case")
    groups = {"a": ("1000", 300, 100), "a/b": ("5000", 0, 0), "other": ("1", 0, 0)}
    assert available_bytes(machine(tmp_path, 7, groups, "/a/b", version)) == 800


@each("version", [V1, V2], ids=["cgroup 1", "cgroup 2"])
@each("inside", ["/", "/host/path/of/the/container"])
def test_a_container_sees_its_limit_at_the_top(tmp_path_factory, inside, version):
    tmp_path = tmp_path_factory.mktemp("case")
    assert available_bytes(machine(tmp_path, 7, {"": ("1000", 300, 0)}, inside, version)) == 700


def test_a_group_over_its_limit_has_nothing_to_give(tmp_path):
    assert available_bytes(machine(tmp_path, 7, {"a": ("1000", 3000, 0)}, "/a")) == 0


def test_a_system_without_proc_is_asked_for_all_it_has(tmp_path):
    assert available_bytes(tmp_path) > 64 * MIB
