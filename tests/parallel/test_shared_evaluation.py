"""Evaluation and prediction by several ranks: the bytes that a single process writes.

A single process has all cores and each of several ranks its share of them, so this also says that
the number of threads does not matter. The records do not fill the batches, nor the batches the
ranks.
"""

import json

import pytest

from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.tfrecord import TFRecordWriter
from tests.helpers import squad_files
from tests.helpers.programs import mpirun, requires_horovod, run
from tests.parallel import updates_program

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.timeout(1800)]

RANKS = (2, pytest.param(3, marks=pytest.mark.exhaustive))
WRITTEN = {
    "run_pretraining.py": ["eval_results.json", "eval_results.txt"],
    "run_squad.py": ["predictions.json", "nbest_predictions.json", "null_odds.json"],
}


def pretraining_flags(directory):
    """71 sequences in twelve batches of six."""
    config = {**squad_files.CONFIG, "vocab_size": updates_program.V, "initializer_range": 0.5}
    (directory / "bert_config.json").write_text(json.dumps(config))
    features = updates_program.global_batches("pretraining")
    records = {name: v.reshape(-1, v.shape[-1])[:71] for name, v in features.items()}
    with TFRecordWriter(directory / "records.tfrecord") as writer:
        for record in PRETRAINING_MASKED.encode_batch(records):
            writer.write(record)
    return [
        f"--bert_config_file={directory / 'bert_config.json'}",
        f"--input_file={directory / 'records.tfrecord'}",
        f"--eval_file={directory / 'records.tfrecord'}",
        f"--max_seq_length={updates_program.S}",
        f"--max_predictions_per_seq={updates_program.P}",
        "--eval_batch_size=6",
        "--num_warmup_steps=0",
        "--do_eval",
    ]


def squad_flags(directory):
    """Questions with and without an answer, in windows of several lengths."""
    squad_files.write_model(directory)
    squad = squad_files.write_squad(directory / "dev.json", 9, seed=4, unanswerable=True)
    return [
        f"--bert_config_file={directory / 'bert_config.json'}",
        f"--vocab_file={directory / 'vocab.txt'}",
        f"--train_file={squad}",
        f"--predict_file={squad}",
        f"--features_dir={directory / 'features'}",
        *squad_files.LENGTHS,
        "--version_2_with_negative",
        "--predict_batch_size=4",
        "--do_predict",
    ]


JOBS = {"run_pretraining.py": pretraining_flags, "run_squad.py": squad_flags}


@pytest.fixture(
    scope="module",
    params=["run_pretraining.py", pytest.param("run_squad.py", marks=pytest.mark.exhaustive)],
)
def job(request, tmp_path_factory):
    """(script, flags, model, what a single process wrote) after a training of one step."""
    directory = tmp_path_factory.mktemp("shared")
    model = directory / "model"
    flags = [*JOBS[request.param](directory), f"--output_dir={model}", "--precision=fp32"]
    training = ["--do_train", "--num_train_steps=1", "--train_batch_size=2"]
    run(request.param, *flags, *training, timeout=1800)
    return request.param, flags, model, take(model, request.param)


def take(model, script):
    """The files that an evaluation writes, and removes them."""
    found = {name: (model / name).read_bytes() for name in WRITTEN[script]}
    for name in found:
        (model / name).unlink()
    return found


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.slow
def test_several_ranks_write_the_bytes_of_one(job, ranks):
    script, flags, model, expected = job
    mpirun(ranks, script, "--horovod", *flags, timeout=1800)
    assert take(model, script) == expected
