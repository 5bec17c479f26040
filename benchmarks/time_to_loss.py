"""Compares the training time that ours and its peers need to reach a held-out masked-LM loss.

    python -m benchmarks.time_to_loss --input_file=text --google_bert_dir=bert \
        --output_dir=race --json=time_to_loss.json --picture=time_to_loss.svg

All train the same network on the same text with one vocabulary: google-research/bert with its own
records, transformers like its run_mlm.py, ours with a recipe. Peers train for --peer_seconds, ours
for --our_seconds; start-up, checkpoints and evaluations do not count. run_evaluation.py evaluates
all checkpoints on the same held-out records with the same masks. Ours has reached a peer's final
loss at its first checkpoint whose loss is not higher.

A contender in --subjects may have other settings, as in google-bert:learning_rate=1e-3. Trainings
run one at a time, then evaluations; when restarted, the command keeps finished work.
docs/measurements/time_to_loss.md shows a result.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, result
from benchmarks.script import (
    REQUIRED,
    network_from_flags,
    run_benchmark,
    shared_flags,
    threads_from_flags,
    whole_numbers,
)
from benchmarks.to_loss import curves as curves_of
from benchmarks.to_loss import data, runs
from benchmarks.to_loss.contenders import GOOGLE, OURS, Contender, contender
from benchmarks.to_loss.curves import Curve
from benchmarks.to_loss.runs import Plan
from benchmarks.to_loss.trainings import TrainingJob
from bert_tf.model.config import BertConfig
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir, require_file, write_json

# google-research/bert's BERT-Tiny; --vocab_size sets the size of the vocabulary.
_BERT_TINY = BertConfig(
    vocab_size=30522,
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=512,
    max_position_embeddings=512,
    type_vocab_size=2,
)

Curves = Mapping[str, Mapping[int, Curve]]


def measure(values: flags.FlagValues = flags.FLAGS) -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    contenders = _contenders(values)
    seeds = whole_numbers("seeds", values=values)
    if values.picture and importlib.util.find_spec("matplotlib") is None:
        raise UserError("--picture needs matplotlib; install it, or leave the picture out.")
    directory = make_output_dir(values.output_dir, flag="output_dir").resolve()
    plan = _plan(values, directory, contenders)
    print(machine_line(), flush=True)
    for seed in seeds:
        for one in contenders:
            runs.train(one, seed, values.our_seconds if one.is_ours else values.peer_seconds, plan)
    if values.train_only:
        return
    found: dict[str, dict[int, Curve]] = {}
    for one in contenders:
        found[one.name] = {seed: runs.judge(one, seed, plan) for seed in seeds}
    print("\n".join(curves_of.table(found)), flush=True)
    config = {"network": plan.job.network.to_dict(), "seeds": seeds, "data": dict(plan.job.data)}
    yield from _results(contenders, found, config, plan)
    if values.picture:
        title = f"{Path(values.input_file).name}: held-out loss over training time"
        curves_of.draw(found, path=Path(values.picture), title=title)
        print(f"picture: {values.picture}")


def _contenders(values: flags.FlagValues) -> list[Contender]:
    contenders = [contender(name) for name in dict.fromkeys(values.subjects)]
    for one in contenders:
        if one.module == GOOGLE and values.google_bert_dir is None:
            raise UserError(
                f"--subjects: {one.name} needs --google_bert_dir, a checkout of "
                "google-research/bert."
            )
    return contenders


def _plan(values: flags.FlagValues, directory: Path, contenders: list[Contender]) -> Plan:
    checkout = values.google_bert_dir
    if checkout is not None:
        require_file(Path(checkout, "run_pretraining.py"), flag="google_bert_dir")
        checkout = str(Path(checkout).resolve())
    network = network_from_flags(_BERT_TINY)
    network = dataclasses.replace(network, vocab_size=values.vocab_size)
    text = data.TextSettings(
        input_file=values.input_file,
        vocab_size=values.vocab_size,
        heldout_fraction=values.heldout_fraction,
        seq_length=values.seq_length,
        dupe_factor=values.dupe_factor,
        google_bert_dir=checkout,
    )
    kinds = dict.fromkeys(c.settings.get("records", "packed") for c in contenders if c.is_ours)
    paths = data.prepare(text, directory, list(kinds))
    write_json(directory / "bert_config.json", network.to_dict())
    return Plan(
        directory=directory,
        job=TrainingJob(
            directory="",
            network=network,
            seq_length=values.seq_length,
            predictions=text.predictions,
            data=paths,
            seed=0,
            threads=threads_from_flags(),
            updates=0,
            checkpoints=values.checkpoints,
        ),
        num_draws=values.num_draws,
        settings={GOOGLE: {"google_bert_dir": checkout}, OURS: {"records": "packed"}},
    )


def _results(
    contenders: list[Contender], found: Curves, config: Mapping[str, Any], plan: Plan
) -> Iterator[Result]:
    """All results; the curves are in the configuration of the final losses."""
    peers = {one.name: found[one.name] for one in contenders if not one.is_ours}
    best = curves_of.best_peer(peers)
    for one in contenders:
        of_seeds = found[one.name]
        described = {
            **config,
            "settings": plan.settings_of(one),
            "curves": {seed: curve._asdict() for seed, curve in of_seeds.items()},
        }
        loss = statistics.median(curve.end for curve in of_seeds.values())
        yield result("time to loss, loss at the end", loss, "nats", described, one.name)
        for peer in peers if one.is_ours else ():
            compared = curves_of.compare(of_seeds, peers[peer])
            share = statistics.median(c.share for c in compared.values())
            title = f"time to loss, share of {peer}'s time"
            turns = {seed: c._asdict() for seed, c in compared.items()}
            mark = ", the best peer" if peer == best else ""
            print(f"{one.name}: {share:.3f} of the time of {peer}{mark}", flush=True)
            yield result(title, share, "ratio", {**config, "seeds": turns}, one.name)


FLAGS = {
    "input_file": (REQUIRED, "Text, as data_prep.pipeline's."),
    "output_dir": (REQUIRED, "Directory for data, trainings and results."),
    "google_bert_dir": (str, "Directory of a checkout of google-research/bert."),
    "subjects": (
        ["ours-fast", "transformers", "google-bert"],
        "Contenders, each optionally with other settings after colons.",
    ),
    "seeds": (["1", "2", "3"], "Seeds of each training."),
    "peer_seconds": (120.0, "Duration of a peer's training."),
    "our_seconds": (40.0, "Duration of our training."),
    "checkpoints": (10, "Checkpoints to evaluate per training.", 1),
    "train_only": (False, "Leave evaluation and results to a later call."),
    "num_draws": (2, "Draws of masks per evaluation.", 1),
    "vocab_size": (6000, "Size of the vocabulary made from the training text.", 100),
    "heldout_fraction": (0.02, "Fraction of the documents to hold out."),
    "dupe_factor": (5, "Passes over the text in the records of google-research/bert and ours.", 1),
    "picture": (str, "Path of the picture, an SVG."),
    **shared_flags("bert_config_file", "seq_length", "threads", "json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
