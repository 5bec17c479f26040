"""The precision and operations that users leave open: the same on every start, under any load."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.config.settings import CommunicationSettings
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import PrecisionPolicy, policy_for
from bert_tf.model_directory.run_record import RunRecord
from bert_tf.native import library
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tuning import arithmetic
from bert_tf.tuning.arithmetic import SessionSettings, choose, gpu_index, session_config
from bert_tf.tuning.hardware import AMD_BF16, AMX, LIMITED, OTHER_BF16, PLAIN, Hardware
from bert_tf.update.kernels import NativeKernels, TensorFlowKernels
from bert_tf.util.errors import UserError
from tests.helpers.jobs import begun
from tests.helpers.settings import runtime_settings

BASE = BertConfig(vocab_size=100)
NEW_GPU, OLD_GPU = Hardware((9, 0), 1), Hardware((7, 0), 1)


@pytest.fixture(autouse=True)
def built(monkeypatch):
    """Native operations count as built."""
    monkeypatch.setattr(library, "load", lambda: object())
    monkeypatch.setattr(arithmetic, "native_operations", lambda: object())


def chosen(processor, config=BASE, **wanted):
    return choose(config, ranks=SingleProcess(2), hardware=Hardware(processor=processor), **wanted)


@pytest.mark.parametrize(
    ("processor", "expected"),
    [(AMX, "bf16"), (AMD_BF16, "bf16"), (OTHER_BF16, "fp32"), (PLAIN, "fp32"), (LIMITED, "fp32")],
)
def test_auto_follows_the_processor(processor, expected):
    choice = chosen(processor)
    assert choice.precision == expected
    assert choice.because == f"{processor.name}: {processor.bfloat16}"
    assert choice.options == ForwardOptions(policy_for(expected), native_layers=True)
    assert (choice.against_native_ops, choice.warnings) == (None, ())


def test_a_narrow_network_is_float32():
    narrow = BertConfig(vocab_size=100, hidden_size=64, num_attention_heads=2)
    assert chosen(AMX, narrow).precision == "fp32"
    assert chosen(AMX, narrow, precision="bf16").precision == "bf16"


@pytest.mark.parametrize(
    ("processor", "wanted", "warning"),
    [
        (AMX, {"precision": "bf16"}, None),
        (OTHER_BF16, {"precision": "bf16"}, "at half of float32's rate; fp32 is faster here"),
        (PLAIN, {"precision": "bf16"}, "emulated, at half of float32's rate; fp32 is faster"),
        (PLAIN, {"policy_changes": {"dense": "bfloat16"}}, "fp32 is faster here"),
        (PLAIN, {"precision": "fp16"}, "emulates fp16 products, very slowly"),
        (PLAIN, {}, None),
    ],
)
def test_a_slower_request_is_obeyed_with_a_warning(processor, wanted, warning):
    choice = chosen(processor, **wanted)
    assert choice.precision == wanted.get("precision", "fp32")
    assert choice.because is None or "precision" not in wanted
    assert len(choice.warnings) == (warning is not None)
    assert warning is None or warning in choice.warnings[0]


@pytest.mark.parametrize(
    "wanted", [{"precision": "bf16"}, {"policy_changes": {"loss": "bfloat16"}}]
)
def test_bfloat16_is_refused_where_tensorflow_crashes_in_it(wanted):
    with pytest.raises(UserError, match=r"crashes in bfloat16 .*ONEDNN_MAX_CPU_ISA.*use float32"):
        chosen(LIMITED, **wanted)
    gpu = Hardware((8, 0), 1, LIMITED)
    assert choose(BASE, ranks=SingleProcess(1), hardware=gpu).precision == "bf16"


def test_the_file_of_types_changes_what_auto_took():
    choice = chosen(AMX, policy_changes={"dense": "float32"})
    assert choice.options.policy == policy_for("bf16").changed({"dense": "float32"})
    assert choice.precision == "bf16"


def test_native_operations_can_be_refused():
    choice = chosen(AMX, native_ops=False)
    assert choice.against_native_ops == "--native_ops=false"
    assert not choice.options.native_layers


@pytest.mark.parametrize(
    ("before", "hardware", "expected"),
    [
        ("fp32", Hardware(processor=AMX), "fp32"),
        ("bf16", Hardware(processor=AMX), "bf16"),
        ("bf16", Hardware(processor=PLAIN), "fp32"),  # it would be slow here
        ("fp16", Hardware(processor=AMX), "bf16"),
        ("fp16", Hardware((8, 0), 1), "fp16"),
        ("bf16", Hardware((7, 0), 1), "fp16"),
        ("fp8", Hardware(processor=AMX), "bf16"),
        (None, Hardware(processor=AMX), "bf16"),
    ],
)
def test_a_run_keeps_its_precision_where_that_is_not_slow(tmp_path, before, hardware, expected):
    run = begun(
        runtime=runtime_settings(precision="auto"),
        hardware=hardware,
        record=RunRecord(tmp_path / "run.json", {"ledger": {"precision": {"policy": before}}}),
    )
    found = run.choose_arithmetic(BASE)
    assert found.precision == expected
    kept = found.because == "the run's precision before"
    assert kept == (before == expected)


def test_what_former_trials_recorded_decides_nothing(tmp_path):
    trial = {"asked": "auto", "operations": "tensorflow", "seconds": {"fp32": {"products": 1.0}}}
    ledger = {"speed": trial, "precision": {"policy": "bf16"}}
    run = begun(
        runtime=runtime_settings(precision="auto"),
        hardware=Hardware(processor=AMX),
        record=RunRecord(tmp_path / "run.json", {"ledger": ledger}),
    )
    found = run.choose_arithmetic(BASE)
    assert found.precision == "bf16"
    assert isinstance(found.kernels, NativeKernels)


def test_a_request_overrules_what_the_run_had(tmp_path):
    run = begun(
        runtime=runtime_settings(precision="fp32"),
        hardware=Hardware(processor=AMX),
        record=RunRecord(tmp_path / "run.json", {"ledger": {"precision": {"policy": "bf16"}}}),
    )
    found = run.choose_arithmetic(BASE)
    assert (found.precision, found.because) == ("fp32", None)


def test_compiled_code_has_tensorflows_operations():
    run = begun(runtime=runtime_settings(use_xla=True))
    found = run.choose_arithmetic(BASE)
    assert isinstance(found.kernels, TensorFlowKernels)
    assert found.options.compiled
    assert not found.options.native_layers


def policy_on(hardware, **wanted):
    return choose(BASE, ranks=SingleProcess(1), hardware=hardware, **wanted).options.policy


def test_float16_on_a_cpu_is_refused_unless_requested_twice():
    with pytest.raises(UserError, match=r"--precision=fp16 on a CPU .*--precision=auto,"):
        policy_on(Hardware(), precision="fp16", allow_slow_fp16=False)
    allowed = policy_on(Hardware(), precision="fp16", allow_slow_fp16=True)
    assert allowed == policy_for("fp16")


FLOAT16_LOGITS = {"logits": "float16", "loss": "float32"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_float16_for_one_class_on_a_cpu_is_refused_too(precision):
    settings = {"precision": precision, "policy_changes": FLOAT16_LOGITS}
    expected = (
        r"^float16 for logits \(--precision_policy\) on a CPU .*use float32 or bfloat16 there"
    )
    with pytest.raises(UserError, match=expected):
        policy_on(Hardware(), **settings, allow_slow_fp16=False)
    expected = dataclasses.replace(policy_for(precision), logits=tf.float16)
    assert policy_on(Hardware(), **settings, allow_slow_fp16=True) == expected
    assert policy_on(OLD_GPU, **settings) == expected


def test_a_file_may_take_the_float16_out_of_a_precision():
    changes = {"dense": "bfloat16", "attention": "float32"}
    policy = policy_on(Hardware(), precision="fp16", policy_changes=changes, allow_slow_fp16=False)
    assert policy == PrecisionPolicy(dense=tf.bfloat16)


def test_missing_classes_keep_the_type_of_what_auto_found():
    changes = {"softmax": "bfloat16", "dense": "float32"}
    policy = policy_on(NEW_GPU, precision="auto", policy_changes=changes, allow_slow_fp16=False)
    assert policy == PrecisionPolicy(attention=tf.bfloat16, softmax=tf.bfloat16)
    policy = policy_on(Hardware(), precision="auto", policy_changes=changes, allow_slow_fp16=False)
    assert policy == PrecisionPolicy(softmax=tf.bfloat16)


@pytest.mark.parametrize(
    ("hardware", "changes", "parts"),
    [
        (OLD_GPU, {"softmax": "bfloat16"}, ["emulates bf16"]),
        (NEW_GPU, {"softmax": "bfloat16"}, []),
        (Hardware(processor=AMX), {"dense": "float16", "loss": "bfloat16"}, ["emulates fp16"]),
        (
            Hardware(),
            {"dense": "float16", "loss": "bfloat16"},
            ["bfloat16 products are emulated", "emulates fp16"],
        ),
    ],
)
def test_each_type_that_is_slow_has_a_warning(hardware, changes, parts):
    found = choose(
        BASE, ranks=SingleProcess(1), hardware=hardware, precision="fp32", policy_changes=changes
    ).warnings
    assert len(found) == len(parts)
    for warning, part in zip(found, parts):
        assert part in warning


@pytest.mark.parametrize(
    ("precision", "changes", "sends", "expected"),
    [
        ("fp16", {}, False, True),
        ("bf16", {}, False, False),
        ("fp32", {}, False, False),
        ("fp32", {}, True, True),
        ("fp32", {"dense": "float16", "loss": "bfloat16"}, False, True),
        ("fp16", {"dense": "bfloat16", "attention": "float32"}, False, False),
    ],
)
def test_loss_scaling_goes_with_float16(precision, changes, sends, expected):
    found = chosen(AMX, precision=precision, policy_changes=changes, sends_float16=sends)
    assert found.scales_loss == expected


def test_compressed_gradients_are_float16():
    half = CommunicationSettings(compression="fp16")
    for library_of_ranks in ("horovod", None):
        settings = runtime_settings(library=library_of_ranks, communication=half)
        assert settings.sends_float16 == (library_of_ranks is not None)


def test_explicit_precision_is_kept_and_an_unknown_one_refused():
    found = choose(BASE, ranks=SingleProcess(1), precision="fp16", before="fp32")
    assert (found.precision, found.because) == ("fp16", None)
    with pytest.raises(UserError, match=r"--precision=fp8 is unknown; choose one of auto, fp32"):
        choose(BASE, ranks=SingleProcess(1), precision="fp8")


@pytest.mark.parametrize(("threads", "branches"), [(1, 1), (2, 2), (16, 2)])
def test_threads(threads, branches):
    config = session_config(SessionSettings(threads=threads))
    assert config.intra_op_parallelism_threads == threads
    assert config.inter_op_parallelism_threads == branches


def test_nothing_is_on_by_default():
    config = session_config(SessionSettings(threads=2))
    assert config.graph_options.optimizer_options.global_jit_level == tf.OptimizerOptions.DEFAULT
    assert config.gpu_options.visible_device_list == ""


@pytest.mark.parametrize(
    ("local_rank", "gpu_count", "expected"),
    [(0, 0, None), (3, 0, None), (0, 8, 0), (7, 8, 7), (0, 1, 0), (7, 1, 0)],
    ids=["no GPU", "no GPU, rank 3", "first", "last", "the only one", "each its own"],
)
def test_one_gpu_for_each_rank_of_a_host(local_rank, gpu_count, expected):
    assert gpu_index(local_rank, gpu_count) == expected


def test_a_rank_without_a_gpu_is_refused():
    with pytest.raises(UserError, match=r"local rank 4 has no GPU: .* at most 4 ranks on a host"):
        gpu_index(4, 4)


def test_a_rank_sees_its_own_gpu():
    config = session_config(SessionSettings(threads=2, gpu=3))
    assert config.gpu_options.visible_device_list == "3"
    assert config.gpu_options.allow_growth
    assert config.allow_soft_placement


def test_sessions_made_from_settings_work():
    with (
        tf.Graph().as_default(),
        tf.Session(config=session_config(SessionSettings(threads=1))) as session,
    ):
        np.testing.assert_array_equal(session.run(tf.range(3)), [0, 1, 2])
