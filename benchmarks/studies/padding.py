"""Measures the cost of padding in fine-tuning and prediction, and the cost of leaving it out.

    python -m benchmarks.studies.padding --squad_train_file=train-v1.1.json \
        --squad_predict_file=dev-v1.1.json --glue_dir=glue --vocab_file=vocab.txt \
        --work_dir=work --json=padding.json

On SQuAD and on GLUE tasks (``--tasks``), in three forms:

* ``padded``: padded to ``--squad_seq_length`` or ``--glue_seq_length``, with all of it computed;
* ``random``: the same batches, cut to their longest sequence, computed without padding outside of
  the attention (``--length_buckets=false``); in training only;
* ``by length``: batches of sequences of similar length, computed likewise (``--length_buckets``).

``--parts`` selects some of these:

* ``fill``: the fraction of positions that are tokens, padded and by length, over whole files.
* ``speed``: sequences per second of updates and of predictions of the network of
  ``--bert_config_file``, with random weights. All forms take turns over the same ``--sequences``,
  spread over the file, after a batch of each length. A ratio is the median of the turns' ratios.

docs/measurements/padding.md has the results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from benchmarks.machine import describe_machine
from benchmarks.results import Result, printed, ratio_result, result, spread_result
from benchmarks.script import (
    REQUIRED,
    known_names,
    network_from_flags,
    run_benchmark,
    shared_flags,
    threads_from_flags,
)
from benchmarks.speed.load import ForeignLoad
from benchmarks.speed.process import Found
from benchmarks.speed.subjects import BERT_BASE, OURS, Subject, by_name
from benchmarks.speed.turns import take_turns
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir, require_file

# TensorFlow is loaded once the flags are known.
if TYPE_CHECKING:
    from benchmarks.studies.padding_runs import Order
    from benchmarks.studies.padding_tasks import Case

SQUAD = "squad"
TASKS = (SQUAD, "cola", "mrpc", "sst-2", "sts-b", "wnli")
PADDED, RANDOM, BUCKETED = "padded", "random", "by length"
WHAT = (TRAINING, PREDICTION) = ("training", "prediction")

Config = Mapping[str, Any]


# Whether batches contain sequences of similar length, and whether they are cut to their longest and
# the encoder skips padding.
FORMS = by_name(
    Subject(PADDED, OURS, {"by_length": False, "skip_padding": False}),
    Subject(RANDOM, OURS, {"by_length": False, "skip_padding": True}),
    Subject(BUCKETED, OURS, {"by_length": True, "skip_padding": True}),
)


def measure_fill(case: Case, config: Config) -> Iterator[Result]:
    """Percentage of positions that are tokens, over an epoch of training and a prediction."""
    for what in WHAT:
        for form, order in _orders(case, what).items():
            positions = case.batch_size * sum(map(order.positions, range(order.num_batches)))
            share = 100.0 * order.sequences.lengths[order.counted].sum() / positions
            yield result(f"{case.name}, {what}, filled positions, {form}", share, "%", config)


def measure_speed(case: Case, config: Config) -> Iterator[Result]:
    """Sequences per second of each form, and the speed-up over padded sequences.

    All forms take turns over the same sequences, after a batch of each length.
    """
    from benchmarks.studies.padding_runs import TrainedNetwork

    values = flags.FLAGS
    network = network_from_flags(BERT_BASE)
    with contextlib.ExitStack() as stack:
        session = {"precision": values.precision, "threads": threads_from_flags()}
        built = [
            TrainedNetwork(case, network, skip_padding=skips, **session) for skips in (False, True)
        ]
        for one in built:
            stack.callback(one.close)
        described = {**config, "network": network.to_dict(), "precision": built[False].precision}
        for what in WHAT:
            orders = _orders(case, what, values.sequences)

            def go_over(form: Subject, *, warm_up: bool = False, orders=orders, what=what) -> Found:
                trained = built[form.settings["skip_padding"]]
                run = trained.update if what == TRAINING else trained.predict
                load, start = ForeignLoad(), time.perf_counter()
                for batch in orders[form.name].batches(one_of_each_length=warm_up):
                    run(batch)
                return {"seconds": time.perf_counter() - start, "foreign_share": load.share()}

            forms = {name: FORMS[name] for name in orders}
            for form in forms.values():
                go_over(form, warm_up=True)
            print(f"{case.name}: {values.turns} turns of {what}", flush=True)
            found = take_turns([*forms.values()], go_over, turns=values.turns, retries=0).found
            num_sequences = len(orders[PADDED].counted)
            rates = {f: [num_sequences / turn["seconds"] for turn in found[f]] for f in forms}
            for form in forms:
                shares = [turn["foreign_share"] for turn in found[form]]
                of_form = {**described, "sequences": num_sequences}
                of_form["others_share_of_machine"] = shares
                name = f"{case.name}, {what}, {form}"
                yield spread_result(name, rates[form], "sequences/s", of_form)
                if form != PADDED:
                    yield ratio_result(f"{name} to {PADDED}", rates[form], rates[PADDED], of_form)


PARTS = {"fill": measure_fill, "speed": measure_speed}


def _orders(case: Case, what: str, sequences: int | None = None) -> dict[str, Order]:
    """The batches of training or prediction by form, over ``sequences`` sequences or over all."""
    from benchmarks.studies import padding_runs

    if what == PREDICTION:
        dev = case.dev.spread(sequences)
        return {
            name: padding_runs.prediction_order(case, dev, cut=FORMS[name].settings["skip_padding"])
            for name in (PADDED, BUCKETED)
        }
    train = case.train.spread(sequences)
    return {
        name: padding_runs.training_order(
            case, train, by_length=form.settings["by_length"], cut=form.settings["skip_padding"]
        )
        for name, form in FORMS.items()
    }


def measure() -> Iterator[Result]:
    """The results requested by the flags."""
    tasks, parts = known_names("tasks", TASKS), known_names("parts", PARTS)
    for task in tasks:
        for flag in ("squad_train_file", "squad_predict_file") if task == SQUAD else ("glue_dir",):
            if not flags.FLAGS[flag].value:
                raise UserError(f"--{flag} is missing; give it, or leave out its parts.")
    if "speed" in parts:
        network_from_flags(BERT_BASE)
    for task in tasks:
        case = _case(task)
        config = {
            "max_seq_length": case.max_seq_length,
            "batch_size": case.batch_size,
            "threads": threads_from_flags(),
            **describe_machine(),
        }
        for part in parts:
            yield from printed(PARTS[part](case, config))


def _case(name: str) -> Case:
    from benchmarks.studies.padding_tasks import glue_case, squad_case

    values = flags.FLAGS
    vocab_file = require_file(values.vocab_file, flag="vocab_file")
    work_dir = make_output_dir(values.work_dir, flag="work_dir")
    kind = "squad" if name == SQUAD else "glue"
    common: dict[str, Any] = {
        "tokenizer_files": TokenizerFiles(vocab_file, do_lower_case=True),
        "work_dir": work_dir,
        "max_seq_length": values[f"{kind}_seq_length"].value,
        "batch_size": values[f"{kind}_batch_size"].value,
    }
    if name != SQUAD:
        return glue_case(name, Path(values.glue_dir), **common)
    train_file = require_file(values.squad_train_file, flag="squad_train_file")
    dev_file = require_file(values.squad_predict_file, flag="squad_predict_file")
    return squad_case(train_file, dev_file, **common)


FLAGS = {
    "tasks": (list(TASKS), f"Tasks, of {', '.join(TASKS)}."),
    "parts": (list(PARTS), f"What to measure, of {', '.join(PARTS)}."),
    "squad_train_file": (str, "SQuAD JSON to train on."),
    "squad_predict_file": (str, "SQuAD JSON to predict."),
    "glue_dir": (str, "Directory with a subdirectory for each GLUE task."),
    "vocab_file": (REQUIRED, "Uncased WordPiece vocabulary."),
    "work_dir": (REQUIRED, "Directory for records."),
    "squad_seq_length": (384, "Length of padded windows.", 8),
    "squad_batch_size": (8, "Windows per batch.", 1),
    "glue_seq_length": (128, "Length of padded sentences.", 8),
    "glue_batch_size": (32, "Sentences per batch.", 1),
    "sequences": (512, "Sequences per turn, for the speed.", 1),
    **shared_flags("bert_config_file", "json", "precision", "threads", "turns"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
