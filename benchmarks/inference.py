"""How long a span model takes for a batch, here, in google-research/bert and in transformers.

    python -m benchmarks.inference --google_bert_dir=bert --batch_sizes=1,8 --json=inference.json

Percentiles of the batches of all turns, one batch at a time on all cores, and sequences a second.
The weights are random, as the time does not depend on them; the sequences are full. Who takes part
and how is as in benchmarks.pretraining_step.

    python -m benchmarks.inference --squad_file=dev-v1.1.json --vocab_file=vocab.txt

takes sequences as long as ``--sequences`` windows of a SQuAD file, spread over it and sorted by
length, and percentiles over all their batches. Ours are padded to the longest of a batch, and those
of the peers, and of ``ours-padded``, to ``--seq_length``, as their programs do it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.rank_jobs import Result, read_network
from benchmarks.speed.comparison import (
    check_length,
    compare,
    define_comparison_flags,
    google_bert_dir_from_flags,
    subjects_from_flags,
)
from benchmarks.speed.predictions import PredictionJob
from benchmarks.speed.process import Found
from benchmarks.speed.subjects import BERT_BASE, PADDED, PREDICTING, PREDICTING_REAL, Subject
from bert_tf import environment
from bert_tf.command_line import run_command
from bert_tf.errors import UserError
from bert_tf.files import require_file, write_json
from bert_tf.squad.examples import SquadFile, read_squad
from bert_tf.squad.windows import WindowSettings, question_windows
from bert_tf.text.loading import load_tokenizer
from bert_tf.text.tokenizer import Tokenizer

PERCENTILES = (50, 90, 99)
_GOOGLE_FILES = ("modeling.py", "optimization.py", "run_squad.py", "tokenization.py")


def prediction_results(
    subjects: Sequence[Subject],
    found: Mapping[str, Sequence[Found]],
    batch_sizes: Sequence[int],
    config: Mapping[str, Any],
) -> list[Result]:
    """Percentiles, sequences a second and how many times faster ours are, for each batch size."""
    results = []
    present = [subject for subject in subjects if subject.name in found]
    for number, size in enumerate(batch_sizes):
        rates = {}
        for subject in present:
            turns = found[subject.name]
            seconds = np.concatenate([turn["batch_seconds"][number] for turn in turns])
            described = {
                **config,
                "batch_size": size,
                "batches": len(seconds),
                "precision": turns[0].get("precision", subject.settings.get("precision", "fp32")),
                "environment": dict(subject.environment),
                "others_share_of_machine": [turn["foreign_share"] for turn in turns],
            }
            values = {
                f"latency p{p}": (float(np.percentile(seconds, p)) * 1e3, "ms") for p in PERCENTILES
            }
            # The batches of real sequences are of many lengths, and all of them count.
            middle = np.mean if config.get("real_sequences") else np.median
            rates[subject.name] = size / float(middle(seconds))
            values["prediction"] = (rates[subject.name], "sequences/s")
            results += [_result(n, subject.name, *v, described) for n, v in values.items()]
        results += _ratios(present, rates, {**config, "batch_size": size})
    return results


def _ratios(
    subjects: Sequence[Subject], rates: Mapping[str, float], config: Mapping[str, Any]
) -> list[Result]:
    return [
        _result(
            f"prediction, {ours.name} to {peer.name}",
            ours.name,
            rates[ours.name] / rates[peer.name],
            "ratio",
            config,
        )
        for ours in subjects
        for peer in subjects
        if ours.is_ours and ours != PADDED and (peer == PADDED or not peer.is_ours)
    ]


def _result(name: str, subject: str, value: float, unit: str, config: Mapping[str, Any]) -> Result:
    return {"name": name, "subject": subject, "value": value, "unit": unit, "config": config}


def prediction_table(results: Iterable[Result]) -> list[str]:
    """A line for each subject and batch size."""
    heads = "".join(f"{f'p{p} ms':>9}" for p in PERCENTILES)
    lines = [f"{'':32}{'batch':>6}{heads}{'sequences/s':>13}"]
    cells: list[str] = []
    for result in results:
        value = result["value"]
        if result["unit"] == "ms":
            cells.append(f"{value:9.1f}")
        elif result["unit"] == "sequences/s":
            size = result["config"]["batch_size"]
            lines.append(f"{result['subject']:32}{size:6}{''.join(cells)}{value:13.2f}")
            cells = []
    return lines


def window_lengths(
    squad: SquadFile, tokenizer: Tokenizer, *, seq_length: int, most: int
) -> tuple[int, ...]:
    """Tokens of the windows of a file, as run_squad.py cuts them; ``most`` of them, spread."""
    usual = WindowSettings()
    windows = WindowSettings(
        seq_length,
        doc_stride=min(usual.doc_stride, max(1, seq_length // 3)),
        max_query_length=min(usual.max_query_length, max(1, seq_length // 4)),
    )
    tokens: dict[str, int] = {}
    lengths: list[int] = []
    for example in squad.examples:
        if example.context not in tokens:
            tokens[example.context] = len(tokenizer.encode(example.context))
        question = tokenizer.encode(example.question)
        cut = question_windows(question, tokens[example.context], windows)
        lengths += [window.length for window in cut]
    kept = min(most, len(lengths))
    return tuple(lengths[place * len(lengths) // kept] for place in range(kept))


def _real_lengths(values: flags.FlagValues) -> tuple[int, ...]:
    if values.squad_file is None:
        return ()
    if values.vocab_file is None:
        raise UserError("--squad_file needs --vocab_file, which its texts are cut with.")
    squad = read_squad(
        require_file(values.squad_file, flag="squad_file"),
        flag="squad_file",
        version_2_with_negative=True,
        needs_answers=False,
    )
    tokenizer = load_tokenizer(vocab_file=values.vocab_file, do_lower_case=True)
    return window_lengths(squad, tokenizer, seq_length=values.seq_length, most=values.sequences)


def measure() -> None:
    """Runs the comparison of the flags."""
    values = flags.FLAGS
    network = read_network(values.bert_config_file, BERT_BASE)
    check_length(values.seq_length, network.max_position_embeddings)
    job = PredictionJob(
        network=network,
        batch_sizes=_numbers(values.batch_sizes, flag="batch_sizes"),
        seq_length=values.seq_length,
        threads=values.threads or environment.available_cores(),
        warmup=values.warmup,
        repetitions=values.repetitions,
        google_bert_dir=google_bert_dir_from_flags(_GOOGLE_FILES),
        lengths=_real_lengths(values),
    )
    subjects = subjects_from_flags(PREDICTING_REAL if job.lengths else PREDICTING)
    comparison = compare(
        subjects,
        dataclasses.asdict(job),
        "predict",
        lambda found: f"{np.median(found['batch_seconds'][0]) * 1e3:.1f} ms for the first size",
    )
    config = {
        "network": network.to_dict(),
        "seq_length": job.seq_length,
        "real_sequences": len(job.lengths),
        "mean_length": float(np.mean(job.lengths or [job.seq_length])),
        "threads": job.threads,
        **describe_machine(),
    }
    results = prediction_results(subjects, comparison.found, job.batch_sizes, config)
    print("\n".join(prediction_table(results)), flush=True)
    if values.json:
        write_json(values.json, results)
    comparison.raise_failures()


def _numbers(values: Sequence[str], *, flag: str) -> tuple[int, ...]:
    numbers = tuple(int(value) if value.isdecimal() else 0 for value in values)
    if not numbers or min(numbers) < 1:
        raise UserError(f"--{flag}={','.join(values)}: give whole numbers from 1 on.")
    return numbers


def define_flags() -> None:
    """Defines the flags of ``python -m benchmarks.inference``."""
    define_comparison_flags(PREDICTING_REAL)
    flags.DEFINE_string("bert_config_file", None, "The network; BERT-base if not given.")
    flags.DEFINE_list("batch_sizes", ["1", "2", "4", "8", "16", "32"], "Sequences of a batch.")
    flags.DEFINE_integer("seq_length", 384, "Positions of a sequence.", lower_bound=8)
    flags.DEFINE_string("squad_file", None, "Take the lengths of its windows; full if not given.")
    flags.DEFINE_string("vocab_file", None, "Uncased WordPiece vocabulary, for --squad_file.")
    flags.DEFINE_integer("sequences", 256, "Windows of --squad_file to take.", lower_bound=1)
    flags.DEFINE_integer("repetitions", 10, "Measured batches of a size and turn.", lower_bound=1)
    flags.DEFINE_integer("warmup", 2, "Batches of a size before them.", lower_bound=1)


if __name__ == "__main__":
    define_flags()
    run_command(lambda _: measure())
