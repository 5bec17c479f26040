"""run_pretraining.py trains, as a user starts it; its log says how long the updates took."""

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
    """Trains with the flags of the settings.

    Of the settings, ``records`` names the training records and ``warmup_share``, where there is
    one, is the share of updates to the peak; all others are flags of run_pretraining.py.

    Returns what run_updates does.
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
    from bert_tf.train.run_log import STEPS, read_history  # brings TensorFlow

    log = read_history(directory, STEPS)
    record = read_json(directory / "run.json", what="run record")
    return {
        "points": points_of_log(log, record["ledger"]["batch"]["global_batch"]),
        "start_seconds": record["seconds_to_first_update"],
    }


def training_flags(job: TrainingJob, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All flags of a training; those of the settings come last."""
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
    """``[updates, seconds, loss]`` of each line of a log, as run_updates gives them.

    A line has the rate since the one before, without the first update, checkpoints and evaluations.

    Args:
      log: lines with ``step``, ``sequences_per_second`` and ``loss``; with ``global_batch``, the
        sequences of each update since the line before, where the batch grows.
      batch_size: sequences of an update where it does not.
    """
    points, seconds, before = [], 0.0, 1
    for line in log:
        sequences = (line["step"] - before) * line.get("global_batch", batch_size)
        seconds += sequences / line["sequences_per_second"]
        before = line["step"]
        points.append([int(before), seconds, line.get("masked_lm_loss", line["loss"])])
    return points
