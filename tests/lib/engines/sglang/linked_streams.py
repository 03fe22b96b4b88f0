"""SGLang with the linker's copies, layer by layer, on recorded streams."""

import torch

from devices.recorded_streams import Queue
from hexkv.adapters.sglang.pages import devices
from hexkv.kernels.gpu.staging import DeviceStaging
from hexkv.kernels.paged import PagedMemory
from hexkv.ports import DType, KVLayout

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=1, heads=1, key_width=8)
SIZE = LAYOUT.chunk_bytes(1)
PAGES = 4


def address(data):
    return torch.frombuffer(data, dtype=torch.uint8).data_ptr()


class Layers(Queue):
    """Launches of single layers, each of which is a page of its own."""

    def page(self, first, slot):
        return "page", first // 2, slot


class Linked:
    """SGLang's scheduler and model, and the linker's thread, whose copies have their own stream."""

    layout = KVLayout.attention(DType.FLOAT16, layers=3, heads=1, key_width=8)

    def __init__(self, recorder, draw):
        self.recorder, self.draw = recorder, draw
        self.computing = recorder.default
        planes = [
            [torch.zeros(PAGES, 1, 1, 8, dtype=torch.float16) for _ in "kv"] for _ in range(3)
        ]
        self.pool = PagedMemory(self.layout, planes, fused=True)
        self.pool.device = torch.device("cuda", 0)  # as far as the linker knows
        self.blocks = {}
        self.pool.fused.staging = DeviceStaging(Layers(recorder, self.blocks))
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.attend(torch.cuda.current_stream(), range(PAGES))

    def attend(self, stream, pages, layers=range(3)):
        for layer in layers:
            names = [("page", layer, page) for page in pages]
            self.recorder.use(stream, "the model", reads=names, writes=names)

    def step(self):
        pages = self.draw.sample(range(PAGES), self.draw.randint(1, PAGES - 1))
        kind = self.draw.choice(["compute", "replay", "load"])
        if kind == "compute":
            self.attend(self.computing, pages)
        elif kind == "replay":
            self.graph.replay()
        else:
            self.load(pages)

    def load(self, pages):
        size, cut = self.layout.chunk_bytes(1), self.draw.randint(0, len(pages))
        payloads = [memoryview(bytearray(size)) for _ in pages]
        self.recorder.kept += payloads  # so that no other gets their addresses
        first = [address(data) + layer * SIZE for data in payloads for layer in range(3)]
        self.blocks.update({at: at for at in first})
        loads = [
            (torch.tensor(pages[part]), payloads[part])
            for part in (slice(cut), slice(cut, None))
            if pages[part]
        ]
        ready = torch.cuda.Event()
        ready.record()

        def queued(layer, event):
            # As the counter has it: the stream of the model's next layer waits for this.
            self.computing.wait_event(event)
            self.attend(self.computing, pages, [layer])

        devices.copy_layers(self.pool, loads, ready, queued)
        blocks = [("block", at) for at in first]
        self.recorder.use(None, "the host, which fills a block,", writes=blocks)
