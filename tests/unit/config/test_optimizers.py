"""The registry of optimizers."""

import inspect

import pytest

from bert_tf.checkpoint.names import BERT, is_optimizer_state, is_run_state
from bert_tf.config.settings import OptimizationSettings
from bert_tf.update.optimizers import OPTIMIZERS, optimizer_row, slot_names
from bert_tf.update.optimizers.row import OptimizerRow
from bert_tf.util.errors import UserError
from bert_tf.util.options import Option
from tests.helpers.settings import optimization_settings


def test_slot_names_differ_from_weight_names():
    """In checkpoints, slots are recognised by the last component of their names."""
    weights = {row.google.rpartition("/")[2] for row in BERT.rows}
    assert weights > {"kernel", "bias", "gamma", "output_weights"}
    assert not weights & slot_names()


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_options_of_a_row_are_the_keywords_of_its_rules(name):
    row = OPTIMIZERS[name]
    assert row.problem_of(row.resolve({})) is None
    # Those that rules hand on are keywords of what they call, which updates in other tests try.
    for rule in (row.rule, row.fused_rule):
        kinds = inspect.signature(rule).parameters.values()
        own = {p.name for p in kinds if p.kind is p.KEYWORD_ONLY}
        hands_on = any(p.kind is p.VAR_KEYWORD for p in kinds)
        assert own <= row.options.keys() if hands_on else own == row.options.keys()


def test_slot_names_in_checkpoints():
    assert is_run_state("bert/pooler/dense/kernel/adam_m")
    assert is_optimizer_state("cls/predictions/output_bias/adam_v")
    for weight in ("adam_m", "bert/adam_mean", "bert/adam_m/kernel", "bert/velocity"):
        assert not is_run_state(weight)


def test_registered_slots_are_recognised(monkeypatch):
    row = OptimizerRow("toy", None, slots=("velocity",), options={"a": Option(1.0)})
    monkeypatch.setitem(OPTIMIZERS, "toy", row)
    assert is_run_state("bert/velocity")
    assert row.slot_bytes({"bert": (2, 5)}) == 40
    assert row.resolve({}) == {"a": 1.0}
    assert row.resolve({"a": 2.0}) == {"a": 2.0}


def test_slots_by_name_and_shape():
    def choose(name, shape):
        return ("m",) if name.startswith("bert/") and len(shape) == 2 else ("m", "v")

    row = OptimizerRow("toy", None, slots=("m", "v"), choose_slots=choose)
    weights = {"bert/kernel": (3, 4), "bert/bias": (4,), "kernel": (2, 2)}
    assert [row.slots_of(*weight) for weight in weights.items()] == [("m",), ("m", "v"), ("m", "v")]
    assert row.slot_bytes(weights) == 4 * (12 + 2 * 4 + 2 * 4)


def test_an_unknown_name():
    with pytest.raises(
        UserError, match=r"^optimizer 'adamw' is not one of adam, lamb, lans, muon\.$"
    ):
        optimizer_row("adamw")


def test_the_first_matching_factor_applies():
    settings: OptimizationSettings = optimization_settings(
        rate_factors=((r"layer_1/", 0.5), ("^bert/", 0.0))
    )
    names = ("bert/encoder/layer_1/output/dense/bias", "bert/encoder/layer_11/x", "cls/squad/bert/")
    assert [settings.rate_factor(name) for name in names] == [0.5, 0.0, 1.0]
    assert optimization_settings().rate_factor("bert/x") == 1.0
