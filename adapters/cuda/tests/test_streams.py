"""Copies run beside the engine's work, and in order with it."""

import pytest
import torch

from hexkv.adapters.cuda.pinned import PinnedMemory
from hexkv.adapters.cuda.streams import CudaKV
from hexkv.contracts.doubles import deadline
from hexkv.contracts.kit.cases import each
from hexkv.ports import DType, InvalidRequest, KVLayout, LayoutMismatch, Span

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
LAYOUT = KVLayout.attention(DType.BFLOAT16, layers=2, heads=2, key_width=8)


def pages(device, blocks=8, layers=LAYOUT.layers):
    shape = (blocks, 16, 2, 8)
    return [
        [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in "kv"]
        for _ in range(layers)
    ]


def test_only_gpus_and_the_cpu_are_known():
    with pytest.raises(InvalidRequest, match="meta"):
        CudaKV("meta")


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(InvalidRequest, match="so no cuda:99"):
        CudaKV("cuda:99")


def test_tensors_of_another_device_are_refused():
    given = pages("cpu")
    given[1][0] = given[1][0].to("meta")
    with pytest.raises(LayoutMismatch, match="meta"):
        CudaKV("cpu").paged(LAYOUT, given, range(16))


@each("wrong", [[[None, None]] * 2, [[torch.zeros(3)] * 2] * 2])
def test_what_is_no_kv_is_refused(wrong):
    with pytest.raises(LayoutMismatch):
        CudaKV("cpu").contiguous(LAYOUT, wrong)


def test_on_the_cpu_a_fence_has_nothing_to_wait_for():
    assert CudaKV("cpu").fence() is None


@pytest.mark.gpu
@needs_gpu
def test_a_copy_sees_what_the_engine_had_queued_and_the_engine_what_a_fence_lets_through():
    device = torch.device("cuda")
    cuda, given = CudaKV(device), pages(device)
    window = cuda.paged(LAYOUT, given, range(128))
    region = PinnedMemory.near(0).allocate(LAYOUT.chunk_bytes(128))
    data = region.buffer[: LAYOUT.chunk_bytes(128)]
    busy = torch.randn(4096, 4096, device=device)
    for _ in range(20):
        busy = busy @ busy / 64
    for planes in given:
        for plane in planes:
            plane.fill_(3)
    transfer = window.gather([Span(0, 128, data)])
    cuda.fence()
    for planes in given:
        for plane in planes:
            plane.fill_(5)
    assert transfer.wait(deadline())
    kept = torch.frombuffer(bytearray(data), dtype=torch.bfloat16)
    assert bool((kept == 3).all())
    loaded = window.scatter([Span(0, 128, data)])
    cuda.fence()
    assert all(bool((plane == 3).all()) for planes in given for plane in planes)
    assert loaded.wait(deadline())
    del data
    region.close()


@pytest.mark.gpu
@needs_gpu
def test_a_copy_that_is_under_way_is_not_called_done():
    device = torch.device("cuda")
    cuda, given = CudaKV(device), pages(device)
    region = PinnedMemory.near(0).allocate(LAYOUT.chunk_bytes(128))
    window = cuda.paged(LAYOUT, given, range(128))
    span = Span(0, 128, region.buffer[: LAYOUT.chunk_bytes(128)])
    assert window.gather([span]).wait(deadline())  # what is compiled is compiled by now
    torch.cuda._sleep(2_000_000_000)
    transfer = window.gather([span])
    assert transfer.wait(deadline(-1.0)) is False
    assert transfer.wait(deadline())
    del span
    region.close()
