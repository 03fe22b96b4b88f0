"""What SGLang's arguments add to a namespace, in versions with dataclasses as in later ones."""

from dataclasses import dataclass, field

from hexkv.adapters.sglang.identity import arguments


@dataclass
class OlderArguments:
    model_path: str
    quantization: str | None = None
    port: int = 30000
    something_new: str = "usual"
    lora_paths: list[str] = field(default_factory=list)
    speculative_draft_model_path: str | None = None


def test_no_argument_is_judged_twice():
    lists = [arguments.NAMED, arguments.JOINED, arguments.DRAFT, *arguments.UNRELATED.values()]
    assert len(frozenset().union(*lists)) == sum(map(len, lists))


def test_defaults_add_nothing():
    assert arguments.joined_by(OlderArguments("model")) == {}
    assert arguments.joined_by(None) == {}


def test_what_matters_and_what_is_new_is_added(caplog):
    given = OlderArguments("model", "fp8", port=1, something_new="other", lora_paths=["a"])
    assert arguments.joined_by(given) == {"quantization": "fp8", "something_new": "other"}
    assert "something_new" in caplog.text


def test_a_draft_model_counts_where_its_kv_lies(tmp_path):
    given = OlderArguments("model", speculative_draft_model_path=str(tmp_path))
    assert arguments.joined_by(given) == {}
    before = arguments.joined_by_draft(given)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert arguments.joined_by_draft(given) != before


def test_what_is_long_is_shown_as_a_digest():
    given = OlderArguments("model", quantization="x" * 65)
    assert len(arguments.joined_by(given)["quantization"]) == 32
