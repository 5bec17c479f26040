"""From flags to an update: every setting of the optimizer arrives, and a new one is a row."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

from bert_tf.checkpoint import names
from bert_tf.cli import training_flags as flags
from bert_tf.cli.settings_flags import Definer
from bert_tf.diagnose import memory
from bert_tf.diagnose.guard import NonFiniteGuard
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import VariableSpec
from bert_tf.native import library
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.train import trainer
from bert_tf.update.kernels import NativeKernels, TensorFlowKernels
from bert_tf.update.optimizer import Optimizer
from bert_tf.update.optimizers import OPTIMIZERS
from bert_tf.util.errors import UserError
from tests.helpers import momentum_optimizer
from tests.helpers.jobs import begun, job_of, resolve_on
from tests.helpers.native_ops import requires_native_ops
from tests.helpers.settings import optimization_settings, runtime_settings, with_values
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import pretraining_settings
from tests.helpers.updates import apply_gradients

STEPS, WARMUP, RATE = 10, 2, 0.5
GRADIENT = np.array([[0.5, -2.0], [0.25, 3.0]], np.float32)


def optimization(*given):
    """The settings that flags give, as a training script parses them."""
    values = absl_flags.FlagValues()
    flags.define_optimization_flags(
        Definer(values), num_train_steps={"default": STEPS}, num_warmup_steps={"default": WARMUP}
    )
    values(["program", f"--learning_rate={RATE}", *given])
    return flags.optimization_settings(values)


@pytest.fixture(name="built")
def what_is_built(monkeypatch):
    """What the trainer hands to the update, for some flags and in a graph of the caller's."""
    calls = []
    monkeypatch.setattr(trainer, "build_train_op", lambda *_, **given: calls.append(given))

    def build(*given, against_native_ops="requested", **scaling):
        """Gradients may underflow where there is an ``initial_loss_scale``."""
        settings = optimization(*given)
        in_half = "initial_loss_scale" in scaling
        job = job_of(
            None,
            run=begun(runtime=runtime_settings(**scaling)),
            options=ForwardOptions(policy_for("fp16" if in_half else "fp32")),
            against_native_ops=against_native_ops,
            scales_loss=in_half,
            steps=resolve_on(settings, 1),
            optimization=settings,
        )
        trainer.build_update(job, None, {})
        return calls[-1]

    return build


def two_updates(make_optimizer, second=GRADIENT):
    """A weight that decays and one that does not, after two updates by GRADIENT and another."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.train.get_or_create_global_step()
        weights = [
            tf.get_variable(name, initializer=GRADIENT + 1, use_resource=True)
            for name in ("dense/kernel", "dense/bias")
        ]
        gradient = tf.placeholder(tf.float32, GRADIENT.shape)
        update = apply_gradients(make_optimizer(), [(gradient, w) for w in weights])
        session.run(tf.global_variables_initializer())
        for value in (GRADIENT, second):
            session.run(update, {gradient: value})
        return session.run(weights)


OPTIMIZERS_BY_FLAGS = {
    "": ("adam", {"bias_correction": False, "weight_decay": 0.01}),
    "--weight_decay=0.3": ("adam", {"weight_decay": 0.3}),
    "--adam_bias_correction": ("adam", {"bias_correction": True}),
    "--adam_beta1=0.7": ("adam", {"beta_1": 0.7}),
    "--adam_beta2=0.98": ("adam", {"beta_2": 0.98}),
    "--optimizer_type=lamb": ("lamb", {"bias_correction": True}),
    "--optimizer_type=lamb --adam_beta1=0.7": ("lamb", {"beta_1": 0.7}),
    "--optimizer_type=lamb --adam_beta2=0.98": ("lamb", {"beta_2": 0.98}),
    "--optimizer_type=lamb --weight_decay=0.3": ("lamb", {"weight_decay": 0.3}),
    "--optimizer_type=lamb --min_trust_ratio=4": ("lamb", {"min_trust_ratio": 4.0}),
    "--optimizer_type=lamb --max_trust_ratio=0.2": ("lamb", {"max_trust_ratio": 0.2}),
    "--optimizer_type=lamb --lamb_prenormalize": ("lamb", {"prenormalize": True}),
    "--optimizer_type=lans": ("lans", {}),
    "--optimizer_type=lans --max_trust_ratio=0.2": ("lans", {"max_trust_ratio": 0.2}),
    "--optimizer_type=lans --exclude_from_layer_adaptation=kernel,bias": (
        "lans",
        {"exclude_from_layer_adaptation": "kernel,bias"},
    ),
}


@pytest.mark.slow
def test_the_optimizer_is_the_one_that_flags_describe(built):
    seen = []
    second = GRADIENT**2 + 1  # bias correction leaves no trace of betas while gradients are equal
    for given, (optimizer, options) in OPTIMIZERS_BY_FLAGS.items():
        # At the first step of the warm-up.
        expected = two_updates(
            lambda o=optimizer, s=options: Optimizer(o, RATE / WARMUP, **s), second
        )
        found = two_updates(lambda g=given: built(*g.split())["optimizer"], second)
        np.testing.assert_array_equal(found, expected, err_msg=given)
        assert not any(np.array_equal(found, other) for other in seen), given
        seen.append(found)


def test_muon_computes_in_the_type_of_the_layers(built):
    """Its matrices are those of layers, which there are none of above."""
    for scale, product_type in (({}, tf.float32), ({"initial_loss_scale": 2.0}, tf.float16)):
        with tf.Graph().as_default():
            muon = built("--optimizer_type=muon", **scale)["optimizer"]
        assert muon.row is OPTIMIZERS["muon"]
        assert muon.product_type == product_type


@pytest.mark.parametrize("reason", [None, "requested"])
def test_the_form_of_the_arithmetic_arrives(built, monkeypatch, reason):
    monkeypatch.setattr(library, "load", lambda: object())
    with tf.Graph().as_default():
        kernels = built(against_native_ops=reason)["optimizer"].kernels
    assert isinstance(kernels, NativeKernels if reason is None else TensorFlowKernels)


@pytest.mark.parametrize(
    ("given", "name", "expected"),
    [
        ((), "clip_norm", 1.0),
        (("--clip_norm=0.25",), "clip_norm", 0.25),
        (("--clip_norm=0",), "clip_norm", None),
        ((), "loss_normalization", "global_batch"),
        (("--loss_normalization=micro_batch",), "loss_normalization", "micro_batch"),
        ((), "allreduce_every_micro_batch", False),
        (("--allreduce_every_micro_batch",), "allreduce_every_micro_batch", True),
    ],
)
def test_what_happens_to_gradients_is_what_flags_say(built, given, name, expected):
    with tf.Graph().as_default():
        assert getattr(built(*given)["settings"], name) == expected


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        # By hand: in the middle of the warm-up, half way down from its end, and after the last.
        ((), [RATE / 2, RATE / 2, 0.0]),
        (("--end_learning_rate=0.1",), [RATE / 2, 0.3, 0.1]),
        (("--lr_decay_power=2",), [RATE / 2, RATE / 4, 0.0]),
        (("--lr_schedule=google",), [0.0, RATE * 0.4, 0.0]),
        (("--num_warmup_steps=0",), [RATE, RATE * 0.4, 0.0]),
        (("--num_train_steps=18",), [RATE / 2, RATE * 0.75, RATE / 2]),
        (("--lr_warmup_power=2",), [RATE / 4, RATE / 2, 0.0]),
        (("--lr_schedule=constant",), [RATE / 2, RATE, RATE]),
        (("--lr_schedule=cosine", "--end_learning_rate=0.1"), [RATE / 2, 0.3, 0.1]),
        (("--lr_schedule=warmup_stable_decay", "--lr_decay_share=0.8"), [RATE / 2, RATE / 2, 0.0]),
        (
            ("--lr_schedule=warmup_stable_decay", "--lr_decay_share=0.8", "--lr_decay_form=1-sqrt"),
            [RATE / 2, RATE * (1 - 0.5**0.5), 0.0],
        ),
        (("--lr_schedule=one_cycle", "--lr_cycle_start=0.2"), [RATE * 0.6, RATE / 7.5, 0.0]),
        (
            ("--lr_schedule=exponential", "--lr_decay_rate=0.25", "--lr_decay_steps=8"),
            [RATE / 2, RATE / 2, RATE / 4],
        ),
        # Step 6 is the first of the second phase.
        (("--rewarm_at_step=6", "--num_rewarm_steps=4"), [RATE / 2, RATE / 4, RATE]),
    ],
)
def test_the_learning_rate_is_the_one_that_flags_describe(built, given, rates):
    found = []
    for step in (0, 6, 10):
        with tf.Graph().as_default(), tf.Session() as session:
            global_step = tf.train.get_or_create_global_step()
            learning_rate = built(*given)["learning_rate"]
            session.run(global_step.initializer)
            session.run(global_step.assign(step))
            found.append(session.run(learning_rate))
    np.testing.assert_allclose(found, rates, rtol=1e-6, atol=1e-9)


def test_all_steps_of_a_schedule_are_those_of_one_rank():
    given = ("--num_train_steps=101", "--rewarm_at_step=50", "--num_rewarm_steps=9")
    settings = optimization(
        *given, "--lr_schedule=exponential", "--lr_decay_rate=0.5", "--lr_decay_steps=10"
    )
    for scaled, expected in ((False, (101, 2, 50, 9, 10)), (True, (26, 1, 13, 3, 2.5))):
        settings = with_values(settings, scale_steps_by_ranks=scaled)
        found = resolve_on(settings, 4).schedule
        assert expected == (
            found.total_steps,
            found.warmup_steps,
            found.rewarm_at_step,
            found.rewarm_steps,
            found.options["decay_steps"],
        )


def test_only_a_run_that_trains_needs_room_for_its_schedule():
    settings = optimization("--lr_schedule=one_cycle", "--num_train_steps=3")
    settings = with_values(settings, scale_steps_by_ranks=False)
    resolve_on(settings, 1, trains=False)
    with pytest.raises(UserError, match=r"must be from 1 to half of --num_train_steps=3"):
        resolve_on(settings, 1)
    # Settings from Python have not been through flags.
    with pytest.raises(UserError, match=r"--lr_cycle_start=2 must be in"):
        with_values(settings, schedule_options={"cycle_start": 2.0})


@pytest.mark.parametrize("initial", [2.0**20, 8.0])
def test_the_loss_scale_starts_as_requested_and_stays_at_its_floor(built, initial):
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = built(initial_loss_scale=initial)["loss_scale"]
        update = scaling.update(tf.constant(False))
        session.run(tf.global_variables_initializer())
        scales = [session.run(scaling.current())]
        for _ in range(22):
            session.run(update)
            scales.append(session.run(scaling.current()))
    assert scales == [max(1.0, initial / 2**number) for number in range(23)]


def test_the_floor_and_the_window_of_the_loss_scale_arrive(built):
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = built(initial_loss_scale=16.0, min_loss_scale=8.0, loss_scale_window=2)[
            "loss_scale"
        ]
        is_finite = tf.placeholder(tf.bool, [])
        update = scaling.update(is_finite)
        session.run(tf.global_variables_initializer())
        scales = []
        for finite in (False, False, True, True, True):
            session.run(update, {is_finite: finite})
            scales.append(session.run(scaling.current()))
    assert scales == [8.0, 8.0, 8.0, 16.0, 16.0]


def test_a_static_loss_scale_stays_and_is_not_saved(built):
    with tf.Graph().as_default(), tf.Session() as session:
        scaling = built(initial_loss_scale=16.0, loss_scale=24.0)["loss_scale"]
        session.run(scaling.update(tf.constant(False)))
        found = [scaling.current(), scaling.scale(tf.constant(2.0)), scaling.inverse()]
        assert session.run(found) == [24.0, 48.0, pytest.approx(1 / 24)]
        assert not tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope="loss_scale")


def test_no_loss_scale_where_nothing_underflows(built):
    with tf.Graph().as_default(), tf.Session() as session:
        assert session.run(built()["loss_scale"].current()) == 1.0
        assert built()["loss_scale"].inverse() is None


def test_a_misspelt_optimizer_trains_nothing():
    with pytest.raises(UserError, match="--optimizer_type=Lamb is not one of adam, lamb"):
        optimization_settings(optimizer="Lamb")


# ---- Runs: the real job in this process, on a tiny network ----


@pytest.fixture(name="train")
def trained_run(tmp_path):
    """Trains up to step 2, with a checkpoint of each step, and returns the directory."""
    plain = pretraining_settings(tmp_path)

    def train(*, keep_checkpoint_max=9, runtime=None, **changes):
        run = dataclasses.replace(
            plain.run, save_checkpoints_steps=1, keep_checkpoint_max=keep_checkpoint_max
        )
        settings = dataclasses.replace(
            plain,
            run=run,
            runtime=with_values(plain.runtime, native_ops=False, **(runtime or {})),
            optimization=with_values(plain.optimization, num_train_steps=2, **changes),
        )
        pretraining.run(settings)
        return settings.run.output_dir

    return train


def test_as_many_checkpoints_are_kept_as_requested(train):
    directory = train(keep_checkpoint_max=2)
    found = sorted(path.stem for path in directory.glob("*.index"))
    assert found == ["model.ckpt-1", "model.ckpt-2"]


@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_run_has_the_loss_scale_of_its_precision(train, monkeypatch, precision):
    limits = []

    class Guard(NonFiniteGuard):
        def __init__(self, *of_update):
            super().__init__(*of_update)
            limits.append(self._limit)

    monkeypatch.setattr(trainer, "NonFiniteGuard", Guard)
    requested = {"precision": precision, "allow_slow_fp16": True, "initial_loss_scale": 64.0}
    found = variables_of(train(runtime=requested) / "model.ckpt-2")
    if precision == "fp16":
        assert limits == [40]
        assert found["loss_scale/scale"] == 64.0
        assert found["loss_scale/good_updates"] == 2
    else:
        assert limits == [1]
        assert not any(name.startswith("loss_scale/") for name in found)


@pytest.fixture(name="with_momentum")
def registry_with_momentum(monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "momentum", momentum_optimizer.ROW)


@pytest.mark.usefixtures("with_momentum")
def test_flags_of_an_optimizer_follow_from_its_row():
    settings = optimization("--optimizer_type=momentum", "--momentum=0.5")
    assert (settings.optimizer, settings.optimizer_options) == ("momentum", {"momentum": 0.5})
    with pytest.raises(UserError, match="--momentum belongs to --optimizer_type=momentum, but the"):
        optimization("--momentum=0.5")


@pytest.mark.usefixtures("with_momentum")
@pytest.mark.slow
def test_an_optimizer_is_added_by_a_file_and_a_row(train, capsys):
    changes = {"optimizer": "momentum", "optimizer_options": {"momentum": 0.5}}
    directory = train(**changes)
    straight = variables_of(directory / "model.ckpt-2")
    for path in directory.glob("model.ckpt-2.*"):
        path.unlink()
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-1"\n')
    train(**changes)
    assert f"resuming from {directory / 'model.ckpt-1'}" in capsys.readouterr().out
    resumed = variables_of(directory / "model.ckpt-2")
    assert resumed.keys() == straight.keys()
    for name, value in straight.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)

    weights = {name for name in straight if not names.is_run_state(name)}
    slots = {name for name in straight if name.endswith("/velocity")}
    assert slots == {f"{name}/velocity" for name in weights}
    assert all(names.is_optimizer_state(name) for name in slots)
    assert not any("adam" in name or name == "optimizer/update_count" for name in straight)

    ledger = json.loads((directory / "run.json").read_text())["ledger"]
    section = ledger["optimizer"]
    assert (section["name"], section["momentum"]) == ("momentum", 0.5)
    assert section["operations"].endswith("(momentum: TensorFlow's)")
    assert "bias_correction" not in section
    parameters = sum(straight[name].size for name in weights)
    assert float(ledger["checkpoints"]["gib_each"]) == pytest.approx(
        8 * parameters / (1 << 30), rel=1e-2
    )


@pytest.mark.usefixtures("with_momentum")
@pytest.mark.parametrize(
    "form", [TensorFlowKernels, pytest.param(NativeKernels, marks=requires_native_ops)]
)
def test_momentum_by_hand(form):
    """The toy is what its paper says, so that what trains with it is no other optimizer."""
    w, velocity = GRADIENT + 1.0, np.zeros_like(GRADIENT)
    for _ in range(2):
        velocity = 0.5 * velocity + GRADIENT + 0.01 * w
        w = w - 0.25 * velocity
    found = two_updates(lambda: Optimizer("momentum", 0.25, momentum=0.5, kernels=form()))
    np.testing.assert_allclose(found[0], w, rtol=1e-6)


def test_head_only_tuning(train):
    directory = train(rate_factors=((r"^bert/", 0.0), (r"output_bias$", 0.5)))
    start, found = (variables_of(directory / f"model.ckpt-{step}") for step in (0, 2))
    section = json.loads((directory / "run.json").read_text())["ledger"]["optimizer"]
    assert section["rate_factors"] == ["^bert/:0", "output_bias$:0.5"]
    for name, value in found.items():
        if name.startswith("bert/"):
            assert not names.is_run_state(name)
            np.testing.assert_array_equal(value, start[name], err_msg=name)
        elif name.startswith("cls/"):
            assert not np.array_equal(value, start[name]), name
    assert "cls/predictions/output_bias/adam_m" in found


@pytest.mark.slow
def test_layers_that_are_trained_from_the_second_half_on(train):
    directory = train(trained_from=((r"^bert/", 0.5),), clip_norm=None)
    saved = [variables_of(directory / f"model.ckpt-{step}") for step in range(3)]
    section = json.loads((directory / "run.json").read_text())["ledger"]["optimizer"]
    assert section["trained_from"] == ["^bert/:0.5"]
    for name in (name for name in saved[0] if not names.is_run_state(name)):
        moved = [not np.array_equal(after[name], saved[0][name]) for after in saved]
        assert moved == [False, not name.startswith("bert/"), True], name


class TwoLayers:
    """300 weights of a network, 20 of its head."""

    config = SimpleNamespace(initializer_range=0.02)

    def specs(self):
        return [VariableSpec("bert/kernel", (10, 30)), VariableSpec("cls/kernel", (20,))]


def test_the_estimate_of_memory_has_slots_and_gradients_of_what_is_trained(monkeypatch):
    def slot_bytes(**changes):
        job = job_of(TwoLayers(), optimization=optimization_settings(**changes))
        estimate = memory.estimate_memory(job)
        of_a_weight = 4 if changes.get("optimizer") == "momentum" else 8
        assert estimate.gradients == 4 * 4 * estimate.optimizer // of_a_weight, "four copies"
        assert estimate.weights == 4 * 320
        return estimate.optimizer

    # Activations are another matter.
    monkeypatch.setattr(memory, "_one_micro_batch", lambda *_: ([], []))
    monkeypatch.setitem(OPTIMIZERS, "momentum", momentum_optimizer.ROW)
    assert slot_bytes() == slot_bytes(optimizer="lamb") == 320 * 8
    assert slot_bytes(optimizer="momentum") == 320 * 4
    assert slot_bytes(rate_factors=(("^bert/", 0.0), ("^cls/", 0.1))) == 20 * 8
