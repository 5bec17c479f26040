"""Measures what a larger batch costs, and which learning-rate scaling compensates for it.

    python -m benchmarks.studies.large_batch --input_file=data/records/train \
        --eval_file=data/records/heldout --output_dir=batches --json=large_batch.json \
        --picture=large_batches.svg

Trains a network with run_pretraining.py on ``--num_sequences`` with a small batch and with
``--factors`` times as many sequences per update, and so with as many times fewer updates. First,
the learning rate of the small batch is chosen for each optimizer: the best of several for the first
seed. Then each batch is trained with this rate, and with it multiplied by the factor of the batch
and by its square root, with each of ``--seeds``. The comparison is of the final held-out masked-LM
loss. A training whose loss or gradient is not finite is shown as diverged. Trainings run one at a
time; when restarted, the command keeps finished trainings.

docs/measurements/large_batches.md has the results.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from benchmarks.results import Result, result
from benchmarks.script import REQUIRED, known_names, run_benchmark, shared_flags, whole_numbers
from benchmarks.studies import large_batch_runs as runs
from benchmarks.studies.large_batch_runs import OPTIMIZERS, SCALINGS, Found, Plan, Setting
from benchmarks.trainings import Training, record_of, run_trainings
from bert_tf.records.info import inspect_records
from bert_tf.records.tfrecord import RecordSet
from bert_tf.util.errors import UserError
from bert_tf.util.files import expand_record_files, make_output_dir, require_file
from bert_tf.util.pictures import COLOURS, can_draw, picture

# Sizes of the default network: 0.24 million weights with a vocabulary of 2,000.
NETWORK: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 256,
    "initializer_range": 0.125,  # one over the square root of the width
    "max_position_embeddings": 64,
}
# Most trainings see each sequence once.
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_AS_THERE = "As run_pretraining.py's."
_PASSED_ON = {
    "input_file": (REQUIRED, _AS_THERE),
    "eval_file": (REQUIRED, "Held-out records, which must store their masks."),
    "max_seq_length": (64, _AS_THERE),
    "max_predictions_per_seq": (10, _AS_THERE),
    "max_eval_steps": (32, "Batches of 64 held-out sequences."),
    "num_threads": (int, "Threads of each training (default: all cores)."),
    "precision": ("bf16", _AS_THERE),
}
_DIVERGED = "diverged"


def measure(values: flags.FlagValues = flags.FLAGS) -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    optimizers = known_names("optimizers", OPTIMIZERS, values)
    scalings = known_names("scalings", SCALINGS, values)
    seeds = list(dict.fromkeys(whole_numbers("seeds", least=0, values=values)))
    factors = sorted(set(whole_numbers("factors", values=values)))
    rates = {name: _rates(name, values) for name in optimizers}
    _check_before_long_work(values)
    plan = plan_from_flags(values)
    plan.check([1, *factors])
    make_output_dir(values.output_dir, flag="output_dir")

    tried = runs.sweep(plan, rates, seeds[0])
    run_trainings([t for of in tried.values() for t in of.values()], may_diverge=True)
    print("\n".join(sweep_table(tried)), flush=True)
    for optimizer, trained in tried.items():
        for rate, training in trained.items():
            name = f"large batch, {optimizer}, 1x, rate {rate:g}"
            yield result(name, runs.final_loss(training), "nats", described([training]))
    base_rates = {name: runs.best_rate(name, trained) for name, trained in tried.items()}

    found = runs.compared(plan, base_rates, scalings, factors, seeds)
    run_trainings(list(runs.seed_by_seed(found)), may_diverge=True)
    losses = runs.losses_of(found)
    print("\n".join(table(losses, plan.batch_size)), flush=True)
    yield from results(found, losses)
    if values.picture:
        draw(losses, plan, Path(values.picture))
        print(f"picture: {values.picture}")


def sweep_table(tried: Mapping[str, Mapping[float, Training]]) -> list[str]:
    """A line with each optimizer's rates, and below it their held-out losses."""
    lines = ["", "held-out loss of the small batch, by learning rate"]
    for optimizer, trained in tried.items():
        lines.append(f"{optimizer:16}" + "".join(f"{rate:>11g}" for rate in trained))
        losses = [runs.final_loss(training) for training in trained.values()]
        lines.append(f"{'':16}" + "".join(f"{_shown(loss):>11}" for loss in losses))
    return lines


def table(losses: Mapping[Setting, Sequence[float]], batch_size: int) -> list[str]:
    """A line for each optimizer and scaling: means, and the largest deviation of a seed."""
    factors = list(dict.fromkeys(setting.factor for setting in losses))
    lines = ["", "held-out loss, mean of the seeds, and the farthest of them from it"]
    lines.append(f"{'batch':16}" + "".join(f"{batch_size * factor:>16}" for factor in factors))
    for optimizer, scaling in dict.fromkeys(setting[:2] for setting in losses):
        cells = [_cell(losses[Setting(optimizer, scaling, factor)]) for factor in factors]
        lines.append(f"{optimizer:8}{scaling:8}" + "".join(f"{cell:>16}" for cell in cells))
    return lines


def _cell(losses: Sequence[float]) -> str:
    finite = [loss for loss in losses if np.isfinite(loss)]
    if not finite:
        return _DIVERGED
    mean = statistics.fmean(finite)
    text = f"{mean:.3f} {max(abs(loss - mean) for loss in finite):.3f}"
    lost = len(losses) - len(finite)
    return f"{text} ({lost} {_DIVERGED})" if lost else text


def _shown(loss: float) -> str:
    return f"{loss:.3f}" if np.isfinite(loss) else _DIVERGED


def results(found: Found, losses: Mapping[Setting, Sequence[float]]) -> Iterator[Result]:
    """The mean for each setting; infinite if a seed diverged."""
    for setting, trained in found.items():
        config = {**setting._asdict(), "losses": losses[setting], **described(trained)}
        name = f"large batch, {setting.optimizer}, {setting.scaling}, {setting.factor}x"
        yield result(name, statistics.fmean(losses[setting]), "nats", config)


def described(trained: Sequence[Training]) -> dict[str, Any]:
    """The flags of trainings that differ in their seed, and the commit of the first one."""
    seeds, commit = [training.seed for training in trained], record_of(trained[0])["git_commit"]
    return {"seeds": seeds, "flags": dict(trained[0].flags), "git_commit": commit}


def draw(losses: Mapping[Setting, Sequence[float]], plan: Plan, path: Path) -> None:
    """Draws the held-out loss over the batch size: means, with the range of the seeds.

    Settings with a diverged seed are left out.
    """
    dashes = dict(zip(SCALINGS, (":", "-", "--")))
    colours = dict(zip(OPTIMIZERS, COLOURS))
    with picture(
        path, x="sequences per update", y="held-out loss of masked words (nats)", inches=(7, 4.5)
    ) as axes:
        for optimizer, scaling in dict.fromkeys(setting[:2] for setting in losses):
            of_line = {
                plan.batch_size * setting.factor: values
                for setting, values in losses.items()
                if setting[:2] == (optimizer, scaling) and np.isfinite(values).all()
            }
            means = np.array([statistics.fmean(values) for values in of_line.values()])
            ends = np.array([(min(values), max(values)) for values in of_line.values()])
            axes.errorbar(
                list(of_line),
                means,
                yerr=np.abs(ends.reshape(-1, 2).T - means),
                color=colours[optimizer],
                linestyle=dashes[scaling],
                capsize=2,
                label=f"{optimizer}, {scaling}",
            )
        batches = sorted({plan.batch_size * setting.factor for setting in losses})
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.grid(color="0.9")
        axes.legend(fontsize=8)


def plan_from_flags(values: flags.FlagValues) -> Plan:
    """Settings common to all trainings; UserError if the network's file does not exist."""
    network = {**NETWORK, **_NO_DROPOUT}
    if values.bert_config_file:
        require_file(values.bert_config_file, flag="bert_config_file")
        network = {"bert_config_file": values.bert_config_file}
    passed_on = {n: values[n].value for n in _PASSED_ON if values[n].value is not None}
    shared = {
        **network,
        **passed_on,
        "nsp": False,
        "do_train": True,
        "do_eval": True,
        "eval_batch_size": 64,
        "keep_best": False,
        "save_checkpoints_steps": values.num_sequences,  # more than updates, so only at the end
    }
    return Plan(
        flags=shared,
        output_dir=Path(values.output_dir),
        batch_size=values.batch_size,
        micro_batch_size=values.micro_batch_size,
        num_sequences=values.num_sequences,
        warmup_sequences=values.num_warmup_sequences,
    )


def _rates(optimizer: str, values: flags.FlagValues) -> list[float]:
    """The rates in --OPTIMIZER_learning_rates; raises UserError for invalid ones."""
    flag = f"{optimizer}_learning_rates"
    texts = values[flag].value
    try:
        rates = [float(text) for text in texts]
    except ValueError:
        rates = []
    if not rates or not all(0 < rate < np.inf for rate in rates):
        raise UserError(f"--{flag}={','.join(texts)}: give numbers greater than 0.")
    return rates


def _check_before_long_work(values: flags.FlagValues) -> None:
    """Raises UserError for settings that would make losses incomparable, or fail at the end."""
    files = expand_record_files(values.eval_file, flag="eval_file")
    if not inspect_records(RecordSet(files, keep_offsets=False)).masked:
        raise UserError(
            f"--eval_file: the records in {values.eval_file} store no masks, so each seed would "
            "be evaluated on different words; make them with data_prep's --masking=static."
        )
    if values.picture and not can_draw():
        raise UserError("--picture needs matplotlib; install it, or leave the picture out.")


FLAGS = {
    **_PASSED_ON,
    "output_dir": (REQUIRED, "Directory for the trainings, with a subdirectory for each."),
    "bert_config_file": (str, "A network other than the default one."),
    "optimizers": (["adam", "lamb"], f"Optimizers, of {', '.join(OPTIMIZERS)}."),
    "scalings": (list(SCALINGS), f"Learning-rate scalings, of {', '.join(SCALINGS)}."),
    "factors": (["1", "2", "4", "8", "16", "32"], "Batches, as multiples of --batch_size."),
    "seeds": (["1", "2", "3"], "Seeds of each training; rates are chosen with the first."),
    "batch_size": (8, "Sequences per update of the small batch.", 1),
    "micro_batch_size": (64, "Maximum sequences per micro batch; larger batches accumulate.", 1),
    "num_sequences": (32768, "Sequences per training.", 1),
    "num_warmup_sequences": (3277, "Sequences over which the learning rate rises.", 0),
    **{
        f"{name}_learning_rates": (
            [f"{rate:g}" for rate in rates],
            f"Rates from which that of {name} is chosen; a single one is used as it is.",
        )
        for name, (_, rates) in OPTIMIZERS.items()
    },
    "picture": (str, "Path of the picture, an SVG."),
    **shared_flags("json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
