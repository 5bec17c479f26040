"""Runs that are repeated: with several seeds, and with several settings to find the best.

Each has a directory of its own, below ``--output_dir``. A repetition that has ended is evaluated
again when the command is given again, but not trained.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bert_tf.config.declared import Settings, options_of
from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.finetune.task import SequenceTask
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files, write_json
from bert_tf.util.options import Option

SEEDS_NAME = "seeds.json"
SEARCH_NAME = "search.json"

# What a search may vary; what else a run does is the same in all of its trials.
_SEARCHED = ("optimization", "batch", "steps", "schedule", "layers", "loss")

AnySettings = TypeVar("AnySettings", bound=Settings)
Trial = Mapping[str, str]  # flag -> value


class Repeats:
    """The runs of every trial and seed, and the results so far.

    Attributes:
      by_seed: the current trial's results.
    """

    def __init__(self, settings: FinetuningSettings) -> None:
        """Makes the settings of all runs, so that a wrong value costs no training.

        Raises UserError for a value that is not valid, or a flag that a search cannot vary.
        """
        self.by_seed: dict[int, Results] = {}
        self._trials = trials(settings.search)
        self._trial: Trial = {}
        seeds = settings.seeds or [settings.run.seed]
        self._runs = [(t, _of_run(settings, t, seed)) for t in self._trials for seed in seeds]
        self._mean_scores: dict[str, dict[str, float]] = {}

    def runs(self) -> Iterator[FinetuningSettings]:
        """Yields the settings of each run, whose results must be added before the next one."""
        for trial, settings in self._runs:
            if trial != self._trial:
                self._trial, self.by_seed = trial, {}
            yield settings

    def add(self, task: SequenceTask, run: Run, results: Results) -> None:
        """Adds the results of a run; after a trial's last seed, writes and shows the results."""
        settings, names = task.settings, task.metrics
        self.by_seed[settings.run.seed] = results
        if not run.ranks.is_chief or len(self.by_seed) < len(settings.seeds):
            return
        directory = settings.run.output_dir
        if settings.seeds:
            directory = directory.parent
        summary = summarize_seeds(self.by_seed)
        if len(self.by_seed) > 1:
            remove_partial_files(directory)
            write_json(directory / SEEDS_NAME, summary)
            run.message(f"{len(self.by_seed)} seeds: {_spread(summary, names, task.digits)}")
        if not self._trial:
            return
        self._mean_scores[name_of(self._trial)] = {name: summary[name]["mean"] for name in names}
        total, metric = len(self._trials), task.metric
        # The best first.
        ranked = sorted(self._mean_scores.items(), key=lambda row: -row[1][metric])
        remove_partial_files(directory.parent)
        rows = [{"trial": trial, **scores} for trial, scores in ranked]
        table = {"metric": metric, "trials": total, "best": ranked[0][0], "found": rows}
        write_json(directory.parent / SEARCH_NAME, table)
        run.message(f"trial {len(ranked)} of {total}: {name_of(self._trial)}")
        if len(ranked) == total:
            for trial, scores in ranked:
                shown = "  ".join(f"{name} {scores[name]:.{task.digits}f}" for name in names)
                run.message(f"{shown}  {trial}")
            run.message(f"the best by {metric} is {directory.parent / ranked[0][0]}")


def trials(search: Mapping[str, Sequence[str]]) -> list[Trial]:
    """Every combination of the values of a search; without one, a single empty trial."""
    return [dict(zip(search, values)) for values in itertools.product(*search.values())]


def name_of(trial: Trial) -> str:
    """The name of a trial and of its directory."""
    return ",".join(f"{flag}={value}" for flag, value in trial.items())


def searchable(settings: Settings) -> list[str]:
    """The flags whose settings a search may vary."""
    own = (option.flag for option in _numbers_of(settings).values())
    inner = (searchable(group) for group in _groups_of(settings).values())
    return sorted(itertools.chain(own, *inner))


def _of_run(settings: FinetuningSettings, trial: Trial, seed: int) -> FinetuningSettings:
    """The settings with the values of a trial and a seed, for a directory named after them."""
    choices = searchable(settings)
    for flag in trial:
        if flag not in choices:
            raise UserError(
                f"--search: {flag} cannot be varied; choose among {', '.join(choices)}."
            )
    command, directory = settings.run.command, settings.run.output_dir
    if trial:
        values, defaulted = {**command.values, **trial}, command.defaulted - trial.keys()
        command = dataclasses.replace(command, values=values, defaulted=defaulted)
        directory /= name_of(trial)
    if settings.seeds:
        directory /= f"seed_{seed}"
    run = dataclasses.replace(settings.run, seed=seed, output_dir=directory, command=command)
    return dataclasses.replace(_varied(settings, trial), run=run)


def _groups_of(settings: Settings) -> dict[str, Settings]:
    groups = {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings)}
    return {n: g for n, g in groups.items() if n in _SEARCHED and isinstance(g, Settings)}


def _numbers_of(settings: Settings) -> dict[str, Option]:
    """Field -> option of a group's numbers and words; not of a run's own settings."""
    if isinstance(settings, FinetuningSettings):
        return {}
    return {
        name: option
        for name, option in options_of(type(settings)).items()
        if option.parse is None and option.value_type in (int, float, str)
    }


def _varied(settings: AnySettings, trial: Trial) -> AnySettings:
    """The settings with the values of a trial for those of its flags that they have."""
    changes: dict[str, Any] = {n: _varied(g, trial) for n, g in _groups_of(settings).items()}
    for name, option in _numbers_of(settings).items():
        if option.flag in trial:
            value = trial[option.flag]
            try:
                changes[name] = option.value_type(value)
            except ValueError:
                raise UserError(f"--search: {option.flag}={value} must be a number.") from None
    return dataclasses.replace(settings, **changes)


def _spread(summary: Mapping[str, Mapping[str, Any]], names: Sequence[str], digits: int) -> str:
    return "  ".join(
        f"{name} {summary[name]['mean']:.{digits}f} +- {summary[name]['std']:.{digits}f}"
        for name in names
    )


def summarize_seeds(by_seed: Mapping[int, Results]) -> dict[str, dict[str, Any]]:
    """The mean, sample standard deviation and values of every metric over the seeds."""
    summary: dict[str, dict[str, Any]] = {}
    for name in next(iter(by_seed.values())):
        values = {seed: results[name] for seed, results in by_seed.items()}
        spread = statistics.stdev(values.values()) if len(values) > 1 else 0.0
        mean = statistics.mean(values.values())
        summary[name] = {"mean": mean, "std": spread, "by_seed": values}
    return summary
