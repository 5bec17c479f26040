"""Compares stored masks with masks drawn during training: held-out loss and size of the records.

    python -m benchmarks.studies.stored_masks --input_file=text --output_dir=masks \
        --json=stored_masks.json

Makes records from one text for each of ``--records``: a kind of masking with a number of passes
over the text (``--dupe_factor``), as in ``static-5``. For each of ``--seeds``, a network is trained
on each of them by run_pretraining.py for the same number of updates, those of ``--epochs`` passes
over the records of one pass. The comparison is of the masked-LM loss on held-out records, whose
masks are stored, so that all are evaluated on the same ones. Trainings run one at a time; when
restarted, the command keeps finished trainings.

docs/measurements/masks.md has the results.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, result
from benchmarks.script import REQUIRED, run_benchmark, shared_flags, whole_numbers
from benchmarks.speed.process import as_flag
from benchmarks.studies.large_batch import NETWORK, described
from benchmarks.studies.large_batch_runs import LOSS, seed_by_seed
from benchmarks.trainings import Training, held_out, run_trainings
from bert_tf.records.info import inspect_records
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir
from data_prep.stages.create_pretraining_data import MASKING

_AS_THERE = "As data_prep.pipeline's."
_OF_RECORDS = {
    "nsp": (True, _AS_THERE),
    "max_seq_length": (64, _AS_THERE, 5),
    "max_predictions_per_seq": (10, _AS_THERE, 1),
}
_OF_TRAINING = {
    "learning_rate": (2e-3, "As run_pretraining.py's."),
    "precision": ("bf16", "As run_pretraining.py's."),
    "num_threads": (int, "Threads of each training (default: all cores)."),
}
_WARMUP_SHARE = 0.1


class Kind(NamedTuple):
    """How records are made: ``masking`` and ``dupe_factor`` of data_prep."""

    masking: str
    dupe_factor: int

    def __str__(self) -> str:
        return f"{self.masking}-{self.dupe_factor}"


class Setting(NamedTuple):
    """What one cell of the table is about."""

    kind: Kind
    epochs: int


def measure(values: flags.FlagValues = flags.FLAGS) -> Iterator[Result]:
    """Runs the benchmark given by its flags."""
    kinds = [_kind(text) for text in dict.fromkeys(values.records or [""])]
    seeds = list(dict.fromkeys(whole_numbers("seeds", least=0, values=values)))
    epochs = sorted(set(whole_numbers("epochs", values=values)))
    root = make_output_dir(values.output_dir, flag="output_dir")
    print(machine_line(), flush=True)
    directories = _make_records(kinds, root / "data", values)
    sizes = {kind: _megabytes(directory) for kind, directory in directories.items()}
    one_pass = inspect_records([*(root / "data" / "records" / "train").glob("*.tfrecord")])
    updates = {n: max(n * one_pass.num_records // values.batch_size, 1) for n in epochs}
    found = {
        Setting(kind, n): [_training(kind, n, updates[n], seed, root, values) for seed in seeds]
        for n in epochs
        for kind in kinds
    }
    run_trainings(list(seed_by_seed(found)))
    losses = {key: [held_out(t, LOSS) for t in trained] for key, trained in found.items()}
    print("\n".join(table(losses, sizes, updates)), flush=True)
    for setting, trained in found.items():
        config = {
            "losses": losses[setting],
            "records_megabytes": sizes[setting.kind],
            **described(trained),
        }
        name = f"masks, {setting.kind}, {setting.epochs} epochs"
        yield result(name, statistics.fmean(losses[setting]), "nats", config)


def table(
    losses: Mapping[Setting, Sequence[float]],
    sizes: Mapping[Kind, float],
    updates: Mapping[int, int],
) -> list[str]:
    """A line for each kind of records: their size, and the loss for each training length."""
    lines = [
        "",
        "held-out loss of masked words, mean of the seeds, and the farthest of them from it",
    ]
    lines.append(f"{'records':14}{'MB':>8}" + "".join(f"{f'{n} epochs':>18}" for n in updates))
    lines.append(f"{'':22}" + "".join(f"{f'{n} updates':>18}" for n in updates.values()))
    for kind, size in sizes.items():
        cells = []
        for epochs in updates:
            of_seeds = losses[Setting(kind, epochs)]
            mean = statistics.fmean(of_seeds)
            cells.append(f"{mean:.3f} {max(abs(loss - mean) for loss in of_seeds):.3f}")
        lines.append(f"{kind!s:14}{size:8.1f}" + "".join(f"{cell:>18}" for cell in cells))
    return lines


def _kind(text: str) -> Kind:
    masking, _, passes = text.partition("-")
    if masking not in MASKING or not passes.isdecimal() or int(passes) < 1:
        raise UserError(
            f"--records: {text!r} is invalid; give a kind of masking and a number of passes, as in "
            "static-5."
        )
    return Kind(masking, int(passes))


def _make_records(kinds: Sequence[Kind], root: Path, values: flags.FlagValues) -> dict[Kind, Path]:
    """The directory of each kind's records, all made from the same sentences and vocabulary."""
    common = {name: values[name].value for name in _OF_RECORDS}
    common["num_output_files"] = 1
    _run_stage(
        "pipeline",
        {
            **common,
            "input_file": values.input_file,
            "output_dir": root,
            "vocab_size": values.vocab_size,
            "heldout_fraction": values.heldout_fraction,
            "masking": "static",
            "dupe_factor": 1,
        },
    )
    made = {}
    for kind in kinds:
        made[kind] = root / str(kind)
        text = {"input_file": root / "shards" / "train-*.txt", "output_dir": made[kind]}
        vocabulary = {"vocab_file": root / "vocabulary" / "vocab.txt"}
        flags_of_stage = {**common, **text, **vocabulary, **kind._asdict()}
        _run_stage("create_pretraining_data", flags_of_stage)
    return made


def _run_stage(name: str, given: Mapping[str, Any]) -> None:
    words = [as_flag(flag, value) for flag, value in given.items()]
    done = subprocess.run([sys.executable, "-m", f"data_prep.{name}", *words], check=False)
    if done.returncode:
        raise UserError(f"data_prep.{name} ended with status {done.returncode}; see above.")


def _megabytes(directory: Path) -> float:
    return sum(path.stat().st_size for path in directory.glob("*.tfrecord")) / 1e6


def _training(
    kind: Kind, epochs: int, updates: int, seed: int, root: Path, values: flags.FlagValues
) -> Training:
    passed_on = {name: values[name].value for name in (*_OF_RECORDS, *_OF_TRAINING)}
    flags_of_training = {
        **NETWORK,
        "max_position_embeddings": values.max_seq_length,
        **{name: value for name, value in passed_on.items() if value is not None},
        "input_file": str(root / "data" / str(kind)),
        "eval_file": str(root / "data" / "records" / "heldout"),
        "do_train": True,
        "do_eval": True,
        "train_batch_size": values.batch_size,
        "eval_batch_size": 64,
        "num_train_steps": updates,
        "num_warmup_steps": round(updates * _WARMUP_SHARE),
        "adam_bias_correction": True,
        "keep_best": False,
        "save_checkpoints_steps": updates,
        "seed": seed,
    }
    variant = f"{kind}-{epochs}epochs"
    return Training(variant, seed, flags_of_training, root / f"{variant}-seed{seed}")


FLAGS = {
    "input_file": (REQUIRED, "Text, as data_prep.pipeline's."),
    "output_dir": (REQUIRED, "Directory for records and trainings."),
    "records": (
        ["dynamic-1", "dynamic-5", "static-5", "static-10"],
        "Kinds of masking and numbers of passes over the text.",
    ),
    "epochs": (["2", "8", "30"], "Lengths of the trainings, in passes over the text."),
    "seeds": (["1", "2", "3"], "Seeds of each training."),
    "vocab_size": (2000, _AS_THERE, 100),
    "heldout_fraction": (0.2, _AS_THERE),
    "batch_size": (64, "Sequences per update.", 1),
    **_OF_RECORDS,
    **_OF_TRAINING,
    **shared_flags("json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
