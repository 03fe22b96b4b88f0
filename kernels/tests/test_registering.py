"""Memory of the host is registered with the driver, and taken for pinned if all of it is."""

import logging
from collections import Counter
from contextlib import contextmanager, suppress

import pytest
import torch

from devices.host_registrar import HostRegistrar
from devices.recorded_driver import Library
from hexkv.contracts.kit.cases import each
from hexkv.kernels import transfer
from hexkv.kernels.transfer import CudaDriver, CudaRegistrar, Piece, Runtime, gpus
from hexkv.plugins.support.mapped import RegistrableMapping
from hexkv.ports import PAGE
from hexkv.ports.runtime.registration import Registrations

GPU = torch.device("cuda", 1)

pytestmark = pytest.mark.thorough


class Cuda:
    """``torch.cuda`` of a process, as far as memory of the host is registered with it."""

    def __init__(self, monkeypatch):
        self.calls, self.current, self.code = [], None, 0
        self.library = Library(Counter())
        monkeypatch.setattr(torch.cuda, "device", self.entered)
        monkeypatch.setattr(torch.cuda, "cudart", lambda: self)
        monkeypatch.setattr(transfer, "runtime", lambda: Runtime(self.library, 13_000))

    @contextmanager
    def entered(self, device):
        self.current = device
        yield
        self.current = None

    def called(self, *call):
        if isinstance(self.code, Exception):
            raise self.code
        self.calls.append((self.current, *call))
        self.library.error = self.code
        return self.code

    def cudaHostRegister(self, address, size, flags):  # noqa: N802 - CUDA's name
        return self.called(address, size, flags)

    def cudaHostUnregister(self, address):  # noqa: N802
        return self.called(address)


@pytest.fixture
def cuda(monkeypatch):
    return Cuda(monkeypatch)


def test_memory_is_pinned_for_all_devices_by_a_call_for_the_engines_own(cuda):
    registrar = CudaRegistrar(GPU)
    registrar.register(PAGE, 2 * PAGE)
    registrar.unregister(PAGE)
    assert cuda.calls == [(GPU, PAGE, 2 * PAGE, 3), (GPU, PAGE)]


@each("why", [712, RuntimeError("Cannot re-initialize CUDA"), AssertionError("no CUDA")])
def test_what_cuda_refuses_is_an_os_error_and_torch_never_learns_of_it(cuda, caplog, why):
    cuda.code = why
    with pytest.raises(OSError, match=str(why)):
        CudaRegistrar(GPU).register(PAGE, PAGE)
    with caplog.at_level(logging.WARNING, logger="hexkv"):
        CudaRegistrar(GPU).unregister(PAGE)
    assert (
        f"stays registered with CUDA: {'cudaHostUnregister gave error 712' if why == 712 else why}"
        in caplog.text
    )
    assert not cuda.library.error


def test_the_first_window_on_a_gpu_registers_what_was_mapped_and_will_be(monkeypatch):
    process, driver = Registrations(), HostRegistrar()
    monkeypatch.setattr(transfer, "REGISTRATIONS", process)
    monkeypatch.setattr(transfer, "CudaRegistrar", lambda device: driver)
    before, later = (RegistrableMapping(-1, PAGE) for _ in "12")
    process.offer(before)
    assert not gpus([torch.device("cpu")])
    assert driver.ranges == {}
    for _ in range(2):
        assert gpus([torch.device("cpu"), GPU]) == {GPU}
    process.offer(later)
    assert driver.ranges == {before.address: PAGE, later.address: PAGE}
    del before, later
    assert driver.ranges == {}
    assert driver.wrong == []


def test_an_interrupt_behind_the_driver_s_call_leaves_nothing_pinned_that_is_unmapped():
    process, driver = Registrations(), HostRegistrar()
    real, interrupts = driver.register, [KeyboardInterrupt]

    def interrupted(*given):
        real(*given)
        if interrupts:
            raise interrupts.pop()

    driver.register = interrupted
    mapped = [RegistrableMapping(-1, PAGE) for _ in range(3)]
    for mapping in mapped:
        process.offer(mapping)
    for wanted in (1, 3):
        with suppress(KeyboardInterrupt):
            process.use(driver)
        assert len(driver.ranges) == wanted
    del mapping, mapped
    assert (driver.ranges, driver.wrong) == ({}, [])


@each(
    ("chunks", "pinned"),
    [
        ([0, 30, 60], True),
        ([60, 30, 0], True),
        ([0, 30, 120], False),
        ([120, 30, 0], False),
        ([0, 30, 95], False),
        ([120, 140, 160], False),
    ],
)
def test_a_batch_is_of_pinned_memory_if_its_last_byte_is(monkeypatch, chunks, pinned):
    """Of 200 bytes the first hundred are registered, and a chunk has ten."""
    memory = torch.zeros(200, dtype=torch.uint8)
    home = memory.data_ptr()
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda one: one.data_ptr() < home + 100)
    taken = []

    class Copies:
        def copy(self, pieces, there, stream, *, into, pinned):
            taken.append(pinned)

    class Stream:
        cuda_stream = 1

    driver = CudaDriver.__new__(CudaDriver)
    driver._runtime = Copies()
    pieces = [Piece(home + chunk, 10 * at, 10) for at, chunk in enumerate(chunks)]
    driver.copy(pieces, memory, Stream(), into=True)
    assert taken == [pinned]


@each("handle", [0, 1])
def test_the_default_stream_is_that_of_the_windows_device(cuda, handle):
    """Its handle is zero on any: a table would cross beside the launch that reads it."""
    there = torch.zeros(1, dtype=torch.uint8)
    devices = []

    class Copies:
        def copy(self, pieces, base, stream, *, into, pinned):
            devices.append((cuda.current, stream))

    class Stream:
        cuda_stream = handle

    driver = CudaDriver.__new__(CudaDriver)
    driver.device, driver._runtime = GPU, Copies()
    driver.send(Piece(there.data_ptr(), 0, 1), there, Stream())
    assert devices == [(None, 1) if handle else (GPU, 0)]
