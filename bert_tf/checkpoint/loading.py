"""Strict loading of TensorFlow checkpoints, with a report of what was taken and what was not."""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.errors import UserError, first_line
from bert_tf.files import PathLike

Shape = tuple[int, ...]

# What a training run saves beside its weights; no loss when only the weights are wanted.
_RUN_STATE = re.compile(
    r"global_step|(optimizer|loss_scale|training)/.*|.*/(adam_m|adam_v|Adam|Adam_1)"
    r"|beta[12]_power"
)
_DATA_FILE = re.compile(r"\.data-\d{5}-of-(\d{5})$")
_FILE_OF_A_CHECKPOINT = re.compile(r"\.(index|meta|data-\d{5}-of-\d{5})$")
_MOST_NAMES_IN_A_MESSAGE = 3


class ShapeMismatch(NamedTuple):
    """A variable whose shape in the checkpoint is not the network's."""

    name: str
    checkpoint_shape: Shape
    network_shape: Shape

    def __str__(self) -> str:
        return f"{self.name} has {list(self.checkpoint_shape)}, not {list(self.network_shape)}"


@dataclasses.dataclass(frozen=True)
class LoadingReport:
    """A checkpoint compared with a network; every variable of either is in one list.

    Attributes:
      checkpoint: the checkpoint's path without the endings of its files.
      restored: variables taken from the checkpoint.
      fresh: variables that the checkpoint lacks, which start at their initial values.
      unexpected: weights of the checkpoint that the network lacks.
      mismatched: variables in both, of different shapes.
      run_state: names of optimizer moments, counters and the like that the network lacks.
    """

    checkpoint: str
    restored: tuple[str, ...]
    fresh: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[ShapeMismatch, ...]
    run_state: tuple[str, ...]

    def summary(self) -> list[str]:
        """A line for each list that is not empty, names included where they are exceptions."""
        lines = [f"{self.checkpoint}: {len(self.restored)} variables restored"]
        exceptions = {
            "not in the checkpoint, fresh": self.fresh,
            "of the checkpoint, unused": self.unexpected,
            "of other shapes": self.mismatched,
        }
        for meaning, names in exceptions.items():
            if names:
                lines.append(f"{len(names)} {meaning}: {', '.join(map(str, names))}")
        if self.run_state:
            lines.append(f"{len(self.run_state)} of a run's state, not needed")
        return lines


def resolve_checkpoint(path: PathLike) -> str:
    """The path of a checkpoint without the endings of its files.

    Args:
      path: that path itself, one of the checkpoint's files, or a directory, which stands for its
        latest checkpoint.

    Raises:
      UserError: there is no checkpoint, or a part of it is missing.
    """
    path = str(path)
    if Path(path).is_dir():
        latest = tf.train.latest_checkpoint(path)
        if latest is None:
            raise UserError(f"checkpoint directory {path} holds no checkpoint; give another path.")
        path = latest
    elif Path(path).is_file():
        path = _FILE_OF_A_CHECKPOINT.sub("", path)
    if not Path(f"{path}.index").is_file():
        raise UserError(
            f"checkpoint {path} does not exist ({path}.index was looked for); give the path "
            "without .index, or the directory that holds it."
        )
    found = glob.glob(f"{glob.escape(path)}.data-*")
    counts = {int(match.group(1)) for match in map(_DATA_FILE.search, found) if match}
    if counts != {len(found)}:
        raise UserError(
            f"checkpoint {path} is incomplete: it has {len(found)} data files "
            f"({path}.data-*); copy all files of the checkpoint."
        )
    return path


def read_shapes(checkpoint: str) -> dict[str, Shape]:
    """Name and shape of every variable in a checkpoint; raises UserError if it is damaged."""
    try:
        reader = tf.train.load_checkpoint(checkpoint)
    except (tf.errors.OpError, ValueError, RuntimeError) as error:
        raise UserError(
            f"checkpoint {checkpoint} cannot be read ({first_line(error)}); copy it again or give "
            "another."
        ) from error
    return {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}


def compare(checkpoint: PathLike, network: Mapping[str, Sequence[int]]) -> LoadingReport:
    """Compares a checkpoint's variables with a network's, given as name -> shape."""
    checkpoint = resolve_checkpoint(checkpoint)
    stored = read_shapes(checkpoint)
    wanted = {name: tuple(shape) for name, shape in network.items()}
    common = [name for name in wanted if name in stored]
    extra = sorted(stored.keys() - wanted.keys())
    return LoadingReport(
        checkpoint=checkpoint,
        restored=tuple(name for name in common if stored[name] == wanted[name]),
        fresh=tuple(name for name in wanted if name not in stored),
        unexpected=tuple(name for name in extra if not _RUN_STATE.fullmatch(name)),
        mismatched=tuple(
            ShapeMismatch(name, stored[name], wanted[name])
            for name in common
            if stored[name] != wanted[name]
        ),
        run_state=tuple(name for name in extra if _RUN_STATE.fullmatch(name)),
    )


def check_compatible(checkpoint: PathLike, variables: Iterable[tf.Variable]) -> LoadingReport:
    """Makes sure that a run can go on from ``checkpoint``: all its variables, all shapes.

    State that the run has no use for, such as the loss scale of a float16 run that goes on in
    bfloat16, is no obstacle; it is in the report.

    Args:
      checkpoint: as for ``resolve_checkpoint``.
      variables: everything that the run saves, optimizer and counters included.

    Raises:
      UserError: the checkpoint is another model's or another optimizer's.
    """
    report = compare(checkpoint, _shapes_of(variables))
    problem = _describe_mismatches(report)
    if not problem and report.fresh:
        problem = f"it lacks {_first(report.fresh)}"
    if not problem and report.unexpected:
        problem = f"it holds {_first(report.unexpected)}, which this run does not have"
    if problem:
        raise UserError(
            f"cannot resume from {report.checkpoint}: {problem}; give the flags that the "
            "checkpoint was made with, or another output directory."
        )
    return report


def initialise_from_checkpoint(
    checkpoint: PathLike,
    variables: Iterable[tf.Variable],
    *,
    allowed_fresh: Sequence[str] = (),
) -> LoadingReport:
    """Makes ``checkpoint`` the initial value of the variables.

    Args:
      checkpoint: as for ``resolve_checkpoint``.
      variables: the network's weights, without optimizer and counters.
      allowed_fresh: scopes, such as ``cls/squad``, whose variables may be missing.

    Raises:
      UserError: a variable outside these scopes is missing, or a shape differs.
    """
    by_name = {variable.op.name: variable for variable in variables}
    report = compare(checkpoint, _shapes_of(by_name.values()))
    problem = _describe_mismatches(report)
    missing = [name for name in report.fresh if not _is_in_scopes(name, allowed_fresh)]
    if not problem and missing:
        problem = f"it lacks {_first(missing)}"
    if problem:
        raise UserError(
            f"cannot start from {report.checkpoint}: {problem}; "
            "use the bert_config that it was made with, or another checkpoint."
        )
    if report.restored:
        tf.train.init_from_checkpoint(
            report.checkpoint, {name: by_name[name] for name in report.restored}
        )
    return report


def _shapes_of(variables: Iterable[tf.Variable]) -> dict[str, Shape]:
    return {variable.op.name: tuple(variable.shape.as_list()) for variable in variables}


def _is_in_scopes(name: str, scopes: Sequence[str]) -> bool:
    return any(name == scope or name.startswith(f"{scope}/") for scope in scopes)


def _describe_mismatches(report: LoadingReport) -> str:
    return _first([str(mismatch) for mismatch in report.mismatched])


def _first(names: Sequence[str]) -> str:
    """The first few names and how many more there are."""
    text = ", ".join(names[:_MOST_NAMES_IN_A_MESSAGE])
    more = len(names) - _MOST_NAMES_IN_A_MESSAGE
    return f"{text} and {more} more" if more > 0 else text
