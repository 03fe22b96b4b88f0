"""What tells two servers' KV apart beside tokens: weights, options, adapters, stretched RoPE."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from sglang.srt.lora.lora_registry import LoRARef
from sglang.srt.server_args import ServerArgs

from hexkv.adapters.sglang.configuration import RawConfig
from hexkv.adapters.sglang.identity import arguments
from hexkv.adapters.sglang.identity.identity import Rank, namespace_of
from hexkv.adapters.sglang.identity.lora import CONTENTS
from hexkv.kernels.weights import digest_of
from hexkv.plugins.composition.identity import identify
from hexkv.plugins.discovery.discovery import discover
from hexkv.ports import ConfigError, DType, KVLayout

pytestmark = pytest.mark.usefixtures("unloaded")

LAYOUT = KVLayout.attention(DType.FLOAT16, layers=2, heads=1, key_width=8)


def namespace(extra=None, **arguments):
    said = RawConfig({"model": {"name": "tiny", "weights": "one"}} | (extra or {}), discover(), {})
    known = SimpleNamespace(**arguments) if arguments else None
    return namespace_of(LAYOUT, Rank(), said.with_pages(4), page=4, arguments=known)


def adapter(folder, weights):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return str(folder)


@pytest.mark.parametrize(
    "given",
    [
        lambda path: [LoRARef(lora_name="one", lora_path=path)],
        lambda path: [{"lora_name": "one", "lora_path": path}],
        lambda path: [f"one={path}"],
        lambda path: [path],
        lambda path: {"one": path},
        lambda path: {"one": LoRARef(lora_name="one", lora_path=path)},
    ],
    ids=["records", "mappings", "NAME=PATH", "paths", "paths by name", "records by name"],
)
def test_new_weights_in_an_old_folder_are_another_adapter(given, tmp_path):
    def served(weights):
        return namespace(enable_lora=True, lora_paths=given(adapter(tmp_path / "one", weights)))

    assert served(b"a" * 100) == served(b"a" * 100)
    assert served(b"a" * 100) != served(b"b" * 100)
    assert served(b"a" * 100) != namespace()


@pytest.mark.parametrize(
    "given", [lambda one: [one], lambda one: {"one": one}], ids=["records", "records by name"]
)
def test_an_adapter_in_the_names_of_pages_leaves_the_base_model_its_name(
    given, tmp_path, monkeypatch
):
    """Its pages are named by its content, so a retrained one takes nothing from the model."""

    def served(weights):
        one = LoRARef(lora_name="one", lora_path=adapter(tmp_path / "one", weights))
        monkeypatch.setitem(CONTENTS.digests, one.lora_id, "its content")
        return namespace(enable_lora=True, lora_paths=given(one))

    assert served(b"a" * 100) == served(b"b" * 100) == namespace()


def test_an_operator_may_say_which_adapters_they_are(tmp_path):
    said = {"model": {"name": "tiny", "weights": "one", "lora": "poets"}}
    spaces = [
        namespace(said, enable_lora=True, lora_paths=[adapter(tmp_path / "one", weights)])
        for weights in (b"a" * 100, b"b" * 100)
    ]
    assert spaces[0] == spaces[1]


@pytest.mark.parametrize("place", ["rope_scaling", "rope_parameters", "of a kind", "of a part"])
def test_where_rope_depends_on_the_length_the_length_counts(place, tmp_path):
    rope = {"rope_type": "dynamic", "factor": 2.0}
    config = {
        "of a kind": {"rope_parameters": {"full_attention": rope, "sliding_attention": {}}},
        "of a part": {"text_config": {"rope_scaling": rope}},
    }.get(place, {place: rope})
    (tmp_path / "config.json").write_text(json.dumps(config))
    served = [namespace(model_path=str(tmp_path), context_length=size) for size in (64, 128)]
    assert served[0] != served[1]
    (tmp_path / "config.json").write_text(json.dumps({"max_position_embeddings": 64}))
    served = [namespace(model_path=str(tmp_path), context_length=size) for size in (64, 128)]
    assert served[0] == served[1]


def served(canonical=True, model=None, **given):
    """The namespace of a server with the real ``ServerArgs``."""
    said = {"namespace": "canonical" if canonical else "own", "model": model or {}}
    configured = RawConfig(said, discover(), {}).with_pages(4)
    args = ServerArgs(**{"model_path": "org/model"} | given)
    return identify(
        namespace_of(LAYOUT, Rank(), configured, page=4, arguments=args), configured.engine
    )


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"hidden_size": 8}))
    (folder / "model.safetensors").write_bytes(bytes(100))
    return str(folder)


def test_every_argument_of_this_version_is_judged():
    """A version that brings a new one turns this red: does KV depend on it?"""
    lists = {"named": arguments.NAMED, "joined": arguments.JOINED, "draft": arguments.DRAFT}
    lists |= arguments.UNRELATED
    judged = [name for names in lists.values() for name in names]
    assert len(judged) == len(set(judged)), "an argument is in two lists"
    assert arguments.names_of(ServerArgs) - set(judged) == set()


def test_a_folder_is_known_by_its_digest_and_name_alone(folder):
    """So another host that serves it shares its chunks, with nothing configured."""
    space = served(model_path=folder)
    assert (space.model, space.revision, space.extra) == ("model", digest_of(Path(folder)), ())
    assert dict(served(canonical=False, model_path=folder).extra).keys() == {"engine", "page"}


@pytest.mark.parametrize("model", [{"revision": "8c1"}, {"name": "other"}])
def test_new_weights_in_an_old_folder_are_another_model_whatever_is_configured(folder, model):
    before = served(model=model, model_path=folder)
    with open(f"{folder}/model.safetensors", "r+b") as file:
        file.seek(50)
        file.write(b"!")
    assert served(model=model, model_path=folder) != before


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"revision": "main"},
        {"load_format": "remote"},
        {"load_format": "dummy", "random_seed": None},
        {"checkpoint_engine_wait_weights_before_ready": True},
        {"weight_cache_mode": "daemon"},
    ],
    ids=str,
)
def test_weights_that_nothing_tells_are_refused_until_somebody_vouches(given, folder):
    if set(given) - {"revision"}:
        given = {"model_path": folder} | given
    with pytest.raises(ConfigError, match=r"set model\.weights"):
        served(model={"revision": "one"}, **given)
    assert served(model={"weights": "one"}, **given).revision.endswith("one")


def test_a_commit_tells_weights_that_are_not_on_this_machine():
    commit = "0123456789" * 4
    assert served(revision=commit).revision == commit


def test_random_weights_are_told_by_seed_and_configuration(folder):
    spaces = [served(model_path=folder, load_format="dummy", random_seed=seed) for seed in (1, 2)]
    with open(f"{folder}/config.json", "w") as file:
        json.dump({"hidden_size": 8, "rope_theta": 5e5}, file)
    spaces.append(served(model_path=folder, load_format="dummy", random_seed=1))
    assert len(set(spaces)) == 3


@pytest.mark.parametrize("name", sorted(arguments.JOINED))
def test_what_kv_depends_on_is_in_the_namespace(name, folder):
    space = served(model_path=folder, **{name: "something else"})
    assert dict(space.extra) == {name: "something else"}


def test_what_it_does_not_depend_on_is_not(folder):
    args = ServerArgs(model_path=folder)
    for name in frozenset().union(*arguments.UNRELATED.values()) | arguments.DRAFT:
        setattr(args, name, "something else")
    assert arguments.joined_by(args) == {}
    assert arguments.joined_by_draft(args).keys() == arguments.DRAFT


def test_an_argument_that_nobody_judged_counts_until_somebody_does(monkeypatch, folder, caplog):
    known = {why: names - {"port"} for why, names in arguments.UNRELATED.items()}
    monkeypatch.setattr(arguments, "UNRELATED", known)
    assert dict(served(model_path=folder, port=1).extra) == {"port": "1"}
    assert "not known to hexkv" in caplog.text


def test_files_that_arguments_name_count_by_what_they_hold(folder, tmp_path):
    file = tmp_path / "scales.json"
    spaces = []
    for scales in ("{}", '{"k": 2}'):
        file.write_text(scales)
        spaces.append(served(model_path=folder, quantization_param_path=str(file)))
    assert spaces[0] != spaces[1]


def test_the_dtype_counts_where_kv_has_another(folder):
    spaces = [served(model_path=folder, dtype=dtype) for dtype in ("auto", "half", "bfloat16")]
    assert spaces[0] == spaces[1], "as the layout says it already"
    assert dict(spaces[2].extra) == {"dtype": "bfloat16"}
