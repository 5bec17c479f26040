"""Runs that resume from another directory, end before their schedule or have a second phase."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.update.train_op import CONSUMED_SEQUENCES, SKIPPED_UPDATES
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.jobs import resolve_on
from tests.helpers.settings import with_values
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.tiny_pretraining import CONFIG, pretraining_settings, refuse

STEPS = 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of the whole schedule."""
    settings = pretraining_settings(tmp_path_factory.mktemp("whole"))
    optimization = with_values(
        settings.optimization, num_train_steps=STEPS, num_warmup_steps=2, optimizer="lamb"
    )
    settings = dataclasses.replace(settings, optimization=optimization)
    pretraining.run(settings)
    return settings


@pytest.fixture(scope="module")
def half(whole, tmp_path_factory):
    """The same run, ended in the middle of its schedule."""
    settings = changed(whole, tmp_path_factory.mktemp("half") / "model", stop_after_steps=3)
    pretraining.run(settings)
    return settings


def changed(settings, output_dir, *, stop_after_steps=None, num_train_steps=STEPS, **run):
    return dataclasses.replace(
        settings,
        run=with_values(settings.run, output_dir=output_dir, **run),
        optimization=with_values(
            settings.optimization,
            stop_after_steps=stop_after_steps,
            num_train_steps=num_train_steps,
        ),
    )


def variables(directory, step):
    return variables_of(directory / f"model.ckpt-{step}")


def assert_ends_as(directory, whole):
    assert_same_variables(variables(directory, STEPS), variables(whole.run.output_dir, STEPS))


def rates(directory):
    lines = map(json.loads, (directory / "log.jsonl").read_text().splitlines())
    return [line["learning_rate"] for line in lines if "learning_rate" in line]


@pytest.mark.slow
def test_a_run_ends_before_its_schedule(whole, half, capsys):
    assert rates(half.run.output_dir) == rates(whole.run.output_dir)[:3]
    ledger = json.loads((half.run.output_dir / "run.json").read_text())["ledger"]
    steps = ledger["steps"]
    assert (steps["train_steps"], steps["stop_after_steps"], steps["last_step"]) == (STEPS, 3, 3)
    assert ledger["consumption"]["sequences"] == 3 * ledger["batch"]["global_batch"]
    assert (
        "stop_after_steps"
        not in json.loads((whole.run.output_dir / "run.json").read_text())["ledger"]["steps"]
    )
    pretraining.run(half)  # has already reached its end
    assert "raise --stop_after_steps to train further" in capsys.readouterr().out


@pytest.mark.exhaustive
def test_the_same_directory_runs_on_to_the_end(whole, half, tmp_path):
    first = changed(half, tmp_path / "model", stop_after_steps=2)
    pretraining.run(first)
    pretraining.run(changed(first, tmp_path / "model"))
    assert_same_variables(
        variables(tmp_path / "model", STEPS), variables(whole.run.output_dir, STEPS)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "named",
    [
        "directory",
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("checkpoint", "file")),
    ],
)
def test_a_run_in_another_directory_equals_the_uninterrupted_one(
    whole, half, tmp_path, capsys, named
):
    source = half.run.output_dir
    before = content_of(source)
    ending = {"directory": "", "checkpoint": "/model.ckpt-3", "file": "/model.ckpt-3.index"}
    run = changed(half, tmp_path / "model", resume_from=f"{source}{ending[named]}")
    pretraining.run(run)
    assert f"resuming from {source / 'model.ckpt-3'} (step 3)" in capsys.readouterr().out
    assert_same_variables(
        variables(tmp_path / "model", STEPS), variables(whole.run.output_dir, STEPS)
    )
    assert rates(tmp_path / "model") == rates(whole.run.output_dir)[3:]
    assert content_of(source) == before


@pytest.mark.exhaustive
def test_a_killed_run_no_longer_needs_the_other_directory(whole, half, tmp_path, capsys):
    run = changed(
        half, tmp_path / "model", stop_after_steps=4, resume_from=str(half.run.output_dir)
    )
    pretraining.run(run)
    pretraining.run(changed(run, tmp_path / "model", resume_from=str(tmp_path / "gone")))
    assert "--resume_from is not read again" in capsys.readouterr().out
    assert_same_variables(
        variables(tmp_path / "model", STEPS), variables(whole.run.output_dir, STEPS)
    )


@pytest.mark.slow
def test_steps_count_from_0_with_the_optimizers_state(half, tmp_path, capsys):
    run = changed(
        half, tmp_path / "model", resume_from=str(half.run.output_dir), reset_step=True,
        stop_after_steps=1, keep_checkpoint_max=5,
    )  # fmt: skip
    pretraining.run(run)
    assert "steps count from 0" in capsys.readouterr().out
    source, copy = variables(half.run.output_dir, 3), variables(tmp_path / "model", 0)
    counts = {tf.GraphKeys.GLOBAL_STEP, SKIPPED_UPDATES, CONSUMED_SEQUENCES}
    assert {name: int(copy[name]) for name in counts} == dict.fromkeys(counts, 0)
    assert_same_variables(
        {name: value for name, value in copy.items() if name not in counts},
        {name: value for name, value in source.items() if name not in counts},
    )
    assert rates(tmp_path / "model") == rates(half.run.output_dir)[:1]
    # The optimizer counts its updates on: its bias correction belongs to its moments.
    assert int(variables(tmp_path / "model", 1)["optimizer/update_count"]) == 4


def test_a_dry_run_copies_nothing(half, tmp_path, capsys):
    run = changed(half, tmp_path / "model", resume_from=str(half.run.output_dir), dry_run=True)
    pretraining.run(run)
    assert list(tmp_path.iterdir()) == []
    assert "(step 3)" in capsys.readouterr().out


def test_a_checkpoint_that_cannot_be_resumed_from_leaves_nothing(half, tmp_path):
    refuse(changed(half, tmp_path / "model", resume_from=str(tmp_path / "none")), "none.index")
    other = changed(half, tmp_path / "model", resume_from=str(half.run.output_dir))
    config_file = tmp_path / "bert_config.json"
    config_file.write_text(json.dumps({**CONFIG.to_dict(), "hidden_size": 16}))
    refuse(dataclasses.replace(other, bert_config_file=config_file), "cannot resume from")


def test_a_run_cannot_end_after_its_schedule(half, tmp_path):
    run = changed(half, tmp_path / "model", stop_after_steps=7)
    with pytest.raises(UserError, match=r"--stop_after_steps=7 must be from 1 to --num_train_step"):
        pretraining.run(run)


@pytest.mark.slow
def test_a_run_and_its_second_phase_follow_their_schedule(tmp_path, capfd):
    settings = pretraining_settings(tmp_path)
    first = with_values(
        settings.optimization,
        schedule="cosine",
        num_train_steps=6,
        num_warmup_steps=2,
        end_learning_rate=1e-4,
        scale_steps_by_ranks=False,
    )
    both = with_values(first, num_train_steps=11, rewarm_at_step=6, num_rewarm_steps=2)
    for optimization in (first, both):
        pretraining.run(dataclasses.replace(settings, optimization=optimization))
    said = capfd.readouterr().out
    assert "learning rate jumps" not in said
    assert "steps.train_steps 6 -> 11" in said
    assert "learning_rate.rewarm_at_step None -> 6" in said
    found = rates(settings.run.output_dir)
    expected = resolve_on(both, 1).schedule.rate(np.arange(11))
    assert found == pytest.approx(expected.tolist(), rel=1e-5)
    # From the end of the first phase up to the peak again.
    peak = first.schedule.learning_rate
    assert found[6:9] == pytest.approx([(1e-4 + peak) / 2, peak, peak], rel=1e-5)
