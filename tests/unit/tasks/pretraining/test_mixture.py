"""Pre-training on records of two sources, of which each has a fraction of the sequences."""

import dataclasses
import json
import re

import pytest

from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.train.run import begin
from tests.helpers.jobs import begun
from tests.helpers.settings import with_values
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.thread_ranks import run_ranks
from tests.helpers.tiny_pretraining import pretraining_settings, refuse, write_records

STEPS = 6


def mixed(settings, patterns, directory="model", **changes):
    """The run with ``patterns`` as its training records, below the directory of the first one."""
    above = settings.run.output_dir.parent
    data = dataclasses.replace(settings.data, train_files=(), train_patterns=patterns)
    optimization = {"num_train_steps": STEPS, "scale_steps_by_ranks": False, **changes}
    return dataclasses.replace(
        settings,
        data=data,
        run=with_values(settings.run, output_dir=above / directory),
        optimization=with_values(settings.optimization, **optimization),
    )


@pytest.fixture(name="tiny")
def tiny_run(tmp_path):
    """A run of updates of four sequences, and a second directory of ten records, ``more``."""
    write_records(tmp_path / "more")
    return pretraining_settings(tmp_path)


@pytest.fixture(name="patterns")
def weighted_patterns(tmp_path):
    return f"{tmp_path}/train:0.75,{tmp_path}/more:0.25"


def ledger_of(settings):
    return json.loads((settings.run.output_dir / "run.json").read_text())["ledger"]


def final_values(directory):
    return variables_of(directory / f"model.ckpt-{STEPS}")


def files_at(prepared, run):
    """The directory of each record of each global batch."""
    records = prepared.training.records_at
    return [
        [path.split("/")[-2] for path, _ in records(run, prepared.plan, position)]
        for position in range(STEPS)
    ]


def test_every_global_batch_has_the_fractions_on_any_number_of_ranks(tiny, patterns):
    settings = mixed(tiny, patterns, micro_batch_size=2, global_batch_size=4)
    settings = dataclasses.replace(settings, run=with_values(settings.run, dry_run=True))
    with begin(settings.run, settings.runtime) as run:
        whole = files_at(pretraining.prepare_pretraining(settings, run), run)
    assert {batch.count("train") for batch in whole} == {3}

    def of_rank(rank):
        run = begun(ranks=rank, settings=settings.run)
        return files_at(pretraining.prepare_pretraining(settings, run), run)

    parts = run_ranks(2, of_rank)
    assert [[*a, *b] for a, b in zip(*parts)] == whole


def test_the_ledger_names_every_source(tiny, patterns, tmp_path, capsys):
    pretraining.run(mixed(tiny, patterns))
    ledger = ledger_of(mixed(tiny, patterns))
    assert ledger["source_1"] == {
        "files": f"{tmp_path}/train",
        "fraction": 0.75,
        "records": 10,
        "sequences": 18,
        "epochs": 1.8,
    }
    assert ledger["source_2"]["sequences"] == 6
    assert ledger["data"]["mixture"] == "0.75 from 10 records, 0.25 from 10 records"
    assert ledger["data"]["train_records"] == 20
    assert "fraction=0.25  records=10  sequences=6  epochs=0.6" in capsys.readouterr().out


@pytest.mark.slow
def test_a_stopped_run_resumes_to_the_bit(tiny, patterns):
    pretraining.run(mixed(tiny, patterns, "whole"))
    for stop in (1, 4, None):
        pretraining.run(mixed(tiny, patterns, "stopped", stop_after_steps=stop))
    directory = tiny.run.output_dir.parent
    assert_same_variables(*(final_values(directory / name) for name in ("stopped", "whole")))


@pytest.mark.exhaustive
def test_a_resumed_run_says_that_weights_changed(tiny, patterns, capsys):
    pretraining.run(mixed(tiny, patterns, stop_after_steps=1))
    pretraining.run(mixed(tiny, patterns.replace("0.75", "0.5").replace("0.25", "0.5")))
    said = r"data\.mixture=0\.75 from \d+ .*0\.25 from \d+ .* -> 0\.5 from \d+ "
    assert re.search(said, capsys.readouterr().out)


def test_an_epoch_is_a_pass_over_the_first_source(tiny, patterns):
    settings = mixed(tiny, patterns, num_train_steps=None, num_train_epochs=2.0)
    pretraining.run(settings)
    ledger = ledger_of(settings)
    # 2 x 14 sequences, of which three quarters are two passes over ten records, in batches of four.
    assert ledger["steps"]["last_step"] == 7
    assert ledger["source_1"]["epochs"] == pytest.approx(2.1)


@pytest.mark.exhaustive
def test_one_source_of_weight_one_changes_nothing(tiny, tmp_path):
    pretraining.run(mixed(tiny, f"{tmp_path}/train", "plain"))
    pretraining.run(mixed(tiny, f"{tmp_path}/train:1", "weighted"))
    assert_same_variables(*(final_values(tmp_path / name) for name in ("weighted", "plain")))


def test_batches_of_similar_length_are_mixed(tiny, patterns):
    settings = mixed(tiny, patterns)
    data = dataclasses.replace(settings.data, length_buckets=True)
    settings = dataclasses.replace(settings, data=data)
    pretraining.run(settings)
    assert ledger_of(settings)["source_2"]["sequences"] == 6


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"vocabulary": "cd"}, ["/train and ", "/other", "different vocabularies"]),
        ({"sentence_order": True}, ["/train and ", "/other", "differ in their sentence pairs"]),
    ],
)
def test_sources_that_differ_in_kind_are_refused_by_name(tiny, tmp_path, other, words):
    write_records(tmp_path / "other", **other)
    refuse(mixed(tiny, f"{tmp_path}/train:0.5,{tmp_path}/other:0.5"), *words)


def test_a_missing_or_empty_source_is_named(tiny, tmp_path):
    refuse(mixed(tiny, f"{tmp_path}/train:0.5,{tmp_path}/none:0.5"), "no file matches", "/none'")
    (tmp_path / "empty").mkdir()
    refuse(mixed(tiny, f"{tmp_path}/train:0.5,{tmp_path}/empty:0.5"), "no file matches", "/empty'")


def test_a_directory_with_a_colon_and_a_number_is_a_path(tiny, tmp_path):
    (tmp_path / "train").rename(tmp_path / "train:0.5")
    settings = mixed(tiny, f"{tmp_path}/train:0.5")
    pretraining.run(settings)
    assert "mixture" not in ledger_of(settings)["data"]
    assert "source_1" not in ledger_of(settings)
