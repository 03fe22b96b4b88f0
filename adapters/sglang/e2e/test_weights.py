"""Weights that a running engine gets: what is stored is of the weights before, and stays theirs."""

import copy
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from engines.sglang.sglang_engines import (
    DYNAMIC,
    PAGE,
    PAGES,
    PATIENT,
    behind,
    frames,
    hierarchical,
    linked,
    prompt,
)
from engines.sglang.sglang_server import Server
from processes import until

FULL = PAGES * PAGE
CHANGED = "model.layers.0.self_attn.v_proj.weight"
"""The weight that training changes."""


@pytest.fixture(scope="module")
def trained(transformer):
    """The same model after a step of training."""
    other = copy.deepcopy(transformer)
    dice = torch.Generator().manual_seed(1)
    weight = other.model.layers[0].self_attn.v_proj.weight
    with torch.no_grad():
        weight.copy_(torch.randn(weight.shape, generator=dice) * weight.std())
    return other


@pytest.mark.parametrize("place", [behind, linked], ids=["hicache", "linker"])
def test_after_an_update_without_a_version_nothing_stored_is_read(
    place, start, reference, greedy, trained, tmp_path
):
    words, weight = prompt("before and after"), trained.model.layers[0].self_attn.v_proj.weight
    save_file({CHANGED: weight}, tmp_path / "new.safetensors")
    after = greedy(trained)(words)
    assert after != reference(words)

    root = tmp_path / "disk"
    disk = {"store": "disk", "settings": {"root": str(root)}}
    engine = start(**place(pool={"bytes": "128MiB"}, deadlines=PATIENT, tiers=[disk]))
    assert engine.generate(words)[0].tokens == reference(words)
    until(lambda: len(frames(root)) == PAGES)
    engine.flush()
    engine.update(tmp_path / "new.safetensors")
    for _ in range(2):
        [answer] = engine.generate(words)
        assert (answer.tokens, answer.cached) == (after, 0)
        engine.flush()
    assert len(frames(root)) == PAGES
    assert engine.said("weights were replaced")
    engine.kill()


class Attaching:
    """A server with host memory, to which hexkv is attached under other names of its weights."""

    def __init__(self, server, root):
        self.server, self.root = server, root

    def attach(self, **model):
        disk = {"store": "disk", "settings": {"root": str(self.root)}}
        ours = {"pool": {"bytes": "64MiB"}, "deadlines": PATIENT, "tiers": [disk]}
        given = DYNAMIC | {"prefetch_threshold": PAGE} | ours | ({"model": model} if model else {})
        return self.server.attach(**given)

    def refuses(self, said, **model):
        status, text = self.attach(**model)
        assert (status, said in text) == (400, True), text

    def takes(self, **model):
        assert self.attach(**model)[0] == 200, self.server.tail()

    def detach(self):
        assert self.server.detach()[0] == 200

    def update(self, folder, **more):
        asked = {"model_path": str(folder)} | more
        return self.server.ask("POST", "/update_weights_from_disk", asked)[0]


def test_an_identity_lives_as_long_as_the_weights_do(model, reference, greedy, trained, tmp_path):
    """Files that are replaced, names that are given twice, updates that fail, and a restart."""
    words, after = prompt("whose is it"), greedy(trained)
    assert after(words) != reference(words)
    folder, new, root = tmp_path / "model", tmp_path / "new", tmp_path / "disk"
    for copy_of in (folder, new):
        shutil.copytree(model, copy_of)
    state = load_file(new / "model.safetensors")
    state[CHANGED] = trained.state_dict()[CHANGED]
    save_file(state, new / "model.safetensors")

    def stored(pages):
        until(lambda: len(frames(root)) == pages)

    with Server(folder, tmp_path, **hierarchical()) as server:
        one = Attaching(server, root)
        one.takes()
        one.detach()
        shutil.copy(new / "model.safetensors", folder / "other")
        (folder / "other").replace(folder / "model.safetensors")
        one.refuses("were replaced since the server loaded them")

        one.takes(weights="v1")
        assert server.generate(words) == (reference(words), 0)
        stored(PAGES)
        assert one.update(tmp_path / "nothing") == 400
        assert server.ask("POST", "/update_weight_version", {"new_version": "2"})[0] == 200
        server.flush()
        assert server.generate(words) == (reference(words), FULL)
        assert server.counted("hexkv_off") == 0

        server.flush()
        assert one.update(new, flush_cache=False) == 200
        assert server.counted("hexkv_off") == 1
        assert "weights were replaced: from now on nothing is read or stored" in server.tail()
        assert server.generate(words) == (after(words), 0)
        one.detach()
        one.refuses("/flush_cache", weights="v2")
        server.flush()
        one.refuses("set model.weights")
        one.refuses("'v1' stands for", weights="v1")
        assert len(frames(root)) == PAGES, "nothing was stored meanwhile"
        one.takes(weights="v2")
        for found in (0, FULL):
            assert server.generate(words) == (after(words), found)
            stored(2 * PAGES)
            server.flush()
        assert server.counted("hexkv_off") == 0
    for checkpoint, name, answer in ((model, "v1", reference), (new, "v2", after)):
        settings = behind(
            model={"weights": name, "name": "model"},
            pool={"bytes": "64MiB"},
            tiers=[{"store": "disk", "settings": {"root": str(root)}}],
            deadlines=PATIENT,
        )
        (log := tmp_path / name).mkdir()
        with Server(checkpoint, log, **settings) as server:
            assert server.generate(words) == (answer(words), FULL)
