"""The cache stops before vLLM's weights change, whichever call changes them, and not otherwise."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hexkv.adapters.vllm.configuration import weights as module
from hexkv.adapters.vllm.configuration.weights import CHANGING, KEEPING, Weights, fingerprint, watch
from hexkv.contracts.kit.cases import each

FIRST = "weights-first"


class Model:
    """Some parameters, as a model gives them."""

    def __init__(self, seed=0):
        dice = torch.Generator().manual_seed(seed)
        self.one = torch.nn.Parameter(torch.randn(64, 300, generator=dice), requires_grad=False)
        self.turned = torch.nn.Parameter(self.one.data[:8].clone().T, requires_grad=False)
        self.empty = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    def load_weights(self, weights):
        self.one.data.copy_(weights)

    def named_parameters(self):
        return [(name, getattr(self, name)) for name in ("one", "turned", "empty")]


def _swaps(worker):
    worker.model = Model(seed=1)


_numbers = count()


class Engine:
    """vLLM's executor with one worker, and what is seen of its weights."""

    def __init__(self, first=FIRST):
        self.name = name = f"engine {next(_numbers)}"
        self.model, self.disk = Model(), {None: FIRST, "copy": FIRST, "other": "weights-other"}
        self.seen, self.intact_in_call = [], []
        engine = self

        class Executor:
            vllm_config = SimpleNamespace(
                kv_transfer_config=SimpleNamespace(engine_id=name), disk=self.disk
            )

        class Uni(Executor):
            def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
                return [engine._run(method, args, kwargs or {})]

        class Nested(Uni):
            def collective_rpc(self, method, timeout=None, args=(), kwargs=None, non_block=False):
                return super().collective_rpc(method, timeout, args, kwargs, non_block)

        self.weights = Weights(lambda: first)
        self.executor = Nested()
        self.executor.driver_worker = self
        watch(Executor, name, self.weights)
        watch(Executor, name, self.weights)

    def get_model(self):
        return self.model

    def _run(self, method, args, kwargs):
        if method is fingerprint:
            return fingerprint(self)
        self.seen.append(method)
        self.intact_in_call.append(self.weights.intact)
        return method(self, *args) if callable(method) else self._method(method, args, kwargs)

    def _method(self, name, args, kwargs):
        if name == "reload_weights" and self.model is not None:
            self.model.load_weights(self.model.one.data.clone())
        elif name == "extension":
            self.model.one.data.mul_(1.001)
        elif name == "fails":
            raise RuntimeError("a worker failed")
        return name

    def call(self, method, *args, **kwargs):
        return self.executor.collective_rpc(method, None, args, kwargs)


@pytest.fixture
def engines(monkeypatch):
    """Makes engines whose weights are those of their disks."""
    monkeypatch.setattr(module, "weights_at", lambda config, place: config.disk.get(place, ""))
    return Engine


@pytest.fixture
def engine(engines):
    return engines()


def test_calls_that_leave_weights_as_they_are_cost_nothing(engine):
    for method in KEEPING:
        assert engine.call(method) == [method]
    assert engine.weights.intact
    assert engine.seen == list(KEEPING)


@each("method", sorted(CHANGING))
def test_the_cache_stops_before_weights_change(engines, method, caplog):
    engine = engines()
    caplog.clear()
    assert engine.call(method) == [method]
    assert engine.intact_in_call == [False]
    assert not engine.weights.intact
    engine.call("update_weights")
    assert len(caplog.messages) == 1, "one line"
    assert f"weights were replaced ({method})" in caplog.text


def test_weights_that_are_loaded_from_elsewhere_end_the_cache(engine, caplog):
    engine.call("reload_weights", weights_path="other")
    assert engine.intact_in_call == [False]
    assert not engine.weights.intact
    [line] = caplog.messages
    assert line.startswith("the model's weights were replaced (reload_weights): nothing is loaded")
    engine.call("reload_weights")
    assert not engine.weights.intact, "vLLM reads from where it was sent last"


@each("given_", [{}, {"weights_path": "copy"}, {"is_checkpoint_format": True}])
def test_loading_the_first_weights_again_keeps_the_cache(engines, given_, caplog):
    engine = engines()
    caplog.clear()
    caplog.set_level("INFO", "vllm.hexkv")
    engine.call("reload_weights", **given_)
    assert engine.intact_in_call == [False], "it is known afterwards"
    assert engine.weights.intact
    assert engine.weights.changes == 1
    assert caplog.messages == [
        "the model has the weights again that it started with: the cache goes on"
    ]


@each(
    "given_",
    [
        {"weights_iterator": [("a", 1)]},
        {"is_checkpoint_format": False},
        {"weights_path": "nobody knows"},
    ],
)
def test_weights_that_cannot_be_named_end_the_cache(engines, given_):
    engine = engines()
    engine.call("reload_weights", **given_)
    assert not engine.weights.intact


def test_arguments_are_seen_by_place_too(engine):
    engine.call("reload_weights", None, "copy")
    assert engine.weights.intact
    engine.call("sleep", 2)
    assert not engine.weights.intact
    engine.call("reload_weights", None, "other")
    assert not engine.weights.intact


def test_a_folder_that_is_written_to_while_it_is_read_ends_the_cache(engine):
    def load():
        engine.disk[None] = "weights-other"

    engine.weights.call(engine.executor.vllm_config, "reload_weights", {}, load, lambda: "")
    assert not engine.weights.intact


def test_a_reload_that_fails_ends_the_cache_until_one_succeeds(engine):
    def fail():
        raise RuntimeError("half of it was read")

    config = engine.executor.vllm_config
    with pytest.raises(RuntimeError, match="half of it"):
        engine.weights.call(config, "reload_weights", {}, fail, lambda: "")
    assert not engine.weights.intact
    engine.call("reload_weights")
    assert engine.weights.intact


def test_nothing_that_was_computed_in_between_is_believed(engine, caplog):
    engine.call("sleep", level=2)
    engine.weights.computed()
    engine.call("wake_up")
    engine.call("reload_weights")
    assert not engine.weights.intact
    assert "computed without any" in caplog.text


@each("other", ["update_weights", "extension", _swaps, "reload_weights"])
def test_weights_that_had_others_in_between_are_not_believed(engines, other):
    """A reload need not reach everything that the others brought."""
    engine = engines()
    engine.call("sleep", level=2)
    engine.call("wake_up")
    given_ = {"weights_path": "other"} if other == "reload_weights" else {}
    engine.call(other, **given_)
    engine.call("reload_weights", weights_path="copy")
    assert not engine.weights.intact


def test_sleep_at_level_1_keeps_the_cache_and_level_2_until_the_weights_are_back(engine, caplog):
    engine.call("sleep", level=1)
    engine.call("wake_up", tags=None)
    assert engine.weights.intact
    assert caplog.messages == []
    engine.call("sleep", level=2)
    engine.call("wake_up", tags=["weights"])
    assert not engine.weights.intact
    engine.call("reload_weights")
    engine.call("wake_up", tags=["kv_cache"])
    assert engine.weights.intact
    engine.call("discard", ("kv_cache",))
    assert engine.weights.intact
    engine.call("discard", ("weights",))
    assert not engine.weights.intact


def test_where_vllm_does_not_know_its_first_weights_a_reload_ends_the_cache(engine):
    vouched = Engine(first="")
    vouched.call("reload_weights")
    assert not vouched.weights.intact
    engine.call("update_config", {"load_config": {"load_format": "auto"}})
    assert engine.weights.intact
    engine.call("reload_weights")
    assert not engine.weights.intact, "the workers read from elsewhere"


def _looks(worker):
    return float(worker.get_model().one.sum())


def _trains(worker):
    with torch.no_grad():
        worker.get_model().one[3, 7] += 1.0  # PyTorch counts it


@each("change", ["extension", _trains, _swaps])
def test_calls_of_unknown_methods_and_of_callables_are_seen_by_what_they_do(
    engines, change, caplog
):
    engine = engines()
    caplog.clear()
    engine.call(_looks)
    engine.call("what_an_extension_asks")
    assert engine.weights.intact
    engine.call(change)
    assert not engine.weights.intact
    name = change if isinstance(change, str) else change.__name__
    assert f"({name})" in caplog.text


def test_what_cannot_be_looked_at_ends_the_cache(engine):
    engine.call("sleep", level=1)
    engine.call(_looks)
    assert not engine.weights.intact, "the memory of the weights is gone while vLLM sleeps"
    beside = Engine()
    beside.executor.collective_rpc(_looks, non_block=True)
    assert not beside.weights.intact
    broken = Engine()
    broken.model = None
    broken.call("what_an_extension_asks")
    assert not broken.weights.intact


def test_a_call_that_fails_fails_as_without_a_cache(engine):
    with pytest.raises(RuntimeError, match="a worker failed"):
        engine.call("fails")
    assert engine.weights.intact, "it changed nothing"


def test_engines_of_one_process_have_weights_of_their_own(engine):
    other = Engine()
    other.call("update_weights")
    assert engine.weights.intact
    assert not other.weights.intact


def test_a_model_that_is_loaded_without_a_call_ends_the_cache(engine, caplog):
    """As trainers do whose engine is in their own process."""
    engine.call("execute_model")
    engine.call("reload_weights")
    assert engine.weights.intact
    engine.model.load_weights(torch.zeros(64, 300))
    assert not engine.weights.intact
    assert "(load_weights)" in caplog.text
    assert not engine.model.one.any()


def test_connectors_of_one_engine_see_its_calls_whatever_they_are_called(engine):
    beside, inner = Weights(lambda: FIRST), Weights(lambda: FIRST)
    watch(type(engine.executor).__mro__[2], engine.name, beside)
    engine.call("reload_weights")
    assert engine.weights.intact
    assert beside.intact
    assert (engine.weights.changes, beside.changes) == (1, 1)
    assert engine.seen == ["reload_weights"], "once"
    engine.executor.vllm_config.kv_transfer_config.engine_id = "another name than those within"
    watch(type(engine.executor).__mro__[2], "inner", inner)
    engine.call("update_weights")
    assert not engine.weights.intact
    assert not inner.intact


def test_a_vllm_whose_calls_cannot_be_seen_is_told_of(caplog):
    watch(type("Executor", (), {}), "engine", Weights())
    assert "does not say when weights change" in caplog.text


@given(st.integers(0, 64 * 300 * 4 - 1), st.sampled_from(["counted", "data", "nothing"]))
def test_a_fingerprint_is_of_what_a_training_step_changes(place, how):
    model = Model()
    worker = SimpleNamespace(get_model=lambda: model)
    before, one = fingerprint(worker), model.one
    if how == "counted":
        with torch.no_grad():
            one.view(-1)[place // 4] += 1.0
    elif how == "data":
        one.data.mul_(1.001)
    assert (fingerprint(worker) == before) is (how == "nothing")
