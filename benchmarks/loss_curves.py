"""Checks whether precision or compilation changes what is learnt, by comparing loss curves.

    python -m benchmarks.loss_curves --input_file=data/records/train \
        --eval_file=data/records/heldout --bert_config_file=recipes/bert_tiny.json \
        --output_dir=curves --json=loss_curves.json --picture=loss_curves.svg

Trains the same network with run_pretraining.py in float32 with each of ``--seeds``, and each of
``--variants`` with the first seed: same initial weights, same batches, same masks. Compares the
smoothed training loss of each variant with that of float32, and the difference with the differences
between the seeds, which change nothing but weights, order, masks and dropout. Reports at the end
every variant that differs more than two seeds from each other; the exit status is then not 0.
Trainings run one at a time; when restarted, the command resumes and keeps finished trainings.
docs/measurements/loss_curves.md shows a result.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import loss_curves_compare as compare
from benchmarks import loss_curves_runs as runs
from benchmarks.loss_curves_compare import Curve, Difference
from benchmarks.loss_curves_runs import REFERENCE, VARIANTS
from benchmarks.results import Result, result
from benchmarks.script import REQUIRED, known_names, run_benchmark, shared_flags, whole_numbers
from benchmarks.trainings import Training, record_of, run_trainings
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir, require_file

# Flags of run_pretraining.py common to all trainings.
_TRAINING_FLAGS = {
    "bert_config_file": (REQUIRED, "As run_pretraining.py's."),
    "input_file": (REQUIRED, "As run_pretraining.py's."),
    "eval_file": (REQUIRED, "As run_pretraining.py's."),
    "max_seq_length": (128, "As run_pretraining.py's."),
    "max_predictions_per_seq": (20, "As run_pretraining.py's."),
    "train_batch_size": (32, "Sequences per update."),
    "num_train_steps": (1000, "Updates of each training."),
    "num_warmup_steps": (100, "As run_pretraining.py's."),
    "learning_rate": (2e-3, "As run_pretraining.py's."),
    "display_loss_steps": (10, "Updates per line of log.jsonl.", 1),
    "num_threads": (int, "Threads of each training (default: all cores)."),
}
_EVAL_BATCH_SIZE = 64
_MEASURES = {
    "mean": "mean difference",
    "largest": "largest difference",
    "held_out": "difference of the held-out loss",
}


def measure(values: flags.FlagValues = flags.FLAGS) -> Iterator[Result]:
    """Runs the benchmark given by its flags; raises UserError if a variant is too far away."""
    variants = known_names("variants", VARIANTS, values)
    seeds = list(dict.fromkeys(whole_numbers("seeds", least=0, values=values)))
    if len(seeds) < 2:
        raise UserError("--seeds: give at least two; their difference is the standard for others.")
    require_file(values.bert_config_file, flag="bert_config_file")
    _check_before_long_work(values)
    output_dir = make_output_dir(values.output_dir, flag="output_dir")
    trainings = runs.plan_trainings(variants, seeds, training_flags(values), output_dir)
    run_trainings(trainings)
    curves = {t: compare.smooth(runs.read_curve(t), values.smoothing_steps) for t in trainings}
    first, *others = trainings
    of_seeds = compare.between_seeds([curves[t] for t in trainings if t.variant == REFERENCE])
    found = {training: compare.difference(curves[training], curves[first]) for training in others}
    print("\n".join(table(curves, found, of_seeds)), flush=True)
    config = {"smoothing_steps": values.smoothing_steps, "seeds": seeds}
    yield from results(curves, found, of_seeds, config)
    if values.picture:
        compare.draw(
            curves[first],
            {t.name: curves[t] for t in others if t.variant == REFERENCE},
            {t.variant: curves[t] for t in others if t.variant != REFERENCE},
            path=Path(values.picture),
            title=f"{Path(values.bert_config_file).stem}, {values.train_batch_size} sequences of "
            f"{values.max_seq_length} tokens per update, means of {values.smoothing_steps} updates",
        )
        print(f"picture: {values.picture}")
    check_verdict({t.variant: found[t] for t in others if t.variant != REFERENCE}, of_seeds)


def check_verdict(found: Mapping[str, Difference], of_seeds: Difference) -> None:
    """Raises UserError if a variant is further from float32 than two seeds from each other."""
    too_far = [
        f"{variant}: {_MEASURES[name]} {getattr(differs, name):.4f} nats, "
        f"two seeds {getattr(of_seeds, name):.4f}"
        for variant, differs in found.items()
        for name in compare.excess(differs, of_seeds)
    ]
    if too_far:
        raise UserError(
            "further from float32 than two seeds are from each other: "
            f"{'; '.join(too_far)}. Look at the picture, and at the run's log.jsonl."
        )
    print("every variant is as near to float32 as another seed is, or nearer")


def table(
    curves: Mapping[Training, Curve],
    found: Mapping[Training, Difference],
    of_seeds: Difference,
) -> list[str]:
    """A line for each training, and the largest difference between two seeds at the end."""
    lines = [
        f"{'':24}{'from the first, nats':>22}{'held-out':>21}{'skipped':>9}",
        f"{'':24}{'mean':>11}{'largest':>11}{'loss':>11}{'apart':>10}{'updates':>9}",
    ]
    for training, curve in curves.items():
        mean, largest, apart = _cells(found.get(training))
        skipped = runs.skipped_updates(training)
        lines.append(
            f"{training.name:24}{mean:>11}{largest:>11}{curve.held_out:11.4f}{apart:>10}{skipped:9}"
        )
    mean, largest, apart = _cells(of_seeds)
    return [*lines, f"{'most between two seeds':24}{mean:>11}{largest:>11}{'':11}{apart:>10}"]


def _cells(differs: Difference | None) -> list[str]:
    return [f"{value:.4f}" for value in differs] if differs else [""] * 3


def results(
    curves: Mapping[Training, Curve],
    found: Mapping[Training, Difference],
    of_seeds: Difference,
    config: Mapping[str, Any],
) -> Iterator[Result]:
    """All results; the smoothed curves are in the configuration of the final loss."""
    for name, words in _MEASURES.items():
        yield result(f"loss curve, two seeds, {words}", getattr(of_seeds, name), "nats", config)
    for training, curve in curves.items():
        commit = record_of(training)["git_commit"]
        described = {**config, "flags": dict(training.flags), "git_commit": commit}
        smoothed = {**described, "curve": {"steps": curve.steps, "losses": curve.losses}}
        what, differs = f"loss curve, {training.name}", found.get(training)
        yield result(f"{what}, last training loss", curve.losses[-1], "nats", smoothed)
        yield result(f"{what}, held-out loss", curve.held_out, "nats", described)
        yield result(
            f"{what}, skipped updates", runs.skipped_updates(training), "updates", described
        )
        for name, words in _MEASURES.items() if differs else ():
            value = getattr(differs, name)
            yield result(f"{what}, {words} from fp32", value, "nats", described)


def training_flags(values: flags.FlagValues) -> dict[str, Any]:
    """The flags of run_pretraining.py common to all trainings."""
    return {
        **{n: values[n].value for n in _TRAINING_FLAGS if values[n].value is not None},
        "do_train": True,
        "do_eval": True,
        "eval_batch_size": _EVAL_BATCH_SIZE,
        "adam_bias_correction": True,
        "save_checkpoints_steps": max(1, values.num_train_steps // 4),
    }


def _check_before_long_work(values: flags.FlagValues) -> None:
    """Raises UserError for problems that would otherwise show up after the last training."""
    spacing, steps = values.display_loss_steps, values.num_train_steps
    if steps % spacing:
        raise UserError(
            f"--num_train_steps={steps} is not a multiple of --display_loss_steps={spacing}; the "
            "points of a curve are that many updates apart."
        )
    compare.points_of_window(values.smoothing_steps, spacing=spacing, last_step=steps)
    if values.picture and importlib.util.find_spec("matplotlib") is None:
        raise UserError("--picture needs matplotlib; install it, or leave the picture out.")


FLAGS = {
    **_TRAINING_FLAGS,
    "output_dir": (REQUIRED, "Directory for the trainings, with a subdirectory for each."),
    "smoothing_steps": (100, "Updates averaged for each point of a curve."),
    "variants": (
        ["bf16", "fp32-xla", "bf16-xla", "fp16-xla", "bf16-tensorflow"],
        f"What to compare with fp32: some of {', '.join(VARIANTS)}. fp16 without XLA is hundreds "
        "of times slower on a CPU.",
    ),
    "seeds": (["1", "2", "3"], "Seeds of fp32; variants use the first."),
    "picture": (str, "Path of the picture, an SVG."),
    **shared_flags("json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
