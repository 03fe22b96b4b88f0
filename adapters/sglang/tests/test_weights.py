"""An identity lives as long as the weights do: files that are replaced, weights that change."""

from types import SimpleNamespace

import pytest

from hexkv.adapters.sglang.identity import files as known
from hexkv.adapters.sglang.identity import weights
from hexkv.adapters.sglang.identity.files import Files
from hexkv.adapters.sglang.identity.updates import CHANGED, Changes
from hexkv.adapters.sglang.identity.weights import REPLACED, Weights
from hexkv.contracts.kit.cases import each
from hexkv.kernels.weights import digest_of
from hexkv.ports import ConfigError


@pytest.fixture(autouse=True)
def changed(monkeypatch):
    """A process in which no weights have changed yet."""
    for name, value in vars(Changes()).items():
        monkeypatch.setattr(CHANGED, name, value)
    return CHANGED


def model_in(place):
    folder = place / "model"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(bytes(100))
    return folder


@pytest.fixture
def folder(tmp_path):
    return model_in(tmp_path)


def replaced(folder):
    (folder / "new").write_bytes(b"!" * 100)
    (folder / "new").replace(folder / "model.safetensors")


def written(folder):
    (folder / "model.safetensors").write_bytes(b"!" * 100)


def configured(folder):
    (folder / "config.json").write_text('{"rope_theta": 1}')


def exchanged(folder):
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    replaced(folder)


def loaded(folder):
    """The files of a server that loads its model from *folder* now."""
    files = Files()
    files.note([("model_path", str(folder), folder)])
    files.loaded = True
    return files


def test_files_that_are_as_they_were_loaded_have_their_digest(folder):
    assert loaded(folder).digest(folder) == digest_of(folder)


@each("change", [replaced, written, configured, exchanged])
def test_files_that_were_replaced_since_a_server_loaded_them_say_nothing_of_its_weights(
    change, tmp_path
):
    folder = model_in(tmp_path / change.__name__)
    files = loaded(folder)
    change(folder)
    with pytest.raises(ConfigError, match=r"replaced since .*: restart the server, or vouch"):
        files.digest(folder, ", or vouch")


def test_files_that_change_while_they_are_read_say_nothing(folder, monkeypatch):
    def digest(place):
        written(place)
        return "of both"

    monkeypatch.setattr(known, "digest_of", digest)
    for files in (loaded(folder), Files()):
        with pytest.raises(ConfigError, match="change"):
            files.digest(folder)


def test_a_place_that_no_server_looked_at_says_nothing(folder):
    files = Files()
    files.loaded = True
    with pytest.raises(ConfigError):
        files.digest(folder)


def test_a_branch_that_moves_on_is_where_it_was_when_the_server_started(folder, tmp_path):
    files = loaded(folder)
    files.note([("model_path", str(folder), tmp_path)])
    assert files.place("model_path", str(folder), tmp_path) == folder
    assert files.place("model_path", "another", tmp_path) == tmp_path


def scheduler(folder):
    """As SGLang's own, which loads its model from *folder*."""
    return SimpleNamespace(server_args=SimpleNamespace(model_path=str(folder)))


def test_a_model_is_looked_at_before_it_is_loaded_and_what_is_downloaded_after(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(weights, "FILES", files := Files())
    weights._loading(lambda _: replaced(folder))(scheduler(folder))
    assert files.loaded
    with pytest.raises(ConfigError, match="replaced since"):
        files.digest(folder)
    monkeypatch.setattr(weights, "FILES", files := Files())
    later = tmp_path / "later"
    weights._loading(lambda _: folder.rename(later))(scheduler(later))
    assert files.digest(later) == digest_of(later)


def test_a_server_starts_whatever_its_files_are(monkeypatch):
    monkeypatch.setattr(weights, "FILES", files := Files())
    assert weights._loading(lambda _: 7)(object()) == 7
    assert files.loaded


def test_a_server_that_did_not_load_the_plugin_is_refused(monkeypatch):
    monkeypatch.setattr(weights, "FILES", files := Files())
    with pytest.raises(ConfigError, match="SGLANG_PLUGINS"):
        Weights(vouched="one", server=True)
    files.loaded = True
    Weights(vouched="one", server=True)


def change(changed):
    """Other weights, and nothing left of the KV of those before."""
    changed.count()
    changed.flushed = changed.seen


def test_a_text_stands_for_the_weights_that_it_was_given_for(changed):
    for _ in range(2):
        Weights(vouched="one", server=False)
    change(changed)
    with pytest.raises(ConfigError, match=r"model\.weights: 'one' stands for weights"):
        Weights(vouched="one", server=False)
    with pytest.raises(ConfigError, match=r"set model\.weights"):
        Weights(vouched="", server=False)
    Weights(vouched="two", server=False)
    change(changed)
    for text in ("one", "two"):
        with pytest.raises(ConfigError, match=f"'{text}' stands for"):
            Weights(vouched=text, server=False)


def test_where_sglang_may_hold_kv_of_the_weights_before_it_is_to_be_emptied_first(changed):
    changed.count()
    with pytest.raises(ConfigError, match="/flush_cache"):
        Weights(vouched="two", server=False)
    changed.flushed = changed.seen
    Weights(vouched="two", server=False)


def test_nothing_is_opened_amid_an_update(changed):
    change(changed)
    changed.unsettled = True
    with pytest.raises(ConfigError, match="/end_weight_update"):
        Weights(vouched="two", server=False)


def test_a_change_ends_what_was_for_the_weights_before_and_nothing_else(changed):
    said, first = [], Weights(vouched="", server=False)
    first.follow(said.append)
    for _ in range(2):
        change(changed)
    second = Weights(vouched="two", server=False)
    assert (first.off, said, second.off) == (REPLACED, [REPLACED], "")


def test_a_change_while_a_cache_is_opened_ends_it_as_well(changed):
    said, made = [], Weights(vouched="", server=False)
    changed.count()
    made.follow(said.append)
    assert said == [REPLACED]
