"""What is refused before anything is written: the real job in this process, on a tiny network."""

import dataclasses
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, write_checkpoint
from bert_tf.model.config import INPUTS
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.task import create_network
from bert_tf.model_directory.run_record import RunRecord
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.train.plan import resolve
from bert_tf.train.start_point import OPTIONAL_STATE, StartPoint
from bert_tf.train.trainer import build_update, create_run_state
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.jobs import job_of
from tests.helpers.settings import optimization_settings, run_settings, with_values
from tests.helpers.small_span_model import CONFIG as SPAN_CONFIG
from tests.helpers.tiny_pretraining import CONFIG, pretraining_settings, refuse, write_records

VOCABULARY = "ab" * 32
LABELS = ("start_positions", "end_positions")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The settings of a run of two steps that is done."""
    settings = pretraining_settings(tmp_path_factory.mktemp("run"), vocabulary=VOCABULARY)
    settings = changed(settings, num_train_steps=2)
    pretraining.run(settings)
    return settings


@pytest.fixture(name="settings")
def settings_of_a_copy(finished, tmp_path):
    """The run to resume, in a separate output directory, for one more step."""
    directory = tmp_path / "model"
    shutil.copytree(finished.run.output_dir, directory)
    return changed(finished, output_dir=directory, num_train_steps=3)


def changed(settings, *, config=None, **changes):
    """The settings with some values replaced; ``config`` changes the configuration file."""
    settings = with_values(settings, **changes)
    if config is None:
        return settings
    path = settings.run.output_dir.parent / "other_config.json"
    path.write_text(json.dumps({**CONFIG.to_dict(), **config}))
    return dataclasses.replace(settings, bert_config_file=path)


def alone(settings):
    """The same run, which only evaluates."""
    return changed(settings, do_train=False, do_eval=True, eval_files=settings.data.train_files)


def from_weights_of(settings, directory, **changes):
    """The run in a new directory, starting from its weights."""
    return changed(
        settings, output_dir=directory, init_checkpoint=str(settings.run.output_dir), **changes
    )


OTHER_FUNCTIONS = {
    "heads": ({"num_attention_heads": 4}, "num_attention_heads 2 -> 4"),
    "activation": ({"hidden_act": "relu"}, "hidden_act gelu_tanh -> relu"),
    "both": (
        {"num_attention_heads": 4, "hidden_act": "gelu_erf"},
        "num_attention_heads 2 -> 4, hidden_act gelu_tanh -> gelu_erf",
    ),
    "shapes": ({"intermediate_size": 16}, "intermediate_size 8 -> 16"),
}


@pytest.mark.parametrize(("config", "named"), OTHER_FUNCTIONS.values(), ids=OTHER_FUNCTIONS)
@pytest.mark.parametrize("evaluates", [False, True], ids=["resumed", "evaluated"])
def test_another_network_is_refused(settings, config, named, evaluates):
    settings = changed(settings, config=config)
    refuse(alone(settings) if evaluates else settings, "cannot resume from", f": {named};")


def test_the_record_knows_the_network_where_its_file_was_replaced(settings):
    other = {**CONFIG.to_dict(), "num_attention_heads": 4}
    (settings.run.output_dir / "bert_config.json").write_text(json.dumps(other))
    refuse(
        changed(settings, config={"num_attention_heads": 4}),
        "bert_config.json differs from",
        "num_attention_heads 2 -> 4",
    )


def test_weights_of_another_network_are_refused(settings, tmp_path):
    settings = from_weights_of(settings, tmp_path / "new" / "model", config=None)
    (tmp_path / "new").mkdir()
    refuse(changed(settings, config={"num_attention_heads": 4}), "num_attention_heads 2 -> 4")
    refuse(changed(settings, config={"hidden_act": "relu"}), "hidden_act gelu_tanh -> relu")


@pytest.mark.parametrize("action", ["resumed", "evaluated", "started from"])
def test_weights_that_are_not_finite_are_refused(settings, tmp_path, action):
    path = settings.run.output_dir / "model.ckpt-2"
    file, name = TensorflowCheckpoint(str(path)), "bert/pooler/dense/bias"
    arrays = {each: file.read(each) for each in file.entries}
    bias = np.array([np.nan, *arrays[name][1:]])
    write_checkpoint(str(path), {**arrays, name: bias.astype(np.float32)})
    if action != "resumed":
        is_evaluated = action == "evaluated"
        settings = alone(settings) if is_evaluated else from_weights_of(settings, tmp_path / "new")
    refuse(settings, f"weights {path}: 1 of 8 values of {name} are NaN or infinite")


@pytest.mark.parametrize("action", ["resumed", "evaluated", "started from"])
@pytest.mark.parametrize("lists", [True, False])
def test_a_checkpoint_that_was_renamed_is_refused(settings, tmp_path, action, lists):
    directory = settings.run.output_dir
    for path in directory.glob("model.ckpt-2.*"):
        path.rename(directory / path.name.replace("-2.", "-200."))
    names = directory / "checkpoint"
    if lists:
        names.write_text(names.read_text().replace("ckpt-2", "ckpt-200"))
    else:
        names.unlink()
    if action == "evaluated":
        settings = alone(settings)
    elif action == "started from":
        init = str(directory / "model.ckpt-200")
        settings = changed(settings, output_dir=tmp_path / "new", init_checkpoint=init)
    refuse(settings, "model.ckpt-200 is named after step 200, but its global_step is 2: it was")


def test_an_evaluation_leaves_the_description_of_the_model_as_it_is(settings):
    before = content_of(settings.run.output_dir)
    pretraining.run(alone(changed(settings, config={"hidden_dropout_prob": 0.0})))
    for name in ("bert_config.json", "run.json"):
        path = settings.run.output_dir / name
        assert path.read_bytes() == before[path]


@pytest.fixture(name="other_records")
def records_of_another_vocabulary(tmp_path):
    return write_records(tmp_path / "other", vocabulary="cd" * 32)


@pytest.mark.parametrize("evaluates", [False, True], ids=["resumed", "evaluated"])
def test_another_vocabulary_is_refused(settings, other_records, evaluates):
    settings = changed(settings, train_files=(other_records,))
    refuse(
        alone(settings) if evaluates else settings,
        "cannot resume from",
        f"a different vocabulary ({settings.run.output_dir / 'model.json'}) than "
        f"{other_records.with_name('manifest.json')}",
    )


def test_weights_of_another_vocabulary_are_refused(settings, other_records, tmp_path):
    settings = changed(settings, train_files=(other_records,))
    refuse(
        from_weights_of(settings, tmp_path / "new"),
        "cannot start from",
        f"a different vocabulary ({settings.run.output_dir / 'model.json'}) than "
        f"{other_records.with_name('manifest.json')}",
    )


def test_what_cannot_be_compared_is_reported(settings, tmp_path, capsys):
    """Also: records of other programs, without a side file, get none from a dry run."""
    records = write_records(tmp_path / "foreign", vocabulary=VOCABULARY)
    offsets = records.with_name(f"{records.name}.offsets")
    offsets.unlink()
    for name in ("run.json", "model.json"):
        (settings.run.output_dir / name).unlink()
    pretraining.run(changed(settings, train_files=(records,), dry_run=True))
    lines = capsys.readouterr().out.splitlines()
    line = "the vocabulary was not compared: no file of the model states which one was used"
    assert lines.count(line) == 1
    line = "there is no run.json of the last start, so changes since then are unknown"
    assert lines.count(line) == 1
    assert not offsets.exists()


UNUSABLE = {
    "optimizer": ({"optimizer": "lamb"}, "it lacks optimizer/update_count"),
    "warm-up": ({"num_warmup_steps": 9}, "--num_warmup_steps=9"),
}


@pytest.mark.parametrize(("changes", "words"), UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize("dry_run", [False, True], ids=["real", "dry"])
def test_a_run_that_cannot_be_resumed_writes_nothing(settings, changes, words, dry_run):
    refuse(changed(settings, dry_run=dry_run, **changes), words)


def test_a_model_that_is_to_start_another_in_its_own_directory(settings):
    other = changed(settings, init_checkpoint=str(settings.run.output_dir), optimizer="lamb")
    refuse(other, "is the directory of --init_checkpoint=", "give another --output_dir", "it lacks")
    # A run that resumes does not look at it.
    pretraining.run(changed(settings, init_checkpoint=str(settings.run.output_dir), dry_run=True))


def test_a_dry_run_checks_the_weights_to_start_from(settings, tmp_path):
    new = changed(from_weights_of(settings, tmp_path / "new"), dry_run=True)
    refuse(changed(new, init_checkpoint=str(tmp_path / "mistyped")), str(tmp_path / "mistyped"))
    refuse(changed(new, config={"hidden_size": 16}), "cannot start from")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(("label", "next_sentence"), [(1, True), (1, False), (None, True)])
def test_pairs_of_one_label_are_reported(settings, tmp_path, capsys, label, next_sentence):
    records = write_records(tmp_path / "pairs", vocabulary=VOCABULARY, label=label)
    run = changed(settings, train_files=(records,), output_dir=tmp_path / "new", dry_run=True)
    pretraining.run(dataclasses.replace(run, next_sentence=next_sentence))
    is_reported = "warning: all sentence pairs have label 1" in capsys.readouterr().out
    assert is_reported == (label == 1 and next_sentence)


def test_a_dry_run_that_only_evaluates(settings, capsys):
    before = content_of(settings.run.output_dir)
    assert pretraining.run(changed(alone(settings), dry_run=True)) is None
    assert content_of(settings.run.output_dir) == before
    assert "this was a dry run: nothing was trained or written" in capsys.readouterr().out


def test_a_dry_run_knows_a_directory_that_cannot_be_written(settings, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"--output_dir=.*file is a file; choose another directory"):
        changed(settings, output_dir=tmp_path / "file" / "model", dry_run=True)


def test_what_is_checked_is_what_a_training_saves():
    """The variables that are made without the passes of a network are all that it has."""
    settings = optimization_settings(optimizer="lamb")
    config = dataclasses.replace(SPAN_CONFIG, num_hidden_layers=1)

    def names(build):
        with tf.Graph().as_default():
            build(create_network(SpanTask(config), ForwardOptions(), seed=1))
            return {variable.op.name: variable.shape for variable in tf.global_variables()}

    def a_training(network):
        in_half = ForwardOptions(policy_for("fp16"))
        job = job_of(network.task, options=in_half, scales_loss=True, optimization=settings)
        inputs = {name: tf.ones([2, 4], tf.int32) for name in INPUTS}
        labels = {name: tf.ones([2, 1], tf.int32) for name in LABELS}
        build_update(job, network, {**inputs, **labels})

    def a_list(network):
        create_run_state(network, job_of(network.task, optimization=settings).plan)

    saved, checked = names(a_training), names(a_list)
    assert saved.keys() - checked.keys() == OPTIONAL_STATE
    assert checked.items() <= saved.items()
    assert len(checked) > 3 * len(names(lambda objective: None))


def edit_record(settings, section, **entries):
    path = settings.run.output_dir / "run.json"
    record = json.loads(path.read_text())
    record["ledger"][section].update(entries)
    path.write_text(json.dumps(record))


def resumed(recorded, *, horovod, consumed=8):
    """A run of one rank after two updates, by a record of (scaled, ranks) or without one."""
    record = None
    if recorded is not None:
        scaled, world_size = recorded
        recorded_ledger = {
            "steps": {"scaled_by_ranks": scaled},
            "ranks": {"world_size": world_size},
        }
        record = RunRecord("run.json", {"ledger": recorded_ledger})
    return SimpleNamespace(
        start=StartPoint("model.ckpt-2", 2, 2, consumed, record),
        settings=run_settings(Path("out"), do_train=True),
        runtime=SimpleNamespace(library="horovod" if horovod else None),
        ranks=SingleProcess(1),
    )


@pytest.mark.parametrize(
    ("requested", "recorded", "horovod", "expected"),
    [
        (None, None, False, False),  # as many sequences as two updates of one rank have
        (None, None, True, True),
        (False, None, True, False),
        (None, (True, 2), False, True),  # a job of ranks is continued by one process
        (None, (True, 1), False, True),  # and again
        (None, (False, 1), True, True),
        (None, (False, 2), True, False),
        (True, (False, 1), False, True),
    ],
)
def test_steps_mean_what_they_meant_when_the_run_began(requested, recorded, horovod, expected):
    settings = optimization_settings(scale_steps_by_ranks=requested)
    plan = resolve(resumed(recorded, horovod=horovod), settings, 1)
    assert plan.batch.scaled_by_ranks is expected


@pytest.mark.parametrize(("requested", "recorded"), [(False, (True, 2)), (True, (False, 2))])
def test_steps_with_a_different_meaning_are_refused(requested, recorded):
    settings = optimization_settings(scale_steps_by_ranks=requested)
    with pytest.raises(UserError, match=f"--scale_steps_by_ranks={str(requested).lower()}, but"):
        resolve(resumed(recorded, horovod=True), settings, 1)


def test_steps_of_unknown_meaning():
    run = resumed(None, horovod=False, consumed=16)
    with pytest.raises(UserError, match="different global batch, and there is no run"):
        resolve(run, optimization_settings(), 1)
    for requested in (True, False):
        settings = optimization_settings(scale_steps_by_ranks=requested)
        assert resolve(run, settings, 1).batch.scaled_by_ranks is requested


@pytest.mark.slow
def test_one_process_resumes_the_plan_of_two_ranks(settings):
    """Of 6 x 4 sequences two updates of two ranks took 8 each; without any flag two are left."""
    edit_record(settings, "steps", scaled_by_ranks=True, train_steps=3)
    edit_record(settings, "ranks", world_size=2)
    edit_record(settings, "batch", global_batch=8)
    consume(settings, 16)
    pretraining.run(changed(settings, num_train_steps=6, config={"hidden_dropout_prob": 0.0}))
    kept = json.loads((settings.run.output_dir / "bert_config.json").read_text())
    assert kept["hidden_dropout_prob"] == 0.0
    steps = json.loads((settings.run.output_dir / "run.json").read_text())["ledger"]["steps"]
    assert (steps["start_step"], steps["last_step"], steps["schedule_offset"]) == (2, 4, 2)
    lines = (settings.run.output_dir / "log.jsonl").read_text().splitlines()
    rates = [json.loads(line)["learning_rate"] for line in lines[2:]]
    assert rates == pytest.approx([1e-3 * left / 6 for left in (2, 1)])


def consume(settings, sequences):
    """Sets the number of consumed sequences in the newest checkpoint."""
    checkpoint = tf.train.latest_checkpoint(str(settings.run.output_dir))
    reader = tf.train.load_checkpoint(checkpoint)
    with tf.Graph().as_default(), tf.Session() as session:
        for name in reader.get_variable_to_shape_map():
            value = reader.get_tensor(name)
            if name == "training/consumed_sequences":
                value = value * 0 + sequences
            tf.get_variable(name, initializer=value)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, checkpoint, write_meta_graph=False, write_state=False)


def test_changes_and_a_jump_of_the_learning_rate_are_reported(settings, capsys):
    pretraining.run(
        changed(
            settings,
            seed=7,
            num_train_steps=8,
            learning_rate=4e-3,
            micro_batch_size=2,
            weight_decay=0.1,
            clip_norm=None,
            config={"hidden_dropout_prob": 0.0},
            dry_run=True,
        )
    )
    lines = capsys.readouterr().out.splitlines()
    [line] = [line for line in lines if line.startswith("changed since the run's last start: ")]
    assert line.partition(": ")[2].split(", ") == [
        "batch.micro_batch 4 -> 2",
        "batch.global_batch 4 -> 2",
        "steps.train_steps_on_one_rank 2 -> 8",
        "steps.train_steps 2 -> 8",
        "learning_rate.requested 0.001 -> 0.004",
        "learning_rate.peak 0.001 -> 0.004",
        "optimizer.weight_decay 0.01 -> 0.1",
        "optimizer.clip_norm 1 -> None",
        "data.seed 1 -> 7",
        "model.hidden_dropout_prob 0.1 -> 0",
    ]
    # The old schedule was over; of the new one, of eight steps, six are left.
    assert "the learning rate jumps at step 2: 0 -> 0.003" in lines


def test_without_changes_nothing_is_reported(settings, capsys):
    pretraining.run(changed(settings, num_train_steps=2))
    out = capsys.readouterr().out
    assert "changed since" not in out
    assert "jumps" not in out


def test_fewer_steps_than_are_done(settings, capsys):
    before = content_of(settings.run.output_dir)
    pretraining.run(changed(settings, num_train_steps=1))
    line = "model.ckpt-2 is at step 2, beyond the last step (1); raise --num_train_steps"
    assert line in capsys.readouterr().out
    assert content_of(settings.run.output_dir) == before


DAMAGED = {
    "object": "{}",
    "list": "[]",
    "no JSON": '{"ledger": {"batch',
    "number": '{"ledger": 3}',
    "section": '{"ledger": {"batch": 3}}',
    "no model": '{"ledger": {"steps": {"scaled_by_ranks": true}}}',
    "other model": '{"ledger": {"steps": {"scaled_by_ranks": true}}, "model": {"layers": 3}}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_record_says_that_it_may_be_deleted(settings, text):
    path = settings.run.output_dir / "run.json"
    path.write_text(text)
    refuse(settings, f"run record: {path}", "or delete it; deleting it only loses the comparison")


def test_entries_of_wrong_types(settings):
    edit_record(settings, "steps", scaled_by_ranks="yes")
    refuse(settings, "it has no usable steps.scaled_by_ranks; restore the file or delete it")
    edit_record(settings, "steps", scaled_by_ranks=False, train_steps=None)
    refuse(settings, "it has no usable steps.train_steps; restore the file or delete it")
