"""One checkpoint has one digest, however its tensors are filed; another one has another."""

import itertools
import json
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hexkv.contracts.kit.cases import each
from hexkv.kernels import weights
from hexkv.kernels.weights import PIECE, digest_of, folder_of, stamp_of, tensor_files

TENSORS = {
    "layer.0.weight": ("BF16", [4, 8], bytes(range(64))),
    "layer.1.weight": ("F32", [4, 4], bytes(range(64, 128))),
    "norm.weight": ("F32", [2], bytes(8)),
    "scale": ("F32", [], b"\0\0\x80?"),
    "nothing": ("F32", [0], b""),
}
CONFIG = {"hidden_size": 8, "rope_theta": 1e4, "architectures": ["Llama"]}


def save(file, tensors, **metadata):
    """A safetensors file with *tensors*, ``{name: (dtype, shape, bytes)}``, in that order."""
    header, end = {"__metadata__": metadata} if metadata else {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {
            "dtype": dtype,
            "shape": shape,
            "data_offsets": [end, end := end + len(data)],
        }
    text = json.dumps(header).encode()
    body = b"".join(data for _, _, data in tensors.values())
    file.write_bytes(len(text).to_bytes(8, "little") + text + body)


def checkpoint(folder, tensors=TENSORS, config=CONFIG, files=("model.safetensors",), **metadata):
    """A checkpoint whose tensors are dealt to *files* by turns."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    where = {}
    for number, file in enumerate(files):
        names = list(tensors)[number :: len(files)]
        save(folder / file, {name: tensors[name] for name in names}, **metadata)
        where |= dict.fromkeys(names, file)
    if len(files) > 1:
        index = json.dumps({"weight_map": where})
        (folder / "model.safetensors.index.json").write_text(index)
    return folder


@settings(deadline=None)
@given(order=st.permutations(list(TENSORS)), files=st.integers(1, 4))
def test_the_digest_does_not_depend_on_files_their_order_and_metadata(
    tmp_path_factory, order, files
):
    tensors = {name: TENSORS[name] for name in order}
    folder = tmp_path_factory.mktemp("checkpoint")
    names = [f"model-{number}.safetensors" for number in range(files)]
    other = checkpoint(folder / "sharded", tensors, files=names, format="pt")
    assert digest_of(other) == digest_of(checkpoint(folder / "one"))


@settings(deadline=None)
@given(name=st.sampled_from(list(TENSORS)), at=st.integers(0, 63), bit=st.integers(0, 7))
def test_one_changed_bit_anywhere_is_another_digest(tmp_path_factory, name, at, bit):
    dtype, shape, data = TENSORS[name]
    changed = bytearray(data)
    if not data:
        return
    changed[at % len(data)] ^= 1 << bit
    folder = tmp_path_factory.mktemp("checkpoint")
    other = checkpoint(folder / "other", TENSORS | {name: (dtype, shape, bytes(changed))})
    assert digest_of(other) != digest_of(checkpoint(folder / "one"))


@each(
    "tensors",
    [
        TENSORS | {"layer.0.weight": ("F16", [4, 8], bytes(range(64)))},
        TENSORS | {"layer.0.weight": ("BF16", [8, 4], bytes(range(64)))},
        {
            **TENSORS,
            "layer.0.weight": ("F32", [4, 4], TENSORS["layer.1.weight"][2]),
            "layer.1.weight": ("F32", [4, 4], TENSORS["layer.0.weight"][2]),
        },
        TENSORS | {"more": ("F32", [0], b"")},
        {name: tensor for name, tensor in TENSORS.items() if name != "nothing"},
    ],
    ids=["dtype", "shape", "swapped", "one more", "one less"],
)
def test_names_dtypes_and_shapes_count(tensors, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("case")
    other = checkpoint(tmp_path / "other", tensors)
    assert digest_of(other) != digest_of(checkpoint(tmp_path / "one"))


@each(
    ("change", "same"),
    [
        ({"rope_theta": 5e5}, False),
        ({"architectures": ["Other"]}, False),
        ({"transformers_version": "9", "torch_dtype": "float16", "_name_or_path": "x"}, True),
    ],
)
def test_a_configuration_counts_but_for_what_a_copy_changes(change, same, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("case")
    other = checkpoint(tmp_path / "other", config=CONFIG | change)
    (other / "tokenizer.json").write_text("{}")
    assert (digest_of(other) == digest_of(checkpoint(tmp_path / "one"))) is same


@each("name", ["pytorch_model.bin", "model.gguf", "modeling_own.py"])
def test_weights_that_only_a_host_can_read_and_code_count_as_files(name, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("case")
    folder = checkpoint(tmp_path / "one")
    seen = {digest_of(folder)}
    for content in (b"a" * 100, b"b" * 100, b"a" * 101):
        (folder / name).write_bytes(content)
        seen.add(digest_of(folder))
    assert len(seen) == 4


HEADERS = [
    b"",
    b"\xff" * 8,
    (1 << 62).to_bytes(8, "little") + b"{}",
    (2).to_bytes(8, "little") + b"[]",
    (4).to_bytes(8, "little") + b"null",
    *(
        len(text).to_bytes(8, "little") + text
        for text in (
            json.dumps({"a": said}).encode()
            for said in (
                1,
                {},
                {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 40]},
                {"dtype": "F32", "shape": [1], "data_offsets": [-8, 4]},
                {"dtype": "F32", "shape": 1, "data_offsets": [0, 0]},
                {"dtype": "F32", "shape": [1], "data_offsets": None},
            )
        )
    ),
]


@each("number", range(len(HEADERS)))
def test_what_only_looks_like_safetensors_counts_as_a_file(number, tmp_path):
    header, folder = HEADERS[number], checkpoint(tmp_path / str(number))
    seen = {digest_of(folder)}
    for body in (b"a" * 100, b"b" * 100):
        (folder / "model.safetensors").write_bytes(header + body)
        seen.add(digest_of(folder))
    assert len(seen) == 3


def test_files_that_an_index_names_count_wherever_they_lie(tmp_path):
    folder = checkpoint(tmp_path / "one", files=("a.safetensors", "b.safetensors"))
    before = digest_of(folder)
    (folder / "part").mkdir()
    shutil.move(folder / "b.safetensors", folder / "part" / "b.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(index.read_text().replace("b.safetensors", "part/b.safetensors"))
    assert digest_of(folder) == before
    assert len(tensor_files(folder)) == 2
    (folder / "part" / "b.safetensors").unlink()
    with pytest.raises(OSError, match=r"b\.safetensors"):
        digest_of(folder)


def test_of_a_large_checkpoint_one_piece_in_every_few_is_read(tmp_path, monkeypatch):
    """As the documents say: the first piece of each tensor, every n-th from there, the last."""
    pieces, stride = 10, 4
    size = pieces * PIECE - 5
    monkeypatch.setattr(weights, "WHOLE", -(-2 * size // stride))
    body = {name: ("U8", [size], bytearray(size)) for name in ("one", "two")}
    before = digest_of(checkpoint(tmp_path, body))
    seen = []
    for piece in range(pieces):
        for at in (piece * PIECE, min(size, (piece + 1) * PIECE) - 1):
            body["two"][2][at] ^= 1
            seen.append(digest_of(checkpoint(tmp_path, body)) != before)
            body["two"][2][at] ^= 1
    assert seen == [piece in (0, 4, 8, 9) for piece in range(pieces) for _ in "ab"]


def test_a_checkpoint_may_be_one_file(tmp_path):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"a" * 100)
    before = digest_of(file)
    file.write_bytes(b"b" * 100)
    assert digest_of(file) != before


def test_a_name_on_the_hub_is_its_local_copy(tmp_path, monkeypatch):
    copy = checkpoint(tmp_path / "snapshot")
    asked = []

    def try_to_load(name, file, cache_dir, revision):
        asked.append((name, file, cache_dir, revision))
        if name == "no name":
            raise ValueError(name)
        return str(copy / file) if name == "org/here" else None

    hub = SimpleNamespace(try_to_load_from_cache=try_to_load)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    assert folder_of("org/here", "main", "copies") == copy
    assert asked == [("org/here", "config.json", "copies", "main")]
    assert folder_of("org/there") is None
    assert folder_of("no name") is None
    assert folder_of("") is None
    assert folder_of(str(copy)) == copy
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert folder_of("org/here") is None


def moved_in(file, data):
    """Put *data* in the place of *file* as a trainer does, with the times of the one before."""
    times, other = file.stat(), file.with_name("new")
    other.write_bytes(data)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(file)


def written(file, data):
    """Write *data* over *file*, and set the time back."""
    times = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def test_a_stamp_shows_every_change_of_what_a_digest_reads_without_reading_tensors(
    tmp_path, monkeypatch
):
    names = ("a.safetensors", "b.safetensors")
    monkeypatch.setattr(weights._Stretch, "digest", lambda *_: 1 / 0)
    for number, (change, name) in enumerate(
        itertools.product(
            (moved_in, written), (*names, "config.json", "model.safetensors.index.json")
        )
    ):
        folder = checkpoint(tmp_path / str(number), files=names)
        before = stamp_of(folder)
        (folder / "tokenizer.json").write_text("{}")
        assert stamp_of(folder) == before, "decides about tokens, not about KV"
        change(folder / name, (folder / name).read_bytes())
        assert stamp_of(folder) != before, (change.__name__, name)
    before = stamp_of(folder)
    (folder / "more.bin").write_bytes(b"x")
    assert stamp_of(folder) != before


def test_the_stamp_of_a_link_is_of_what_it_names(tmp_path):
    for name in ("one", "two"):
        checkpoint(tmp_path / name)
    link = tmp_path / "current"
    link.symlink_to("one")
    before = stamp_of(link)
    link.unlink()
    link.symlink_to("two")
    assert stamp_of(link) != before
