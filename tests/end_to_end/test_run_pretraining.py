"""The real program, from flags to files."""

import json
import os
import re
import signal
import subprocess

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.util.directory_lock import hold_directory
from tests.helpers.programs import ROOT, environment, mpirun, python, requires_horovod, run
from tests.helpers.tensors import variables_of

SCRIPT = "run_pretraining.py"
EVALUATED = ["--do_eval", "--eval_every_steps=3"]
OUR_LINES = re.compile(
    r"-- ledger -|-{70}$|(ranks|batch|steps|learning_rate|consumption|optimizer|communication"
    r"|precision|data|compute|speed|checkpoints) +\S+=| {15}\S"
    r"|step \d+/\d+  loss|evaluation at step"
    r"|resuming from|model record: |output is in|XLA: "
    r"|training (took|without them took) "
)


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(flags, tmp_path_factory):
    """A finished run that trained, paused to evaluate and went on; and what it printed."""
    output_dir = tmp_path_factory.mktemp("model")
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={output_dir}",
        "--do_train",
        "--do_eval",
        "--eval_every_steps=3",
        "--deterministic",
    )
    return output_dir, done


@pytest.mark.each_tensorflow
def test_the_files_of_a_run(trained):
    output_dir, _ = trained
    record = json.loads((output_dir / "run.json").read_text())
    assert record["ledger"]["batch"]["global_batch"] == 8
    assert record["ledger"]["steps"]["train_steps"] == 6
    assert record["ledger"]["consumption"]["sequences"] == 48
    assert record["flags"]["learning_rate"] == 1e-3
    assert record["model"]["hidden_size"] == 32
    assert record["versions"]["bert_tf"]
    assert 0 < record["seconds_to_first_update"] < 3600
    totals = record["training"]
    assert (totals["sequences"], totals["steady_sequences"]) == (48, 40)
    assert 0 < totals["steady_seconds"] < totals["seconds"] < 3600
    steps = read_lines(output_dir / "log.jsonl")
    assert [line["step"] for line in steps] == [1, 2, 3, 4, 5, 6]
    for line in steps:
        assert {"loss", "learning_rate", "sequences_per_second", "time"} <= line.keys()
        assert np.isfinite(list(line.values())).all()
    assert list(output_dir.glob("events.out.tfevents.*"))
    assert {p.stem for p in output_dir.glob("model.ckpt-*.index")} == {
        "model.ckpt-0",
        "model.ckpt-3",
        "model.ckpt-6",
    }


@pytest.mark.each_tensorflow
def test_evaluation_before_on_the_way_and_after(trained):
    output_dir, _ = trained
    evaluations = read_lines(output_dir / "eval_log.jsonl")
    assert [line["step"] for line in evaluations] == [0, 3, 6]
    assert evaluations[-1]["masked_lm_loss"] < evaluations[0]["masked_lm_loss"]
    # An untrained network knows nothing: the loss is that of a uniform guess.
    assert evaluations[0]["masked_lm_loss"] == pytest.approx(np.log(600), rel=0.02)
    results = json.loads((output_dir / "eval_results.json").read_text())
    assert results["global_step"] == 6
    assert results["masked_lm_perplexity"] == pytest.approx(np.exp(results["masked_lm_loss"]))
    assert 0 <= results["next_sentence_accuracy"] <= 1
    assert f"loss = {results['loss']}\n" in (output_dir / "eval_results.txt").read_text()
    best = min(evaluations, key=lambda line: line["loss"])
    assert (output_dir / "best" / f"model.ckpt-{best['step']}.index").is_file()


@pytest.mark.each_tensorflow
def test_the_terminal_shows_our_lines_only(trained):
    output_dir, done = trained
    assert done.stderr == ""
    for line in done.stdout.splitlines():
        assert OUR_LINES.match(line), line
    assert f"output is in {output_dir}" in done.stdout
    assert "ETA" in done.stdout


@pytest.mark.exhaustive
def test_a_checkpoint_that_counts_steps_only_ends_in_the_same_bits(trained, flags, tmp_path):
    """As google-research/bert saves them: weights, moments and global_step."""
    whole, _ = trained
    known = variables_of(whole / "model.ckpt-3")
    counts = {"training/skipped_updates", "training/consumed_sequences"}
    assert counts < known.keys()
    kept = {name: value for name, value in known.items() if name not in counts}
    write_checkpoint(str(tmp_path / "model.ckpt-3"), kept)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    done = run(SCRIPT, *flags, f"--output_dir={tmp_path}", "--do_train", "--deterministic")
    assert "assuming 3 updates x 8 (the current global batch) = 24\n" in done.stdout
    expected, found = variables_of(whole / "model.ckpt-6"), variables_of(tmp_path / "model.ckpt-6")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_asked_to_stop_it_saves_a_checkpoint_first(asked, flags, tmp_path):
    process = subprocess.Popen(
        [*python(), SCRIPT, *flags, f"--output_dir={tmp_path}", "--do_train",
         "--num_train_steps=100000", "--save_checkpoints_steps=50000"],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    for line in process.stdout:
        if line.startswith("step 5/"):
            process.send_signal(asked)
            break
    rest, errors = process.communicate()
    assert process.returncode == 128 + asked
    assert errors == ""
    assert f"stopped by {asked.name}" in rest
    step = read_lines(tmp_path / "log.jsonl")[-1]["step"]
    assert 5 <= step < 100000
    assert tf.train.load_variable(str(tmp_path), "global_step") == step


@pytest.mark.slow
def test_a_finished_run_says_so_and_can_be_evaluated_alone(trained, flags):
    output_dir, _ = trained
    before = json.loads((output_dir / "eval_results.json").read_text())
    done = run(SCRIPT, *flags, f"--output_dir={output_dir}", "--do_train")
    assert "nothing to train" in done.stdout
    before_list = (output_dir / "checkpoint").read_text()
    (output_dir / "checkpoint").unlink()
    done = run(SCRIPT, *flags, f"--output_dir={output_dir}", "--do_eval", "--eval_batch_size=7")
    assert "checkpoint was missing; the latest complete checkpoint there is" in done.stdout
    assert (output_dir / "checkpoint").read_text() == before_list
    assert [line["step"] for line in read_lines(output_dir / "eval_log.jsonl")] == [0, 3, 6]
    after = json.loads((output_dir / "eval_results.json").read_text())
    assert after == pytest.approx(before, rel=1e-6)


def test_two_runs_do_not_share_a_directory(trained, flags):
    output_dir, _ = trained
    with hold_directory(output_dir, flag="output_dir"):
        files = [path for path in output_dir.rglob("*") if path.name != ".lock"]
        before = {path: path.stat().st_mtime_ns for path in files}
        more = ["--do_train", "--num_train_steps=9"]
        done = run(SCRIPT, *flags, f"--output_dir={output_dir}", *more, check=False)
        assert done.returncode == 2
        assert re.fullmatch(
            rf"error: --output_dir: {output_dir} is in use by process {os.getpid()} on host \S+ "
            r"\(since .*\); wait for it to end, or choose another directory\.\n",
            done.stderr,
        )
        assert {path for path in output_dir.rglob("*") if path.name != ".lock"} == before.keys()
        assert {path: path.stat().st_mtime_ns for path in files} == before


def test_weights_from_another_run(trained, flags, tmp_path):
    output_dir, _ = trained
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={tmp_path}",
        f"--init_checkpoint={output_dir}",
        "--do_eval",
    )
    assert "restored" in done.stdout
    expected = json.loads((output_dir / "eval_results.json").read_text())
    found = json.loads((tmp_path / "eval_results.json").read_text())
    assert found["masked_lm_loss"] == pytest.approx(expected["masked_lm_loss"], rel=1e-6)
    assert found["global_step"] == 0


UNCOMPILED = ["--do_train", "--use_xla=false", "--native_ops=false", "--precision=fp32"]
COMPILED = ["--do_train", "--use_xla", "--precision=fp32"]


@pytest.fixture(scope="module")
def uncompiled(flags, tmp_path_factory):
    """A run of TensorFlow's operations, one by one."""
    output_dir = tmp_path_factory.mktemp("uncompiled")
    run(SCRIPT, *flags, *UNCOMPILED, *EVALUATED, f"--output_dir={output_dir}")
    return output_dir


def assert_same_run(found, expected):
    """Losses and weights of six updates, which only rounding may tell apart."""
    for log in ("log.jsonl", "eval_log.jsonl"):
        ours, theirs = ({line["step"]: line["loss"] for line in read_lines(directory / log)}
                        for directory in (found, expected))  # fmt: skip
        # Each start evaluates when it ends.
        assert {step: ours[step] for step in theirs} == pytest.approx(theirs, rel=1e-5)
    ours, theirs = (variables_of(d / "model.ckpt-6") for d in (found, expected))
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        tolerance = 6e-3 if "self/key/bias" in name else 1e-5  # as for two ranks below
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.slow
@pytest.mark.each_tensorflow
def test_a_compiled_run_continues_an_uncompiled_one_and_the_other_way_round(
    flags, uncompiled, tmp_path
):
    common = [SCRIPT, *flags, *EVALUATED, f"--output_dir={tmp_path}"]
    done = run(*common, *COMPILED, "--stop_after_steps=2")
    record = json.loads((tmp_path / "run.json").read_text())
    assert (record["xla_functions"], record["xla_shapes"]) == (2, 1)
    assert record["ledger"]["precision"]["xla"] is True
    assert "XLA compiles 2 functions of an update" in done.stdout
    assert "slower than without" in done.stdout
    assert done.stderr == ""
    run(*common, *UNCOMPILED, "--stop_after_steps=4")
    run(*common, *COMPILED)
    assert_same_run(tmp_path, uncompiled)


@pytest.mark.slow
@pytest.mark.each_tensorflow
@requires_horovod
@pytest.mark.parallel
def test_two_compiled_ranks_are_one_uncompiled(flags, uncompiled, tmp_path):
    more = ["--train_batch_size=4", "--scale_steps_by_ranks=false", f"--output_dir={tmp_path}"]
    done = mpirun(2, SCRIPT, "--horovod", *flags, *COMPILED, *EVALUATED, *more)
    assert done.stderr == ""
    assert json.loads((tmp_path / "run.json").read_text())["xla_functions"] == 2
    assert_same_run(tmp_path, uncompiled)


def assert_learns(directory):
    """Words that were held out become likelier: by far more than a tiny rate could do."""
    first, *_, last = read_lines(directory / "eval_log.jsonl")
    assert (first["step"], last["step"]) == (0, 6)
    assert first["masked_lm_loss"] - last["masked_lm_loss"] > 0.03


@pytest.mark.slow
def test_bf16_and_lamb_with_accumulation(flags, tmp_path):
    run(
        SCRIPT,
        *flags,
        f"--output_dir={tmp_path}",
        "--do_train",
        "--precision=bf16",
        "--optimizer_type=lamb",
        "--learning_rate=0.05",
        "--train_batch_size=4",
        "--global_batch_size=8",
        *EVALUATED,
    )
    record = json.loads((tmp_path / "run.json").read_text())["ledger"]
    assert record["precision"]["dense"] == "bfloat16"
    assert record["precision"]["softmax"] == "float32"
    assert record["batch"]["accumulation_steps"] == 2
    assert_learns(tmp_path)


@pytest.mark.exhaustive
def test_a_precision_policy_from_a_file_without_next_sentences(flags, tmp_path):
    """Half precision in every class, float16 in one: under a loss scale, and still learning."""
    policy = tmp_path / "policy.json"
    classes = ["attention", "dense", "embeddings", "softmax", "layer_norm", "activations", "loss"]
    types = {**dict.fromkeys(classes, "bfloat16"), "logits": "float16"}
    policy.write_text(json.dumps(types))
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={tmp_path}",
        "--do_train",
        f"--precision_policy={policy}",
        "--allow_slow_fp16",
        "--nsp=false",
        *EVALUATED,
    )
    assert "only emulates fp16" in done.stdout
    precision = json.loads((tmp_path / "run.json").read_text())["ledger"]["precision"]
    assert precision["policy"] == "fp32"
    assert precision["from_file"] == sorted(types)
    assert {name: precision[name] for name in types} == types
    names = variables_of(tmp_path / "model.ckpt-6")
    assert "loss_scale/scale" in " ".join(names)
    assert not any("seq_relationship" in name or "pooler" in name for name in names)
    assert_learns(tmp_path)


@pytest.mark.slow
def test_amp_is_half_precision(flags, tmp_path):
    run(SCRIPT, *flags, f"--output_dir={tmp_path}", "--do_train", "--amp", "--num_train_steps=2")
    precision = json.loads((tmp_path / "run.json").read_text())["ledger"]["precision"]
    assert (precision["policy"], precision["dense"]) == ("bf16", "bfloat16")


@pytest.mark.each_tensorflow
@requires_horovod
@pytest.mark.parallel
def test_two_ranks(trained, flags, tmp_path):
    whole, _ = trained
    # Two ranks with half the micro batch each and unscaled steps: the run of one rank again.
    done = mpirun(
        2,
        SCRIPT,
        "--horovod",
        *flags,
        f"--output_dir={tmp_path}",
        "--do_train",
        "--do_eval",
        "--eval_every_steps=3",
        "--train_batch_size=4",
        "--scale_steps_by_ranks=false",
    )
    assert done.stdout.count("step 6/6") == 1, "rank 0 alone prints"
    assert done.stderr == ""
    expected, found = variables_of(whole / "model.ckpt-6"), variables_of(tmp_path / "model.ckpt-6")
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # 6 updates with a learning rate of 1e-3; see tests/parallel/test_equivalence.py.
        tolerance = 6e-3 if "self/key/bias" in name else 1e-5
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)
    one = json.loads((whole / "eval_results.json").read_text())
    two = json.loads((tmp_path / "eval_results.json").read_text())
    assert two == pytest.approx(one, rel=1e-4)


def test_a_dry_run_shows_the_arithmetic_and_writes_nothing(flags, tmp_path):
    output_dir = tmp_path / "planned"
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={output_dir}",
        "--do_train",
        "--dry_run",
        "--train_batch_size=2",
        "--global_batch_size=8",
    )
    assert "arithmetic=2 (micro batch) x 4 (accumulation steps) x 1 (ranks) = 8" in done.stdout
    memory = re.search(r"memory, estimated: about ([\d.]+) GiB a rank \(", done.stdout)
    # The program itself is all but everything of a network this small.
    assert 0.4 < float(memory[1]) < 1
    assert "dry run" in done.stdout
    assert "step 1/" not in done.stdout
    assert not output_dir.exists()


@pytest.mark.slow
@requires_horovod
@pytest.mark.parallel
def test_steps_are_scaled_and_fewer_ranks_go_on_with_the_same_data_and_schedule(flags, tmp_path):
    """Two updates on two ranks, and the rest of the eight of a single rank on one."""
    common = [*flags, f"--output_dir={tmp_path}", "--do_train", "--save_checkpoints_steps=1"]
    common.append("--learning_rate_scaling=sqrt")
    mpirun(2, SCRIPT, "--horovod", *common, "--num_train_steps=4")
    scaled = json.loads((tmp_path / "run.json").read_text())["ledger"]
    assert scaled["ranks"]["world_size"] == 2
    assert scaled["batch"]["arithmetic"].endswith("= 16")
    assert (scaled["steps"]["train_steps"], scaled["steps"]["warmup_steps"]) == (2, 1)
    assert scaled["steps"]["train_steps_on_one_rank"] == 4
    assert scaled["learning_rate"]["peak"] == pytest.approx(1e-3 * 2**0.5)
    assert (tmp_path / "model.ckpt-2.index").is_file()

    done = run(SCRIPT, *common, "--num_train_steps=8")
    assert "changed since the run's last start: ranks.world_size 2 -> 1, " in done.stdout
    facts = json.loads((tmp_path / "run.json").read_text())["ledger"]
    expected = {"ranks.world_size": "2 -> 1", "batch.global_batch": "16 -> 8"}
    assert expected.items() <= facts["changed"].items()
    assert facts["steps"]["scaled_by_ranks"], "as the run began, without any flag"
    # Two updates of 16 sequences are four of the eight of a single rank: four are left.
    steps = facts["steps"]
    assert (steps["start_step"], steps["schedule_offset"], steps["last_step"]) == (2, 2, 6)
    assert facts["consumption"]["sequences"] == 8 * 8
    assert variables_of(tmp_path / "model.ckpt-6")["training/consumed_sequences"] == 8 * 8
    rates = [line["learning_rate"] for line in read_lines(tmp_path / "log.jsonl")]
    # The peak of 1e-3 comes after two of eight steps; what is left of the decay after four.
    assert rates[2:] == pytest.approx([1e-3 * left / 6 for left in (4, 3, 2, 1)])


@pytest.mark.parallel
@requires_horovod
@pytest.mark.slow
def test_ranks_whose_gradients_are_not_finite_are_named(flags, tmp_path):
    """Weights of infinite size spoil every rank's part of the batch."""
    done = mpirun(
        2, SCRIPT, "--horovod", *flags, "--do_train", f"--output_dir={tmp_path}",
        "--train_batch_size=2", "--num_accumulation_steps=2", "--scale_steps_by_ranks=false",
        "--learning_rate=1e30", "--clip_norm=0", "--num_warmup_steps=0", check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.count("error: ") == 1
    assert "not finite in the update after step 1 (learning rate " in done.stderr
    assert "on rank 0, 1, there first on rank 0: the loss (masked_lm, next_sen" in done.stderr
    saved = sorted((tmp_path / "nonfinite_1").iterdir())
    assert [path.name for path in saved] == [
        f"rank_{rank}_micro_batch_{number}.{ending}"
        for rank in (0, 1)
        for number in (0, 1)
        for ending in ("json", "npz")
    ]
    records = [
        (record["file"], record["record"])
        for path in saved
        if path.suffix == ".json"
        for record in json.loads(path.read_text())["records"]
    ]
    assert len(set(records)) == 8, "the global batch, each record once"
