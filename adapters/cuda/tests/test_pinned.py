"""Memory is pinned for as long as anybody can reach it, and near the GPU if that is known."""

import logging
import os
import platform
import sys
from pathlib import Path

import pytest
import torch

from devices.host_registrar import HostRegistrar
from hexkv.adapters.cuda import pinned
from hexkv.adapters.cuda.numa import node_near, prefer
from hexkv.adapters.cuda.pinned import PinnedMemory
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.contracts.kit.cases import each
from hexkv.kernels.transfer import CudaRegistrar
from hexkv.plugins.support.mapped import RegistrableMapping
from hexkv.ports import PAGE, REGISTRATIONS, InvalidRequest, PoolExhausted

MIB = 1 << 20
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")


def test_a_region_is_registered_whole_until_it_is_closed():
    driver = HostRegistrar()
    region = PinnedMemory(registrar=driver).allocate(MIB + 1)
    assert driver.ranges == {region.address: MIB + PAGE}
    region.buffer[:5] = b"bytes"
    region.close()
    assert driver.ranges == {}
    assert driver.last == b"bytes"


def test_a_forked_child_leaves_the_parents_registration_alone(monkeypatch):
    driver = HostRegistrar()
    region = PinnedMemory(registrar=driver).allocate(MIB)
    child = os.getpid() + 1
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: child)
        region.close()
    assert len(driver.ranges) == 1


def test_what_somebody_looks_at_stays_registered_until_nobody_does():
    driver = HostRegistrar()
    region = PinnedMemory(registrar=driver).allocate(MIB)
    late = region.buffer[:PAGE]
    region.close()
    assert len(driver.ranges) == 1
    late[:5] = b"later"
    late.release()
    del late
    assert driver.ranges == {}
    assert driver.last == b"later"


def test_what_the_driver_refuses_is_pool_exhausted_and_gives_its_memory_back():
    with pytest.raises(PoolExhausted, match="cudaHostRegister"):
        PinnedMemory(registrar=HostRegistrar(refuse=True)).allocate(MIB)


def test_more_than_the_machine_has_is_refused_with_both_numbers():
    with pytest.raises(PoolExhausted, match=r"8,192 bytes .* 8,191 are available"):
        PinnedMemory(available=lambda: 8191).allocate(8192)


@no_gpu
def test_without_a_gpu_the_memory_is_ordinary_and_says_so(caplog):
    with caplog.at_level(logging.WARNING, logger="hexkv"):
        provider = PinnedMemory.near(0)
    assert not provider.pins
    assert "no GPU" in caplog.text


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux where memory is")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no number for mbind")
def test_memory_is_asked_for_from_the_node(caplog):
    region = PinnedMemory(node=0).allocate(MIB)
    if "is not taken" in caplog.text:
        pytest.skip(f"this system does not let a process choose: {caplog.text}")
    policies = {
        int(line.split()[0], 16): line.split()[1]
        for line in Path("/proc/self/numa_maps").read_text().splitlines()
    }
    start = max(at for at in policies if at <= region.address)
    assert policies[start] == "prefer:0"
    region.close()


def test_a_node_that_is_not_there_is_no_reason_not_to_have_memory(caplog):
    region = PinnedMemory(node=1000).allocate(PAGE)
    assert "NUMA node 1000" in caplog.text
    region.close()


@each("node", [-1, 1024])
def test_a_number_that_no_node_can_have_is_refused(node):
    with pytest.raises(OSError, match="cannot be asked for"):
        prefer(0, PAGE, node)


@each(("text", "node"), [("1\n", 1), ("-1\n", None), ("x", None), (None, None)])
def test_the_node_of_a_gpu_is_what_the_system_says_of_its_slot(tmp_path_factory, text, node):
    tmp_path = tmp_path_factory.mktemp("case")
    folder = tmp_path / "bus/pci/devices/0000:3b:00.0"
    folder.mkdir(parents=True)
    if text is not None:
        (folder / "numa_node").write_text(text)
    assert node_near("0000:3B:00.0", tmp_path) == node


@pytest.mark.gpu
@needs_gpu
def test_the_memory_is_pinned_as_torch_sees_it():
    region = PinnedMemory.near(0).allocate(MIB)
    assert torch.frombuffer(region.buffer[:PAGE], dtype=torch.uint8).is_pinned()
    region.close()


@pytest.mark.gpu
@needs_gpu
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(InvalidRequest, match="no 99"):
        pinned.PinnedMemory.near(99)


@pytest.mark.thorough
@pytest.mark.gpu
@needs_gpu
def test_memory_that_processes_share_is_pinned_where_it_is_offered_and_once():
    descriptor = os.memfd_create("pool")
    os.ftruncate(descriptor, 4 * PAGE)
    mapping, other = (RegistrableMapping(descriptor, 4 * PAGE) for _ in "12")
    REGISTRATIONS.offer(mapping)
    CudaKV("cuda")
    shown = [torch.frombuffer(one, dtype=torch.uint8) for one in (mapping, other)]
    assert [one.is_pinned() for one in shown] == [True, False]
    with pytest.raises(OSError, match="712"):
        CudaRegistrar(torch.cuda.current_device()).register(mapping.address, PAGE)
    assert torch.ones(2, device="cuda").sum() == 2  # the error is forgotten
    shown[0].fill_(7)
    there = shown[0].to("cuda", non_blocking=True)
    torch.cuda.synchronize()
    assert bool((there == 7).all())
    assert bool((shown[1] == 7).all())
    os.close(descriptor)
