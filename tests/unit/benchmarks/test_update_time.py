"""The program that every rank runs: its cases, and what it reports."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from benchmarks.communication import cases as kinds
from benchmarks.communication.cases import Case
from benchmarks.communication.rank_jobs import Job, run_on_one_host
from benchmarks.speed.batches import masked_words
from benchmarks.speed.steps import PRETRAINING, StepJob
from bert_tf.model.config import BertConfig
from bert_tf.util.errors import UserError
from tests.helpers.programs import requires_horovod, run

NETWORK = BertConfig(
    vocab_size=30,
    hidden_size=8,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=16,
)
SIZES = {"micro_batch_size": 2, "seq_length": 8, "num_threads": 1}
JOB = Job(NETWORK, {**SIZES, "turns": 2, "micro_batches_a_turn": 1})


@pytest.mark.parametrize(
    ("text", "case"),
    [
        ("delayed", Case("delayed", 1, "none")),
        ("compute:50", Case("compute", 50, "none")),
        ("communication:1:fp16", Case("communication", 1, "fp16")),
    ],
)
def test_cases_are_read(text, case):
    assert Case.parse(text) == case
    assert Case.parse(str(case)) == case


@pytest.mark.parametrize(
    "text",
    ["", "late", "delayed:0", "delayed:x", "delayed:-1", "delayed:1:fp8", "delayed:1:fp16:2"],
)
def test_other_cases_are_refused(text):
    with pytest.raises(UserError, match=r"--cases: '.*' is not KIND"):
        Case.parse(text)


def test_a_turn_counts_micro_batches():
    assert [Case.parse(text).micro_batches for text in ("compute:4", "allreduce:4096")] == [4, 1]


def test_batches_have_no_padding_and_fit_the_network():
    job = StepJob(NETWORK, PRETRAINING, batch_size=2, seq_length=8, predictions=masked_words(8))
    batch = job.batch(6, seed=1)
    assert {name: value.shape for name, value in batch.items()} == {
        "input_ids": (6, 8),
        "input_mask": (6, 8),
        "segment_ids": (6, 8),
        "masked_lm_positions": (6, 1),
        "masked_lm_ids": (6, 1),
        "masked_lm_weights": (6, 1),
        "next_sentence_labels": (6, 1),
    }
    assert batch["input_mask"].all()
    assert batch["input_ids"].max() < 30
    assert batch["masked_lm_positions"].max() < 8
    other = job.batch(6, seed=2)
    assert not np.array_equal(batch["input_ids"], other["input_ids"]), "ranks have their own"


def parameters():
    """The weights of NETWORK, counted by hand."""
    norm = 2 * 8
    embeddings = (30 + 16 + NETWORK.type_vocab_size) * 8 + norm
    layer = 4 * (8 * 8 + 8) + norm + 2 * (8 * 8 + 8) + norm
    heads = (8 * 8 + 8) + (8 * 8 + 8 + norm + 30) + (8 * 2 + 2)
    return embeddings + layer + heads


def test_one_process_measures_every_case():
    cases = [Case(kinds.DELAYED, 2), Case(kinds.COMPUTE), Case(kinds.COMMUNICATION)]
    measured = run_on_one_host(JOB, cases)
    assert list(measured.seconds) == cases
    assert all(len(turns) == 2 and min(turns) > 0 for turns in measured.seconds.values())
    assert measured.details["gradient_bytes"] == 4 * parameters()
    assert (measured.details["ranks"], measured.details["hosts"], measured.details["threads"]) == (
        1,
        1,
        1,
    )


@pytest.mark.slow
@requires_horovod
@pytest.mark.parallel
def test_two_ranks_measure_every_kind():
    network = dataclasses.replace(NETWORK, vocab_size=1 << 19)  # gradients of 17 MB
    alone = Case(kinds.ALLREDUCE, 4 * 8 * network.vocab_size)
    cases = [Case(kind, 2) for kind in kinds.KINDS]
    cases += [Case(kinds.DELAYED, 1, "fp16"), alone]
    measured = run_on_one_host(dataclasses.replace(JOB, network=network), cases, ranks=2)
    assert list(measured.seconds) == cases
    assert measured.details["ranks"] == 2
    # The same number of bytes: what sends nothing at all is a hundred times faster.
    communication = min(measured.seconds[Case(kinds.COMMUNICATION, 2)])
    assert communication > 0.1 * min(measured.seconds[alone])


def test_bad_input_ends_in_one_sentence(tmp_path):
    network = tmp_path / "network.json"
    network.write_text(json.dumps(NETWORK.to_dict()))
    for flags, expected in (
        (["--bert_config_file=none"], "error: --bert_config_file: none does not exist"),
        ([f"--bert_config_file={network}"], "error: --seq_length=64 (the default) is more than"),
        ([f"--bert_config_file={network}", "--cases=x"], "error: --cases: 'x' is not KIND"),
    ):
        done = run("-m", "benchmarks.update_time", *flags, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith(expected)
        assert done.stderr.count("\n") == 1
