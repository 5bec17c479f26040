"""Runs that are repeated: with several seeds, and with several settings to find the best.

Each has a directory of its own, below ``--output_dir``. A repetition that has ended is evaluated
again when the command is given again, but not trained.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from bert_tf.config.declared import Settings, options_of
from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run
from bert_tf.util.errors import UserError
from bert_tf.util.files import remove_partial_files, write_json

SEEDS_NAME = "seeds.json"
SEARCH_NAME = "search.json"

# What a search may vary; what else a run does is the same in all of its trials.
_SEARCHED = ("optimization", "batch", "steps", "schedule", "layers", "loss")

Result = TypeVar("Result")
AnySettings = TypeVar("AnySettings", bound=FinetuningSettings)
Trial = Mapping[str, str]  # flag -> value


@dataclasses.dataclass
class Repeats:
    """The results so far.

    Attributes:
      trial: what the current runs have instead of their common settings; empty without a search.
      by_seed: the current trial's results.
      mean_scores: for each trial that has ended, its means over the seeds by metric.
    """

    trial: Trial = dataclasses.field(default_factory=dict)
    by_seed: dict[int, Results] = dataclasses.field(default_factory=dict)
    mean_scores: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)

    def add(
        self,
        settings: FinetuningSettings,
        run: Run,
        results: Results,
        names: Sequence[str],
        *,
        figure: str,
        digits: int = 2,
    ) -> None:
        """Adds the results of a run; after a trial's last seed, writes and shows what is known.

        Args:
          settings, run: the settings of the run, and the run.
          results: its results.
          names: the metrics to show.
          figure: the one of them that decides which trial is the best.
          digits: the number of decimals shown.
        """
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
            run.message(f"{len(self.by_seed)} seeds: {_spread(summary, names, digits)}")
        if not self.trial:
            return
        self.mean_scores[name_of(self.trial)] = {name: summary[name]["mean"] for name in names}
        total, ranked = len(trials(settings.search)), self.ranked(figure)
        remove_partial_files(directory.parent)
        found = [{"trial": trial, **scores} for trial, scores in ranked]
        table = {"metric": figure, "trials": total, "best": ranked[0][0], "found": found}
        write_json(directory.parent / SEARCH_NAME, table)
        run.message(f"trial {len(ranked)} of {total}: {name_of(self.trial)}")
        if len(ranked) == total:
            for trial, scores in ranked:
                shown = "  ".join(f"{name} {scores[name]:.{digits}f}" for name in names)
                run.message(f"{shown}  {trial}")
            run.message(f"the best by {figure} is {directory.parent / ranked[0][0]}")

    def ranked(self, figure: str) -> list[tuple[str, dict[str, float]]]:
        """The trials that have ended and their means, the best by a metric first."""
        return sorted(self.mean_scores.items(), key=lambda row: -row[1][figure])


def run_all(settings: AnySettings, run_once: Callable[[AnySettings, Repeats], Result]) -> Result:
    """Calls ``run_once`` for each trial and seed, in a directory of its own.

    ``run_once`` adds its results to those it receives. Returns the result of the last call.
    """
    repeats = Repeats()
    # All are made before the first one is trained, so that a wrong value costs no training.
    made = [(trial, with_trial(settings, trial)) for trial in trials(settings.search)]
    for trial, chosen in made:
        repeats.trial, repeats.by_seed = trial, {}
        for seed in settings.seeds or [settings.run.seed]:
            result = run_once(_with_seed(chosen, seed), repeats)
    return result


def trials(search: Mapping[str, Sequence[str]]) -> list[Trial]:
    """Every combination of the values of a search; without one, a single empty trial."""
    return [dict(zip(search, values)) for values in itertools.product(*search.values())]


def with_trial(settings: AnySettings, trial: Trial) -> AnySettings:
    """The settings with the values of a trial, for a directory named after them.

    Raises UserError for a value that is not valid, or a flag that a search cannot vary.
    """
    if not trial:
        return settings
    varied: Any = settings
    for flag, value in trial.items():
        found = _replaced(varied, flag, value)
        if found is None:
            choices = ", ".join(searchable(settings))
            raise UserError(f"--search: {flag} cannot be varied; choose among {choices}.")
        varied = found
    command = dataclasses.replace(
        settings.run.command,
        values={**settings.run.command.values, **trial},
        defaulted=settings.run.command.defaulted - trial.keys(),
    )
    directory = settings.run.output_dir / name_of(trial)
    run = dataclasses.replace(settings.run, output_dir=directory, command=command)
    return dataclasses.replace(varied, run=run)


def name_of(trial: Trial) -> str:
    """The name of a trial and of its directory."""
    return ",".join(f"{flag}={value}" for flag, value in trial.items())


def searchable(settings: Settings) -> list[str]:
    """The flags whose settings a search may vary."""
    own = [option.flag for _, _, option in _numbers_of(settings)]
    inner = (searchable(group) for _, group in _groups_of(settings))
    return sorted(itertools.chain(own, *inner))


def _with_seed(settings: AnySettings, seed: int) -> AnySettings:
    if not settings.seeds:
        return settings
    directory = settings.run.output_dir / f"seed_{seed}"
    run = dataclasses.replace(settings.run, seed=seed, output_dir=directory)
    return dataclasses.replace(settings, run=run)


def _groups_of(settings: Settings) -> Iterator[tuple[str, Settings]]:
    for field in dataclasses.fields(settings):
        group = getattr(settings, field.name)
        if field.name in _SEARCHED and isinstance(group, Settings):
            yield field.name, group


def _numbers_of(settings: Settings) -> Iterator[tuple[str, Any, Any]]:
    """Field, type and option of a group's numbers and words; not of a run's own settings."""
    if isinstance(settings, FinetuningSettings):
        return
    for name, option in options_of(type(settings)).items():
        if option.parse is None and option.value_type in (int, float, str):
            yield name, option.value_type, option


def _replaced(settings: Any, flag: str, value: str) -> Any:
    """The settings with another value of a flag; None if they have no such flag."""
    for name, kind, option in _numbers_of(settings):
        if option.flag == flag:
            try:
                return dataclasses.replace(settings, **{name: kind(value)})
            except ValueError:
                raise UserError(f"--search: {flag}={value} must be a number.") from None
    for name, group in _groups_of(settings):
        found = _replaced(group, flag, value)
        if found is not None:
            return dataclasses.replace(settings, **{name: found})
    return None


def _spread(summary: Mapping[str, Mapping[str, Any]], names: Sequence[str], digits: int) -> str:
    return "  ".join(
        f"{name} {summary[name]['mean']:.{digits}f} +- {summary[name]['std']:.{digits}f}"
        for name in names
    )


def summarize_seeds(by_seed: Mapping[int, Results]) -> dict[str, dict[str, Any]]:
    """The mean, sample standard deviation and values of every metric over the seeds."""
    names = next(iter(by_seed.values()))
    summary: dict[str, dict[str, Any]] = {}
    for name in names:
        values = {seed: results[name] for seed, results in by_seed.items()}
        spread = statistics.stdev(values.values()) if len(values) > 1 else 0.0
        mean = statistics.mean(values.values())
        summary[name] = {"mean": mean, "std": spread, "by_seed": values}
    return summary
