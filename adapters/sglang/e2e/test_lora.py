"""LoRA adapters: each has KV of its own, and other weights under an old name are another one."""

import pytest

from processes import until
from sglang_engines import PAGE, PAGES, PATIENT, behind, frames, prompt
from sglang_lora import adapter
from sglang_server import Server

FULL = PAGES * PAGE


@pytest.fixture
def serve(model, tmp_path_factory):
    """Starts a server with hexkv on a disk, and the adapters of a folder."""

    def begin(root, folder):
        disk = {"store": "disk", "settings": {"root": str(root)}}
        log = tmp_path_factory.mktemp("server")
        lora = {
            "enable_lora": True,
            "lora_backend": "torch_native",
            "lora_paths": f"one={folder}",
        }
        config = {"pool": {"bytes": "64MiB"}, "deadlines": PATIENT, "tiers": [disk]}
        return Server(model, log, **behind(**config), **lora)

    return begin


def test_adapters_do_not_find_each_others_pages(serve, transformer, greedy, reference, tmp_path):
    words, folder, root = prompt("with LoRA"), tmp_path / "one", tmp_path / "disk"
    adapted = greedy(adapter(transformer, folder, seed=1))
    assert adapted(words) != reference(words)
    with serve(root, folder) as server:
        assert server.generate(words, lora_path="one") == (adapted(words), 0)
        until(lambda: len(frames(root)) == PAGES)
        assert server.generate(words) == (reference(words), 0)
        until(lambda: len(frames(root)) == 2 * PAGES)
    with serve(root, folder) as server:
        assert server.generate(words, lora_path="one") == (adapted(words), FULL)
        assert server.generate(words) == (reference(words), FULL)

    retrained = greedy(adapter(transformer, folder, seed=2))
    with serve(root, folder) as server:
        assert server.generate(words, lora_path="one") == (retrained(words), 0)
