"""run_distillation.py from flags to files, and fine-tunings that have a teacher."""

import contextlib
import dataclasses
import fcntl
import json
import os
import signal
import subprocess

import numpy as np
import pytest

from tests.helpers.glue_files import write_data
from tests.helpers.programs import ROOT, environment, mpirun, python, requires_horovod, run
from tests.helpers.small_span_model import CONFIG as SPAN_CONFIG
from tests.helpers.small_span_model import write_model as write_span_model
from tests.helpers.squad_files import write_model, write_squad
from tests.helpers.tensors import variables_of

SCRIPT = "run_distillation.py"
STEPS = 40
# Fewer bytes than the lines of all steps: a program that nobody reads waits before it is done.
LEAST_PIPE = 4096


@pytest.fixture(scope="module")
def teacher(flags, tmp_path_factory):
    """A pre-trained network of four layers, which knows at least which words are frequent."""
    output_dir = tmp_path_factory.mktemp("teacher")
    changes = ["--num_hidden_layers=4", "--nsp=false", "--learning_rate=5e-3"]
    changes += [f"--num_train_steps={STEPS}", f"--save_checkpoints_steps={STEPS}"]
    run("run_pretraining.py", *flags, *changes, "--do_train", f"--output_dir={output_dir}")
    return output_dir


@pytest.fixture(scope="module")
def common(flags, teacher):
    """Flags of a distillation; the student's network follows from the teacher's."""
    kept = [flag for flag in flags if not flag.startswith("--bert_config_file")]
    return [
        *kept,
        f"--teacher_checkpoint={teacher}",
        f"--num_train_steps={STEPS}",
        f"--save_checkpoints_steps={STEPS}",
        "--do_train",
        "--deterministic",
        "--min_target_probability=0.001",
        "--top_k_targets=50",
    ]


@pytest.fixture(scope="module")
def distilled(common, tmp_path_factory):
    """The directory of a student, and what the program printed."""
    output_dir = tmp_path_factory.mktemp("student")
    return output_dir, run(SCRIPT, *common, f"--output_dir={output_dir}", "--do_eval")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def assert_same_bits(found, expected):
    expected, found = variables_of(expected), variables_of(found)
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def test_a_student_learns(distilled, teacher):
    output_dir, done = distilled
    assert "the student starts from layers 0, 2 of its teacher's 4" in done.stdout
    assert done.stderr == ""
    record = json.loads((output_dir / "run.json").read_text())
    assert record["model"]["num_hidden_layers"] == 2
    section = record["ledger"]["distillation"]
    assert (section["teacher"], section["top_k_targets"]) == (str(teacher), 50)
    steps = lines_of(output_dir / "log.jsonl")
    for name in ("soft_targets_divergence", "cosine_distance"):
        first, last = (np.mean([line[name] for line in part]) for part in (steps[:5], steps[-5:]))
        assert last < first, name
    results = json.loads((output_dir / "eval_results.json").read_text())
    assert results["global_step"] == STEPS
    assert not any("teacher" in name for name in variables_of(output_dir))


def read_until(process, start):
    """Reads a program's lines up to one that begins so, and not a byte more."""
    for line in iter(process.stdout.readline, b""):
        if line.decode().startswith(start):
            return
    pytest.fail(f"it ended before {start!r}")


@pytest.mark.exhaustive
def test_asked_to_stop_and_started_again_it_ends_in_the_same_bits(common, distilled, tmp_path):
    process = subprocess.Popen(
        [*python(), SCRIPT, *common, f"--output_dir={tmp_path}"],
        cwd=ROOT,
        env=environment(),
        bufsize=0,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with process, contextlib.closing(process.stdout):
        fcntl.fcntl(process.stdout, fcntl.F_SETPIPE_SZ, LEAST_PIPE)
        read_until(process, "step 3/")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate()
    assert process.returncode == 128 + signal.SIGTERM, errors
    assert b"stopped by SIGTERM" in rest
    stopped = lines_of(tmp_path / "log.jsonl")[-1]["step"]
    assert 3 <= stopped < STEPS
    done = run(SCRIPT, *common, f"--output_dir={tmp_path}")
    assert f"(step {stopped})" in done.stdout
    assert "changed since" not in done.stdout
    assert_same_bits(tmp_path / f"model.ckpt-{STEPS}", distilled[0] / f"model.ckpt-{STEPS}")


@pytest.mark.exhaustive
def test_a_teacher_in_another_format_gives_the_same_bits(common, distilled, teacher, tmp_path):
    converted = tmp_path / "converted"
    command = ["-m", "bert_tf.commands.convert", f"--input={teacher}"]
    run(*command, f"--output_dir={converted}", "--format=huggingface")
    changes = [f"--teacher_checkpoint={converted}", f"--output_dir={tmp_path / 'student'}"]
    run(SCRIPT, *common, *changes)
    assert_same_bits(tmp_path / "student", distilled[0])


def distil_with_kept_targets(common, directory, *changes, ranks):
    """Three updates with targets that are computed before them; returns the targets' directory."""
    done = mpirun(
        ranks, SCRIPT, *common, "--restrict_ce_to_mask", "--alpha_cos=0",
        f"--cache_teacher={directory / 'targets'}", "--num_train_steps=3",
        f"--output_dir={directory / 'student'}", *changes,
    )  # fmt: skip
    assert "the teacher computes 1 of 1 pieces" in done.stdout
    return directory / "targets"


@pytest.fixture(scope="module")
def kept_targets(common, tmp_path_factory):
    return distil_with_kept_targets(common, tmp_path_factory.mktemp("kept"), ranks=1)


@pytest.mark.slow
def test_a_deterministic_run_keeps_targets(kept_targets):
    [piece] = kept_targets.glob("*.tfrecord")
    assert any(piece.read_bytes())


@requires_horovod
@pytest.mark.exhaustive
def test_two_deterministic_ranks_keep_the_same_targets(common, kept_targets, tmp_path):
    changes = ["--horovod", "--scale_steps_by_ranks=false", "--train_batch_size=4"]
    found = distil_with_kept_targets(common, tmp_path, *changes, ranks=2)
    [piece] = kept_targets.glob("*.tfrecord")
    assert (found / piece.name).read_bytes() == piece.read_bytes()


@pytest.mark.exhaustive
def test_the_output_is_all_that_the_next_command_needs(distilled, common, tmp_path):
    student, _ = distilled
    text = "--text=returns the [MASK] of the string"
    done = run("-m", "bert_tf.commands.fill_mask", f"--model_dir={student}", text, "--top=3")
    [guesses] = done.stdout.splitlines()
    assert len(guesses.split("  ")) == 3
    own = ("--teacher", "--min_target", "--top_k", "--num_train", "--save")
    kept = [flag for flag in common if not flag.startswith(own)]
    output_dir = tmp_path / "continued"
    flags = [f"--init_checkpoint={student}", f"--output_dir={output_dir}", "--nsp=false"]
    done = run("run_pretraining.py", *kept, *flags, "--num_train_steps=2")
    assert "not in the checkpoint" not in done.stdout
    # The student has learnt: a network that has not starts at log(600) = 6.4.
    assert lines_of(output_dir / "log.jsonl")[0]["masked_lm_loss"] < 6.3


SHORT = ["--max_seq_length=32", "--precision=fp32", "--train_batch_size=4"]
OF_QUESTIONS = ["--doc_stride=8", "--max_query_length=8"]


@pytest.mark.exhaustive
def test_a_student_is_tuned_to_questions(distilled, tmp_path):
    write_squad(tmp_path / "train.json", 3, seed=1)
    output_dir = tmp_path / "model"
    flags = [f"--init_checkpoint={distilled[0]}", f"--output_dir={output_dir}"]
    files = [f"--train_file={tmp_path / 'train.json'}", f"--predict_file={tmp_path / 'train.json'}"]
    done = run(
        "run_squad.py", *SHORT, *OF_QUESTIONS, *flags, *files, "--do_train", "--do_predict",
        "--num_train_steps=2",
    )  # fmt: skip
    assert "the checkpoint has no span head, so it starts from random weights" in done.stdout
    assert (output_dir / "predictions.json").is_file()


@pytest.mark.slow
def test_questions_with_a_teacher(tmp_path):
    """The student alone is what predictions need, and all that they read."""
    config = dataclasses.replace(SPAN_CONFIG, num_hidden_layers=2)
    teacher = write_span_model(tmp_path / "teacher", config=config)
    write_squad(tmp_path / "train.json", 3, seed=1)
    write_squad(tmp_path / "dev.json", 2, seed=2)
    student, again = tmp_path / "student", tmp_path / "again"
    flags = [*SHORT, *OF_QUESTIONS, f"--predict_file={tmp_path / 'dev.json'}"]
    done = run(
        "run_squad.py", *flags, f"--train_file={tmp_path / 'train.json'}", "--do_train",
        f"--teacher_checkpoint={teacher}", "--student_layers=1", "--num_train_steps=3",
        "--display_loss_steps=1", "--do_predict", f"--output_dir={student}",
    )  # fmt: skip
    assert "the student starts from layers 1 of its teacher's 2" in done.stdout
    for line in lines_of(student / "log.jsonl"):
        loss = 0.5 * line["position_cross_entropy"] + 0.5 * 2**2 * line["soft_targets_divergence"]
        assert line["loss"] == pytest.approx(loss, rel=1e-4)
    written = json.loads((student / "bert_config.json").read_text())
    assert written["num_hidden_layers"] == 1
    os.rename(teacher, tmp_path / "gone")
    run("run_squad.py", *flags, f"--init_checkpoint={student}", "--do_predict",
        f"--output_dir={again}")  # fmt: skip
    expected = json.loads((student / "predictions.json").read_text())
    assert expected
    assert json.loads((again / "predictions.json").read_text()) == expected


@pytest.mark.exhaustive
def test_sentences_with_a_teacher(tmp_path):
    write_data(tmp_path / "SST-2")
    files = write_model(tmp_path / "files")
    teacher, student, again = (tmp_path / name for name in ("teacher", "student", "again"))
    flags = ["--task_name=SST-2", f"--data_dir={tmp_path / 'SST-2'}", "--max_seq_length=16",
             "--precision=fp32", "--train_batch_size=16", "--learning_rate=3e-3",
             "--num_train_epochs=4"]  # fmt: skip
    network = [f"--bert_config_file={files / 'bert_config.json'}",
               f"--vocab_file={files / 'vocab.txt'}"]  # fmt: skip
    script = "run_classifier.py"
    run(script, *flags, *network, "--do_train", "--do_eval", f"--output_dir={teacher}")
    distils = [f"--teacher_checkpoint={teacher}", "--alpha_cos=1", "--do_train", "--do_predict"]
    run(script, *flags, *distils, "--do_eval", f"--output_dir={student}")
    results = [json.loads((d / "eval_results.json").read_text()) for d in (teacher, student)]
    assert min(result["eval_accuracy"] for result in results) > 0.9
    assert json.loads((student / "bert_config.json").read_text())["num_hidden_layers"] == 1
    alone = [f"--init_checkpoint={student}", "--do_predict", f"--output_dir={again}"]
    run(script, *flags, *alone)
    name = "SST-2.tsv"
    assert (again / name).read_text() == (student / name).read_text()
