"""Runs trainings, one process at a time, and evaluates their checkpoints with one program."""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.process import processor_seconds, run_in_process, run_script, script_command
from benchmarks.to_loss.contenders import Contender
from benchmarks.to_loss.curves import Curve, checkpoint_losses
from benchmarks.to_loss.trainings import HUGGINGFACE, PREFIX, TrainingJob
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json_object, write_json

HELD_OUT = "heldout"

_UPDATES = "updates"  # a contender's setting: number of updates, whatever their time
_TIMED_UPDATES = 80


@dataclasses.dataclass(frozen=True)
class Plan:
    """Settings common to all trainings.

    Attributes:
      directory: directory for runs and results.
      job: a TrainingJob without a training's directory, seed and updates.
      num_draws: draws of masks per evaluation.
      settings: defaults for the settings of contenders, by module.
    """

    directory: Path
    job: TrainingJob
    num_draws: int
    settings: Mapping[str, Mapping[str, Any]]

    def settings_of(self, contender: Contender) -> dict[str, Any]:
        """A contender's settings without the number of updates."""
        found = {**self.settings.get(contender.module, {}), **contender.settings}
        found.pop(_UPDATES, None)
        return found


def train(contender: Contender, seed: int, seconds: float, plan: Plan) -> None:
    """Trains for about ``seconds``, unless this was done before.

    The number of updates follows from the rate of a short training, which is stored. Raises
    UserError if a training fails, and for results of other settings.
    """
    job, settings = _job(contender, seed, plan), plan.settings_of(contender)
    results = _results_file(job)
    if results.is_file():
        if read_json_object(results, what="results of a training")["settings"] != settings:
            raise UserError(
                f"--output_dir: {results} has other settings; remove it or choose another "
                "directory."
            )
        return
    updates = contender.settings.get(_UPDATES) or updates_in(seconds, contender, plan)
    job = dataclasses.replace(job, updates=updates)
    print(f"{contender.name}, seed {seed}: {updates} updates", flush=True)
    write_json(results, {**_train(contender, job, plan), "settings": settings})


def judge(contender: Contender, seed: int, plan: Plan) -> Curve:
    """Evaluates every checkpoint of a training, unless done before, and keeps the last one.

    Raises UserError if an evaluation fails.
    """
    job = _job(contender, seed, plan)
    kept = read_json_object(_results_file(job), what="results of a training")
    if "losses" not in kept:
        losses = _evaluate(job, plan)
        kept["losses"] = [losses[update] for update, *_ in kept["points"]]
        write_json(_results_file(job), kept)
    _remove_all_but_last(Path(job.directory), kept["points"][-1][0])
    curve = _curve(kept)
    print(f"{contender.name}, seed {seed}: {curve.end:.4f} after {curve.seconds[-1]:.1f} s")
    return curve


def _job(contender: Contender, seed: int, plan: Plan) -> TrainingJob:
    """The job without the number of updates."""
    directory = plan.directory / "runs" / f"{_file_name(contender.name)}-seed{seed}"
    return dataclasses.replace(plan.job, directory=str(directory), seed=seed)


def _results_file(job: TrainingJob) -> Path:
    return Path(f"{job.directory}.json")


def updates_in(seconds: float, contender: Contender, plan: Plan) -> int:
    """The number of updates of a contender in ``seconds``, given the rate of a short training."""
    path = plan.directory / "rates.json"
    rates = read_json_object(path, what="rates") if path.is_file() else {}
    if contender.name not in rates:
        directory = plan.directory / "timing"
        job = dataclasses.replace(
            plan.job,
            directory=str(directory),
            updates=10 * _TIMED_UPDATES,
            stop_after=_TIMED_UPDATES,
            checkpoints=0,
        )
        try:
            [*_, (last, took, _)] = _train(contender, job, plan)["points"]
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        rates[contender.name] = (last - 1) / took
        write_json(path, rates)
    return max(1, round(seconds * rates[contender.name]))


def _train(contender: Contender, job: TrainingJob, plan: Plan) -> dict[str, Any]:
    shutil.rmtree(job.directory, ignore_errors=True)  # left by a killed training
    Path(job.directory).mkdir(parents=True)
    subject = dataclasses.replace(contender.subject, settings=plan.settings_of(contender))
    before = processor_seconds()
    found = run_in_process(subject, job.to_json(), "train")
    return {**found, "processor_seconds": processor_seconds() - before}


def _evaluate(job: TrainingJob, plan: Plan) -> dict[int, float]:
    """The masked-LM loss of each checkpoint, by updates; the masked words are always the same."""
    directory = Path(job.directory)
    _adopt_huggingface(directory)
    scores = directory / "scores"
    flags = {
        "init_checkpoint": directory,
        "all_checkpoints": True,
        "input_file": job.data[HELD_OUT],
        "output_dir": scores,
        "metrics": "masked",
        "num_draws": plan.num_draws,
        "num_threads": job.threads,
        "precision": "fp32",
        "vocab_file": job.data["vocab_file"],
        "bert_config_file": plan.directory / "bert_config.json",
    }
    output = Path(f"{directory}.evaluation.txt")
    status = run_script(script_command("run_evaluation.py", flags), output)
    if status:
        raise UserError(f"run_evaluation.py ended with status {status}; see {output}.")
    found = read_json_object(scores / "perplexity.json", what="results of an evaluation")
    return checkpoint_losses(found["results"])


def _adopt_huggingface(directory: Path) -> None:
    """Converts its checkpoints with our converter, to google's names."""
    from bert_tf.checkpoint.formats import open_source
    from bert_tf.checkpoint.tensorflow_file import write_checkpoint

    for saved in directory.glob(f"{HUGGINGFACE}-*"):
        source, updates = open_source(saved), saved.name.rpartition("-")[2]
        arrays = {name: source.read(name) for name in source.shapes}
        write_checkpoint(str(directory / f"{PREFIX}-{updates}"), arrays)
        shutil.rmtree(saved)


def _remove_all_but_last(directory: Path, last: int) -> None:
    for path in directory.glob(f"{PREFIX}-*"):
        if not path.name.startswith(f"{PREFIX}-{last}."):
            path.unlink()


def _curve(kept: Mapping[str, Any]) -> Curve:
    updates, seconds, _ = zip(*kept["points"])
    return Curve(
        updates, seconds, tuple(kept["losses"]), kept["processor_seconds"], kept["start_seconds"]
    )


def _file_name(name: str) -> str:
    return re.sub(r"[^\w.=-]+", "_", name)
