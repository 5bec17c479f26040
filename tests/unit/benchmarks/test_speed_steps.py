from __future__ import annotations

import json
import math
import types

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from benchmarks.results import print_table
from benchmarks.speed import google_bert, steps
from benchmarks.speed.comparison import subject_results
from benchmarks.speed.steps import PRETRAINING, SPANS, StepJob, time_steps
from benchmarks.speed.subjects import SUBJECTS
from bert_tf.util.errors import UserError
from tests.helpers.programs import run
from tests.helpers.small_span_model import CONFIG

JOB = StepJob(
    task=PRETRAINING,
    network=CONFIG,
    batch_size=2,
    seq_length=8,
    predictions=3,
    accumulation_steps=2,
    threads=1,
    warmup_steps=2,
    steps=3,
)


def test_jobs_survive_json():
    assert StepJob.from_json({**json.loads(json.dumps(JOB.to_json())), "started": 1.0}) == JOB


def test_micro_batches_are_the_batch_cut():
    whole, parts = JOB.batch(4), JOB.micro_batches()
    assert len(parts) == 2
    for name, values in whole.items():
        assert len(parts[0][name]) == 2
        np.testing.assert_array_equal(np.concatenate([part[name] for part in parts]), values)
    positions = whole["masked_lm_positions"]
    assert positions.shape == (4, 3)
    assert (np.diff(positions, axis=1) > 0).all(), "different ones, in order"


def test_warm_up_steps_are_not_counted(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(steps.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(steps.time, "monotonic", lambda: 17.0)
    losses = iter([5.0, 4.0, 3.0, 2.0, 1.0])
    found = time_steps(JOB, lambda: next(losses), started=10.0)
    assert next(losses, None) is None
    assert (found["seconds"], found["loss"], found["first_step_seconds"]) == (1, 5.0, 7.0)


def test_a_loss_that_is_no_number_is_refused():
    with pytest.raises(ArithmeticError, match="first step's loss is nan"):
        time_steps(JOB, lambda: math.nan, started=0.0)


def turn(seconds, foreign=0.0, **more):
    return {"seconds": seconds, "foreign_share": foreign, "memory": 3.0, **more}


FOUND = {
    "ours": [turn(0.5, precision="bf16"), turn(1.0, precision="bf16"), turn(0.25)],
    "google-bert": [turn(1.0), turn(4.0), turn(1.0, foreign=0.5)],
    "limit-bf16": [turn(0.25, gflops=7.0), turn(0.25, gflops=7.0), turn(0.25, gflops=7.0)],
}
PRESENT = [SUBJECTS[name] for name in ("ours", "google-bert", "limit-bf16", "ours-fp32")]


def figures(found):
    return {"step": (4 / found["seconds"], "sequences/s"), "peak memory": (found["memory"], "MiB")}


def test_results_are_medians_and_ratios_turn_by_turn():
    results = subject_results(PRESENT, FOUND, figures, config={"a": 1})
    found = {(r["name"], r["subject"]): (r["value"], r["unit"]) for r in results}
    assert found == {
        ("step", "ours"): (8.0, "sequences/s"),
        ("step", "google-bert"): (4.0, "sequences/s"),
        ("step", "limit-bf16"): (16.0, "sequences/s"),
        **{("peak memory", name): (3.0, "MiB") for name in FOUND},
        ("step, ours to google-bert", "ours"): (4.0, "ratio"),  # of 2, 4 and 4
        ("step, ours to limit-bf16", "ours"): (0.5, "ratio"),
    }
    by_subject = {r["subject"]: r["config"] for r in results if r["unit"] == "sequences/s"}
    assert by_subject["ours"]["precision"] == "bf16"
    assert by_subject["limit-bf16"]["gflops"] == 7.0
    assert by_subject["google-bert"]["others_share_of_machine"] == [0.0, 0.0, 0.5]
    assert all({"a", "turns"} <= set(r["config"]) for r in results)


def test_table(capsys):
    print_table(subject_results(PRESENT, FOUND, figures, config={}), most_foreign=0.06)
    _, head, ours, google, limit = capsys.readouterr().out.splitlines()
    assert head.split() == ["step", "sequences/s", "turns", "ours", "to", "it", "memory,", "MiB"]
    assert ours.split() == ["ours", "8", "4", "to", "16", "1", "3"]
    assert google.split() == ["google-bert", "*", "4", "1", "to", "4", "4", "3"]
    assert limit.startswith("limit-bf16")


def test_where_all_failed_there_is_no_table(capsys):
    assert subject_results(PRESENT, {}, figures, config={}) == []
    print_table([])
    assert not capsys.readouterr().out.strip()


FAKE_PROGRAM = """
import tensorflow as tf
import modeling

def model_fn_builder(bert_config, init_checkpoint, learning_rate, num_train_steps,
                     num_warmup_steps, use_tpu, use_one_hot_embeddings):
    def model_fn(features, labels, mode, params):
        del labels, params
        x = tf.cast(features["input_ids"], tf.float32)
        x = tf.contrib.layers.layer_norm(
            inputs=x, begin_norm_axis=-1, begin_params_axis=-1, scope=None)
        assert isinstance(tf.placeholder(tf.float32, []), tf.Tensor), "a graph, as in TF 1"
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=tf.reduce_sum(x) + bert_config["hidden_size"], train_op=tf.no_op(),
            scaffold_fn=None)
    return model_fn
"""


@pytest.fixture
def checkout(tmp_path):
    (tmp_path / "run_pretraining.py").write_text(FAKE_PROGRAM)
    (tmp_path / "run_squad.py").write_text(FAKE_PROGRAM)
    (tmp_path / "optimization.py").write_text("")
    (tmp_path / "modeling.py").write_text(
        "class BertConfig(dict):\n    from_dict = classmethod(lambda cls, sizes: cls(sizes))\n"
    )
    return tmp_path


CALLS_THE_FAKE = """
import json, sys
import tensorflow
from benchmarks.speed import google_bert
job = json.loads(sys.argv[1])
found = google_bert.train({**job, "started": 0.0})
assert sys.modules["tensorflow"] is tensorflow
print(found["loss"], sys.modules["run_" + sys.argv[2]].__file__)
"""


HAS_ESTIMATOR = hasattr(tf, "estimator")


@pytest.mark.skipif(not HAS_ESTIMATOR, reason="google's code needs tf.estimator and tf.layers")
@pytest.mark.parametrize(("task", "program"), [(PRETRAINING, "pretraining"), (SPANS, "squad")])
def test_googles_code_finds_tensorflow_1(checkout, task, program):
    settings = {"amp": False, "google_bert_dir": str(checkout)}
    job = {**JOB.to_json(), "task": task, "settings": settings}
    done = run("-c", CALLS_THE_FAKE, json.dumps(job), program)
    loss, path = done.stdout.split()
    # A normalised row sums to 0.
    assert float(loss) == pytest.approx(CONFIG.hidden_size, abs=1e-3)
    assert path == str(checkout / f"run_{program}.py"), "not ours of the same name"


def test_without_tf_estimator_googles_code_is_left_out_with_a_reason(checkout, monkeypatch):
    without = types.SimpleNamespace(version=tf.version)
    monkeypatch.setattr(google_bert, "tf", without)
    job = {**JOB.to_json(), "settings": {"amp": False, "google_bert_dir": str(checkout)}}
    with pytest.raises(UserError, match=r"needs tf\.estimator.* run the benchmark with 2\.15"):
        google_bert.train(job)


def test_layer_norm_is_that_of_contrib():
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(2, 3, 5)).astype(np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        normalised = google_bert.layer_norm(tf.constant(x), -1, -1, scope="LayerNorm")
        assert [v.name for v in tf.trainable_variables()] == [
            "LayerNorm/beta:0",
            "LayerNorm/gamma:0",
        ]
        beta, gamma = tf.trainable_variables()
        session.run(tf.global_variables_initializer())
        session.run([beta.assign([1.0] * 5), gamma.assign([2.0] * 5)])
        found = session.run(normalised)
    centred = x - x.mean(-1, keepdims=True)
    expected = 2.0 * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) + 1.0
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="only the last axis"):
        google_bert.layer_norm(tf.constant(x), 1, -1)


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "bert_config.json"
    path.write_text(json.dumps({**CONFIG.to_dict(), "initializer_range": 0.02}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "flags"),
    [("pretraining_step", ["--predictions=2", "--accumulation_steps=2"]), ("finetuning_step", [])],
)
def test_whole_benchmark(config_file, tmp_path, program, flags):
    done = run(
        "-m", f"benchmarks.{program}", f"--bert_config_file={config_file}", "--batch_size=2",
        "--seq_length=16", "--turns=1", "--steps=1", "--warmup_steps=1", "--retries=0",
        "--threads=1", "--subjects=ours-fp32,transformers-fp32-malloc,limit-fp32",
        f"--json={tmp_path}/results.json", *flags,
    )  # fmt: skip
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(set(r) == {"name", "subject", "value", "unit", "config"} for r in results)
    assert all(r["value"] > 0 for r in results)
    speeds = {r["subject"]: r["config"] for r in results if r["unit"] == "sequences/s"}
    assert set(speeds) == {"ours-fp32", "transformers-fp32-malloc", "limit-fp32"}
    # Both start from weights near zero: the loss is that of guessing.
    losses = speeds["ours-fp32"]["loss"], speeds["transformers-fp32-malloc"]["loss"]
    assert losses[0] == pytest.approx(losses[1], rel=0.1)
    assert "ours-fp32 to it" in done.stdout


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--subjects=ours,other", "--subjects: 'other' is none of ours,"),
        ("--subjects=ours,google-bert-amp", "--subjects: google-bert-amp needs --google_bert_dir"),
        ("--google_bert_dir=/none", "--google_bert_dir: /none/tokenization.py does not exist"),
        ("--other_python=/none/python", "--other_python: /none/python does not exist"),
        ("--seq_length=999", "--seq_length=999 is more than the network's"),
        ("--predictions=17", "--predictions=17 is more than --seq_length"),
    ],
)
def test_bad_flags_end_in_one_sentence(config_file, flag, sentence):
    done = run(
        "-m", "benchmarks.step", f"--bert_config_file={config_file}",
        "--seq_length=16", "--predictions=1", flag, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1


def test_the_driver_needs_neither_torch_nor_tensorflow_at_import():
    code = (
        "import benchmarks.step, sys; "
        "assert not {'torch', 'transformers', 'tensorflow'} & set(sys.modules)"
    )
    run("-c", code)
