"""The benchmark of padding: the same sequences in all forms, and what is made of them."""

import json

import numpy as np
import pytest

from benchmarks.sequences import Sequences
from benchmarks.studies.padding_runs import prediction_order, training_order
from bert_tf.model.config import INPUTS
from bert_tf.tasks.classification.task import LABELS
from tests.helpers.programs import run
from tests.helpers.small_span_model import TEXT, write_model

LONGEST = 96


class FakeTask:
    max_seq_length = LONGEST
    batch_size = 4


@pytest.fixture(scope="module")
def sequences():
    lengths = np.random.default_rng(0).integers(3, LONGEST + 1, 42)
    mask = (np.arange(LONGEST) < lengths[:, None]).astype(np.int32)
    features = dict.fromkeys(INPUTS, mask)
    return Sequences({**features, LABELS: np.arange(42, dtype=np.float32)}, lengths)


def test_both_trainings_see_every_sequence_once(sequences):
    seen = {}
    for by_length in (False, True):
        order = training_order(FakeTask, sequences.spread(40), by_length=by_length)
        batches = list(order.batches())
        assert all((batch["input_mask"].shape[1] == LONGEST) or by_length for batch in batches)
        seen[by_length] = np.concatenate([batch[LABELS] for batch in batches])
        tokens = sum(batch["input_mask"].sum() for batch in batches)
        assert tokens == sequences.spread(40).lengths.sum(), "only padding is cut"
        rest = training_order(FakeTask, sequences, by_length=by_length)
        assert len(rest.counted) == 40, "of 42, in batches of 4"
    assert (
        sorted(seen[False]) == sorted(seen[True]) == sorted(sequences.spread(40).features[LABELS])
    )


def test_predictions_in_both_forms(sequences):
    for by_length in (False, True):
        order = prediction_order(FakeTask, sequences, by_length=by_length)
        found = []
        for batch in order.batches():
            assert len(batch[LABELS]) == 4
            assert (batch["input_mask"].shape[1] == LONGEST) or by_length
            found.extend(batch[LABELS])
        assert set(found) == set(range(42)), "the last batch is filled up with some again"
        assert sorted(order.counted) == list(range(42)), "which count for nothing"


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model, and SQuAD and MRPC of a few lines."""
    directory = tmp_path_factory.mktemp("files")
    write_model(directory / "model", span_head=False)
    qas = [
        {"id": f"q{n}", "question": text, "answers": [{"text": "1843", "answer_start": 23}]}
        for n, text in enumerate(["Who?", "Who wrote the book?", "Where did she live?"] * 2)
    ]
    assert TEXT[23:27] == "1843"
    paragraphs = [{"context": TEXT, "qas": qas}]
    squad = {"version": "1.1", "data": [{"title": "t", "paragraphs": paragraphs}]}
    (directory / "squad.json").write_text(json.dumps(squad))
    (directory / "MRPC").mkdir()
    rows = [(n % 2, n, n, "she " * (n + 1), "wrote it") for n in range(6)]
    for name in ("train", "dev"):
        lines = [
            "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String",
            *("\t".join(map(str, row)) for row in rows),
        ]
        (directory / "MRPC" / f"{name}.tsv").write_text("\n".join(lines) + "\n")
    return directory


def command(files, tmp_path):
    return [
        "-m", "benchmarks.studies.padding", f"--squad_train_file={files}/squad.json",
        f"--squad_predict_file={files}/squad.json", f"--glue_dir={files}",
        f"--vocab_file={files}/model/vocab.txt",
        f"--bert_config_file={files}/model/bert_config.json", f"--work_dir={tmp_path}/work",
        "--tasks=squad,mrpc", "--squad_seq_length=64", "--glue_seq_length=32",
        "--squad_batch_size=2", "--glue_batch_size=2", "--sequences=4", "--turns=2",
        "--threads=1", f"--json={tmp_path}/results.json",
    ]  # fmt: skip


@pytest.mark.slow
def test_whole_benchmark(files, tmp_path):
    run(*command(files, tmp_path))
    results = json.loads((tmp_path / "results.json").read_text())
    assert all(set(r) == {"name", "subject", "value", "unit", "config"} for r in results)
    by_name = {result["name"]: result for result in results}
    for task in ("squad", "mrpc"):
        for what in ("training", "prediction"):
            fill = f"{task}, {what}, filled positions"
            assert by_name[f"{fill}, by length"]["value"] > by_name[f"{fill}, padded"]["value"]
            for form in ("tokens alone", "by length"):
                ratio = by_name[f"{task}, {what}, {form} to padded"]
                assert len(ratio["config"]["turns"]) == 2
                assert ratio["config"]["sequences"] == 4


@pytest.mark.parametrize(
    ("flag", "sentence"),
    [
        ("--parts=all", "--parts: 'all' is none of fill, speed"),
        ("--glue_dir=", "--glue_dir is missing"),
    ],
)
def test_bad_input_is_one_sentence(files, tmp_path, flag, sentence):
    done = run(*command(files, tmp_path), flag, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1
