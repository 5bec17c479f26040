"""Whether precision and compilation change what is learnt: loss curves compared.

    python -m benchmarks.loss_curves --input_file=data/records/train \
        --eval_file=data/records/heldout --bert_config_file=recipes/bert_tiny.json \
        --output_dir=curves --json=loss_curves.json --picture=loss_curves.svg

Trains the same network with run_pretraining.py in float32 with each of ``--seeds``, and with the
first one each of ``--variants``: the same weights at the start, the same batches, the same masks.
The smoothed training loss of each variant is compared with that of float32, and the difference
with the differences between the seeds, which differ in nothing but weights, order, masks and
dropout. A variant that is further away than two seeds from each other is named at the end, and
the exit status is not 0. Trainings run one after the other; started again, the command resumes
where it was stopped and keeps what is finished. docs/loss_curves.md shows a result.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks import loss_curves_picture
from benchmarks.loss_curves_compare import (
    Curve,
    Difference,
    between_seeds,
    difference,
    excess,
    points_of_window,
    smooth,
)
from benchmarks.loss_curves_runs import (
    REFERENCE,
    VARIANTS,
    Training,
    plan_trainings,
    read_curve,
    record_of,
    run_trainings,
    skipped_updates,
)
from benchmarks.machine import describe_machine
from benchmarks.results import Result, result
from benchmarks.script import known_names, run_benchmark, whole_numbers
from bert_tf.errors import UserError
from bert_tf.files import make_output_dir, require_file, write_json

_SHARED_FLAGS = (
    "bert_config_file",
    "input_file",
    "eval_file",
    "max_seq_length",
    "max_predictions_per_seq",
    "train_batch_size",
    "num_train_steps",
    "num_warmup_steps",
    "learning_rate",
    "display_loss_steps",
    "num_threads",
)
_EVAL_BATCH_SIZE = 64
_MEASURES = {
    "mean": "mean difference",
    "largest": "largest difference",
    "held_out": "difference of the held-out loss",
}


def compare(values: flags.FlagValues) -> None:
    """Runs the benchmark from its flags; raises UserError for a variant that is too far away."""
    variants = known_names("variants", VARIANTS, values)
    seeds = list(dict.fromkeys(whole_numbers("seeds", least=0, values=values)))
    if len(seeds) < 2:
        raise UserError("--seeds: give two at least; their difference is what others are held to.")
    require_file(values.bert_config_file, flag="bert_config_file")
    _check_before_long_work(values)
    output_dir = make_output_dir(values.output_dir, flag="output_dir")
    trainings = plan_trainings(variants, seeds, shared_flags(values), output_dir)
    run_trainings(trainings)
    curves = {t: smooth(read_curve(t), values.smoothing_steps) for t in trainings}
    references = [training for training in trainings if training.variant == REFERENCE]
    first = references[0]
    of_seeds = between_seeds([curves[training] for training in references])
    others = [training for training in trainings if training.variant != REFERENCE]
    found = {training: difference(curves[training], curves[first]) for training in trainings[1:]}
    print("\n".join(table(curves, found, of_seeds)), flush=True)
    if values.json:
        config = {"smoothing_steps": values.smoothing_steps, "seeds": seeds, **describe_machine()}
        write_json(values.json, results(curves, found, of_seeds, config))
        print(f"results: {values.json}")
    if values.picture:
        loss_curves_picture.draw(
            curves[first],
            {training.name: curves[training] for training in references[1:]},
            {training.variant: curves[training] for training in others},
            path=Path(values.picture),
            title=_title(values),
        )
        print(f"picture: {values.picture}")
    check_verdict({training.variant: found[training] for training in others}, of_seeds)


def check_verdict(found: Mapping[str, Difference], of_seeds: Difference) -> None:
    """Raises UserError where a variant is further from float32 than two seeds from each other."""
    too_far = []
    for variant, differs in found.items():
        too_far += [
            f"{variant}: {_MEASURES[name]} {getattr(differs, name):.4f} nats, "
            f"two seeds {getattr(of_seeds, name):.4f}"
            for name in excess(differs, of_seeds)
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
    """A line for each training, and the largest difference of two seeds at the end."""
    lines = [
        f"{'':24}{'from the first, nats':>22}{'held-out':>21}{'skipped':>9}",
        f"{'':24}{'mean':>11}{'largest':>11}{'loss':>11}{'apart':>10}{'updates':>9}",
    ]
    for training, curve in curves.items():
        line = f"{training.name:24}"
        differs = found.get(training)
        line += f"{differs.mean:11.4f}{differs.largest:11.4f}" if differs else f"{'':22}"
        line += f"{curve.held_out:11.4f}"
        line += f"{differs.held_out:10.4f}" if differs else f"{'':10}"
        lines.append(f"{line}{skipped_updates(training):9}")
    seeds = f"{of_seeds.mean:11.4f}{of_seeds.largest:11.4f}{'':11}{of_seeds.held_out:10.4f}"
    return [*lines, f"{'most between two seeds':24}{seeds}"]


def results(
    curves: Mapping[Training, Curve],
    found: Mapping[Training, Difference],
    of_seeds: Difference,
    config: Mapping[str, Any],
) -> list[Result]:
    """All figures; the smoothed curves are in the configuration of the final loss."""
    listed = [
        result(f"loss curve, two seeds, {words}", getattr(of_seeds, name), "nats", config)
        for name, words in _MEASURES.items()
    ]
    for training, curve in curves.items():
        commit = record_of(training)["git_commit"]
        described = {**config, "flags": dict(training.flags), "git_commit": commit}
        smoothed = {**described, "curve": {"steps": curve.steps, "losses": curve.losses}}
        what = f"loss curve, {training.name}"
        listed += [
            result(f"{what}, last training loss", curve.losses[-1], "nats", smoothed),
            result(f"{what}, held-out loss", curve.held_out, "nats", described),
            result(f"{what}, skipped updates", skipped_updates(training), "updates", described),
        ]
        if differs := found.get(training):
            listed += [
                result(f"{what}, {words} from fp32", getattr(differs, name), "nats", described)
                for name, words in _MEASURES.items()
            ]
    return listed


def shared_flags(values: flags.FlagValues) -> dict[str, Any]:
    """The flags of run_pretraining.py that all trainings have."""
    steps = values.num_train_steps
    return {
        **{n: values[n].value for n in _SHARED_FLAGS if values[n].value is not None},
        "do_train": True,
        "do_eval": True,
        "eval_batch_size": _EVAL_BATCH_SIZE,
        "adam_bias_correction": True,
        "save_checkpoints_steps": max(1, steps // 4),
    }


def _check_before_long_work(values: flags.FlagValues) -> None:
    """Raises UserError for what would only fail after the last training."""
    spacing, steps = values.display_loss_steps, values.num_train_steps
    if steps % spacing:
        raise UserError(
            f"--num_train_steps={steps} is not a multiple of --display_loss_steps={spacing}; the "
            "points of a curve are that many updates apart."
        )
    points_of_window(values.smoothing_steps, spacing=spacing, last_step=steps)
    if values.picture and importlib.util.find_spec("matplotlib") is None:
        raise UserError("--picture needs matplotlib; install it, or leave the picture out.")


def _title(values: flags.FlagValues) -> str:
    network = Path(values.bert_config_file).stem
    return (
        f"{network}, {values.train_batch_size} sequences of {values.max_seq_length} tokens an "
        f"update, means of {values.smoothing_steps} updates"
    )


def define_flags(values: flags.FlagValues = flags.FLAGS) -> None:
    """Defines the flags of ``python -m benchmarks.loss_curves``."""
    define_string = functools.partial(flags.DEFINE_string, flag_values=values)
    define_list = functools.partial(flags.DEFINE_list, flag_values=values)
    for name, text in {
        "input_file": "Training records, as run_pretraining.py's.",
        "eval_file": "Held-out records, as run_pretraining.py's.",
        "bert_config_file": "The network.",
        "output_dir": "Where the trainings are kept, a directory each.",
    }.items():
        define_string(name, None, text, required=True)
    define_list(
        "variants",
        "bf16,amp,fp32-xla,bf16-xla,fp16-xla,bf16-tensorflow",
        f"What to compare with fp32: some of {', '.join(VARIANTS)}. fp16 without XLA is hundreds "
        "of times slower on a CPU.",
    )
    define_list("seeds", "1,2,3", "Of fp32; variants take the first.")
    for name, default, text, least in (
        ("num_train_steps", 1000, "Updates of each training.", 1),
        ("num_warmup_steps", 100, "As run_pretraining.py's.", None),
        ("max_seq_length", 128, "As run_pretraining.py's.", None),
        ("max_predictions_per_seq", 20, "As run_pretraining.py's.", None),
        ("train_batch_size", 32, "Sequences of an update.", 1),
        ("display_loss_steps", 10, "Updates of a line in log.jsonl.", 1),
        ("num_threads", None, "Of each training; all cores if not given.", None),
        ("smoothing_steps", 100, "Updates that a point of a curve is the mean of.", None),
    ):
        flags.DEFINE_integer(name, default, text, lower_bound=least, flag_values=values)
    flags.DEFINE_float("learning_rate", 2e-3, "As run_pretraining.py's.", flag_values=values)
    define_string("json", None, "Where to write the results.")
    define_string("picture", None, "Where to write the picture, an SVG.")


if __name__ == "__main__":
    run_benchmark(define_flags, lambda: compare(flags.FLAGS))
