"""Trains with run_pretraining.py, as started by users; the time of updates comes from its log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.process import run_script, script_command
from benchmarks.to_loss.trainings import TrainingJob
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json, write_json

_CONFIG = "network.json"


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Trains with the flags in the settings.

    In the settings, ``records`` names the training records and ``warmup_share``, if present, is the
    fraction of updates up to the peak; all others are flags of run_pretraining.py.

    Returns the result of run_updates.
    """
    job = TrainingJob.from_json(request)
    directory = Path(job.directory)
    directory.mkdir(parents=True, exist_ok=True)
    flags = training_flags(job, request["settings"])
    write_json(directory / _CONFIG, job.network.to_dict())
    output = Path(f"{directory}.txt")
    status = run_script(script_command("run_pretraining.py", flags), output)
    if status:
        raise UserError(f"run_pretraining.py ended with status {status}; see {output}")
    from bert_tf.train.run_log import STEPS, read_history  # loads TensorFlow

    log = read_history(directory, STEPS)
    record = read_json(directory / "run.json", what="run record")
    return {
        "points": points_of_log(log, record["ledger"]["batch"]["global_batch"]),
        "start_seconds": record["seconds_to_first_update"],
    }


def training_flags(job: TrainingJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All flags of a training; those in the settings come last."""
    given = dict(settings)
    records = given.pop("records")
    if "flagfile" in given:
        first = {"flagfile": given.pop("flagfile")}
    else:
        first = {"max_predictions_per_seq": job.predictions}
    if "warmup_share" in given:
        given["num_warmup_steps"] = round(given.pop("warmup_share") * job.updates)
    return {
        **first,
        "bert_config_file": Path(job.directory, _CONFIG),
        "input_file": job.data[records],
        "output_dir": job.directory,
        "do_train": True,
        "do_eval": False,
        "max_seq_length": job.seq_length,
        "num_train_steps": job.updates,
        "num_threads": job.threads,
        "seed": job.seed,
        "display_loss_steps": min(job.spacing, job.last_update),
        "save_checkpoints_steps": job.spacing,
        "keep_checkpoint_max": job.checkpoints + 2,
        **({} if job.stop_after is None else {"stop_after_steps": job.last_update}),
        **given,
    }


def points_of_log(log: Sequence[Mapping[str, float]], batch_size: int) -> list[list[float]]:
    """``[updates, seconds, loss]`` for each line of a log, as returned by run_updates.

    A line has the rate since the previous one, without the first update, checkpoints, evaluations.

    Args:
      log: lines with ``step``, ``sequences_per_second`` and ``loss``; if the batch grows, also with
        ``global_batch``, the sequences per update since the previous line.
      batch_size: sequences per update otherwise.
    """
    points, seconds, before = [], 0.0, 1
    for line in log:
        sequences = (line["step"] - before) * line.get("global_batch", batch_size)
        seconds += sequences / line["sequences_per_second"]
        before = line["step"]
        points.append([int(before), seconds, line.get("masked_lm_loss", line["loss"])])
    return points
