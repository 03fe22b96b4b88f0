"""LoRA adapters: each has KV of its own, and other weights under an old name are another one."""

import pytest

from engines.sglang.sglang_engines import PAGE, PAGES, PATIENT, behind, frames, prompt
from engines.sglang.sglang_lora import MODULES, RANK, adapter
from engines.sglang.sglang_server import Server
from processes import until

FULL = PAGES * PAGE


@pytest.fixture
def serve(model, tmp_path_factory):
    """Starts a server with hexkv on a disk, and the adapter in a folder, or room for one."""

    def begin(root, folder=None):
        disk = {"store": "disk", "settings": {"root": str(root)}}
        log = tmp_path_factory.mktemp("server")
        lora = {
            "enable_lora": True,
            "lora_backend": "torch_native",
        }
        if folder is None:
            lora |= {"max_lora_rank": RANK, "lora_target_modules": MODULES}
        else:
            lora |= {"lora_paths": f"one={folder}"}
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


def test_an_adapter_that_is_loaded_at_run_time_is_found_by_what_it_holds(
    serve, transformer, greedy, tmp_path
):
    words, folder, root = prompt("loaded later"), tmp_path / "one", tmp_path / "disk"
    adapted = greedy(adapter(transformer, folder, seed=1))

    def load(server, name, place=folder):
        given = {"lora_name": name, "lora_path": str(place)}
        assert server.ask("POST", "/load_lora_adapter", given)[0] == 200

    with serve(root) as server:
        load(server, "one")
        assert server.generate(words, lora_path="one") == (adapted(words), 0)
        until(lambda: len(frames(root)) == PAGES)
        server.flush()
        assert server.generate(words, lora_path="one") == (adapted(words), FULL)
        assert server.ask("POST", "/unload_lora_adapter", {"lora_name": "one"})[0] == 200
        server.flush()
        load(server, "again")
        assert server.generate(words, lora_path="again") == (adapted(words), FULL)
    with serve(root) as server:
        load(server, "one")
        assert server.generate(words, lora_path="one") == (adapted(words), FULL)
        retrained = greedy(adapter(transformer, folder, seed=2))
        load(server, "two")
        assert server.generate(words, lora_path="two") == (retrained(words), 0)
