"""Stored masks against drawn ones: records, trainings and table; trainings by a stand-in."""

import dataclasses
import random

import pytest
from absl import flags

from benchmarks.script import define_flags
from benchmarks.studies import stored_masks
from benchmarks.studies.stored_masks import Kind, Setting
from bert_tf.records.info import inspect_records
from bert_tf.tasks.pretraining.flags import define_pretraining_flags, pretraining_settings
from bert_tf.util.errors import UserError
from bert_tf.util.files import write_json


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    rng = random.Random(0)
    words = ["".join(rng.choices("aeiourst", k=rng.randint(2, 7))) for _ in range(200)]
    documents = []
    for _ in range(60):
        sentences = [" ".join(rng.choices(words, k=9)) + "." for _ in range(8)]
        documents.append("\n".join(sentences))
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return path


@pytest.fixture
def values(text, tmp_path):
    found = flags.FlagValues()
    define_flags(stored_masks.FLAGS, found)

    def parse(**given):
        small = {
            "records": "dynamic-1,static-2",
            "epochs": "3,1",
            "seeds": "4,7",
            "vocab_size": 200,
        }
        required = {"input_file": text, "output_dir": tmp_path / "masks", "batch_size": 8}
        words = [f"--{n}={v}" for n, v in {**required, **small, **given}.items()]
        found(["stored_masks", *words])
        return found

    return parse


def stand_in(trainings):
    """A lower loss with more updates, other seeds, and drawn masks."""
    for training in trainings:
        training.directory.mkdir()
        write_json(training.directory / "run.json", {"git_commit": "abc"})
        drawn = "dynamic" in training.flags["input_file"]
        loss = 6 - training.flags["num_train_steps"] / 1e3 + training.seed / 1e2 - drawn
        write_json(training.directory / "eval_results.json", {"masked_lm_loss": loss})


def test_every_kind_is_trained_for_as_many_updates(values, monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(stored_masks, "run_trainings", lambda ts: (ran.extend(ts), stand_in(ts)))
    found = {r["name"]: r for r in stored_masks.measure(values())}
    data = tmp_path / "masks" / "data"
    one_pass = inspect_records([*(data / "records" / "train").glob("*.tfrecord")]).num_records
    for kind in ("dynamic-1", "static-2"):
        of_kind = [t.flags for t in ran if t.flags["input_file"] == str(data / kind)]
        updates = [one_pass // 8, 3 * one_pass // 8]
        assert [f["num_train_steps"] for f in of_kind] == updates * 2  # a seed after the other
        assert {f["eval_file"] for f in of_kind} == {str(data / "records" / "heldout")}
        info = inspect_records([*(data / kind).glob("*.tfrecord")])
        assert info.masked == (kind == "static-2")
    assert [t.seed for t in ran] == [4] * 4 + [7] * 4
    held_out = inspect_records([*(data / "records" / "heldout").glob("*.tfrecord")])
    assert held_out.masked, "all are judged by the same masks"
    first = found["masks, static-2, 1 epochs"]
    assert first["value"] == pytest.approx(6 - one_pass // 8 / 1e3 + 0.055)
    assert first["config"]["losses"] == pytest.approx(
        [first["value"] - 0.015, first["value"] + 0.015]
    )
    size = sum(path.stat().st_size for path in (data / "static-2").glob("*.tfrecord")) / 1e6
    assert first["config"]["records_megabytes"] == size
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["static-2", f"{size:.1f}", f"{first['value']:.3f}", "0.015"] in [li[:4] for li in lines]


def test_run_pretraining_takes_the_flags(values, tmp_path, record_maker):
    path = record_maker.write(tmp_path / "records" / "a.tfrecord", 4)
    training = stored_masks._training(Kind("static", 2), 3, 50, 4, tmp_path, values())
    given = {**training.flags, "input_file": str(path), "eval_file": str(path)}
    parsed = flags.FlagValues()
    define_pretraining_flags(parsed)
    parsed(dataclasses.replace(training, flags=given).command())
    optimization = pretraining_settings(parsed).optimization
    steps = (optimization.steps.num_train_steps, optimization.steps.num_warmup_steps)
    assert (*steps, optimization.batch.micro_batch_size) == (50, 5, 8)
    assert {name: parsed[name].value for name in given} == given


def test_the_table_shows_the_spread_of_the_seeds():
    kind = Kind("static", 10)
    losses = {Setting(kind, 2): [5.0, 5.2], Setting(kind, 8): [4.0, 4.0]}
    lines = stored_masks.table(losses, {kind: 12.34}, {2: 100, 8: 400})
    assert [line.split() for line in lines[-3:]] == [
        ["records", "MB", "2", "epochs", "8", "epochs"],
        ["100", "updates", "400", "updates"],
        ["static-10", "12.3", "5.100", "0.100", "4.000", "0.000"],
    ]


@pytest.mark.parametrize("kind", ["static", "static-0", "stored-5", "static-x", ""])
def test_unknown_records_are_refused(values, kind, tmp_path):
    with pytest.raises(UserError, match=r"--records: .* give a kind of masking and a number"):
        list(stored_masks.measure(values(records=kind)))
    assert not (tmp_path / "masks").exists()
