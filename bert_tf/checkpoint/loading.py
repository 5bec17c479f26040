"""Strict loading of checkpoints of any format, with a report of what was loaded."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import names
from bert_tf.checkpoint.arrays import Shape
from bert_tf.checkpoint.formats import Source, open_source
from bert_tf.checkpoint.tensorflow_file import (
    TensorflowCheckpoint,
    resolve_checkpoint,
    write_checkpoint,
)
from bert_tf.model.bert import WORD_EMBEDDINGS
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import Head
from bert_tf.model_directory.complete import other_function
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike
from bert_tf.util.temporary import TemporaryDirectory

if TYPE_CHECKING:
    from bert_tf.model_directory.classes import Classes

_MOST_NAMES_IN_A_MESSAGE = 3


class ShapeMismatch(NamedTuple):
    """A variable whose shape in the checkpoint differs from its shape in the network."""

    name: str
    checkpoint_shape: Shape
    network_shape: Shape

    def __str__(self) -> str:
        return f"{self.name} has {list(self.checkpoint_shape)}, not {list(self.network_shape)}"


@dataclasses.dataclass(frozen=True)
class LoadingReport:
    """The comparison of a checkpoint with a network; each variable of either is in one list.

    Attributes:
      checkpoint: the file, or a TensorFlow checkpoint's path without suffixes.
      restored: variables taken from the checkpoint.
      fresh: variables missing from the checkpoint, which keep their initial values.
      unexpected: weights in the checkpoint that are not in the network.
      run_state: optimizer slots, counters and the like that are not in the network.
      origin: the checkpoint's format and GELU; empty if not determined.
    """

    checkpoint: str
    restored: tuple[str, ...]
    fresh: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[ShapeMismatch, ...]
    run_state: tuple[str, ...]
    origin: str = ""
    notes: tuple[str, ...] = ()

    def summary(self, taken: str = "restored", *, state: str = "not needed") -> list[str]:
        """One line for each non-empty list, with the names of exceptions.

        ``taken`` and ``state`` say what happened to the restored variables and to the run's state,
        which is left out for "".
        """
        lines = [f"{self.checkpoint}: {len(self.restored)} variables {taken}"]
        if self.origin:
            lines.append(self.origin)
        exceptions = {
            "not in the checkpoint, fresh": self.fresh,
            "of the checkpoint, unused": self.unexpected,
            "of other shapes": self.mismatched,
        }
        for meaning, found in exceptions.items():
            if found:
                lines.append(f"{len(found)} {meaning}: {', '.join(_listed(found))}")
        if self.run_state and state:
            lines.append(f"{len(self.run_state)} of a run's state, {state}")
        lines.extend(self.notes)
        return lines


def _listed(found: Sequence[object]) -> list[str]:
    """The names, with all variables of a generator, which few networks have, as one entry."""
    listed = [str(name) for name in found if not str(name).startswith(names.GENERATOR)]
    of_generator = len(found) - len(listed)
    return [*listed, *([f"{names.GENERATOR}* ({of_generator})"] if of_generator else [])]


def compare(checkpoint: PathLike, network: Mapping[str, Sequence[int]]) -> LoadingReport:
    """Compares the variables of a TensorFlow checkpoint with a network's, name -> shape."""
    file = TensorflowCheckpoint(resolve_checkpoint(checkpoint))
    shapes = {name: entry.shape for name, entry in file.entries.items()}
    return compare_shapes(file.path, shapes, network)


def compare_source(source: Source, network: Mapping[str, Sequence[int]]) -> LoadingReport:
    """Compares a checkpoint of any format with a network; the report states its origin."""
    return compare_shapes(
        source.path, source.shapes, network, origin=source.describe(), notes=source.notes
    )


def compare_shapes(
    checkpoint: str,
    stored: Mapping[str, Shape],
    network: Mapping[str, Sequence[int]],
    **about: Any,
) -> LoadingReport:
    """Compares the shapes of an opened checkpoint with those of a network.

    ``about`` has the report's ``origin`` and ``notes``.
    """
    wanted = {name: tuple(shape) for name, shape in network.items()}
    common = [name for name in wanted if name in stored]
    extra = sorted(stored.keys() - wanted.keys())
    return LoadingReport(
        checkpoint=checkpoint,
        restored=tuple(name for name in common if stored[name] == wanted[name]),
        fresh=tuple(name for name in wanted if name not in stored),
        unexpected=tuple(name for name in extra if not names.is_run_state(name)),
        mismatched=tuple(
            ShapeMismatch(name, stored[name], wanted[name])
            for name in common
            if stored[name] != wanted[name]
        ),
        run_state=tuple(name for name in extra if names.is_run_state(name)),
        **about,
    )


def check_compatible(checkpoint: PathLike, variables: Iterable[tf.Variable]) -> LoadingReport:
    """Checks that a run can resume from ``checkpoint``: variables and shapes must match.

    State that the run does not need, such as the loss scale of a float16 run that resumes in
    bfloat16, is allowed and reported. ``variables`` are all that the run saves, optimizer state and
    counters included.

    Raises UserError if the checkpoint belongs to a different model or optimizer, or has weights
    that are not finite.
    """
    report = compare(checkpoint, {v.op.name: tuple(v.shape.as_list()) for v in variables})
    stored = (*report.restored, *report.run_state)
    if any(map(names.is_optimizer_state, report.fresh)) and not any(
        map(names.is_optimizer_state, stored)
    ):
        raise UserError(
            f"cannot resume from {report.checkpoint}: it has no optimizer state, like checkpoints "
            "in best/ and converted ones; give it as --init_checkpoint, with another --output_dir."
        )
    problem = describe_problem(report)
    if not problem and report.unexpected:
        problem = f"it contains {_first(report.unexpected)}, which this run does not have"
    if problem:
        raise UserError(
            f"cannot resume from {report.checkpoint}: {problem}; give the flags that the "
            "checkpoint was made with, or another output directory."
        )
    file = TensorflowCheckpoint(report.checkpoint)
    for name in report.restored:
        if not names.is_run_state(name):
            file.read_float32(name)
    return report


def check_initial(
    checkpoint: PathLike,
    network: Mapping[str, Shape],
    *,
    allowed_fresh: Sequence[str] = (),
    heads: Sequence[Head] = (),
    config: BertConfig | None = None,
    layers: Sequence[int] | None = None,
) -> tuple[Source, LoadingReport]:
    """Checks that a network can start from ``checkpoint``, without reading values.

    Args:
      checkpoint: any format, a directory or a file, as in ``formats.open_source``.
      network: names and shapes of its variables, without optimizer state and counters.
      allowed_fresh: scopes, such as ``cls/squad``, whose variables may be missing.
      heads: heads that may be missing completely; the report names those that are.
      config: the network's configuration. If the checkpoint has one too, properties that shapes
        do not reveal are compared; differing dropout rates, and a ``gelu`` that may mean the
        other function, are reported.
      layers: the checkpoint's layers, from 0, with which the network's start; None for all.

    Raises UserError if a variable outside these scopes is missing, or a shape, the number of
    attention heads or the activation differs.
    """
    source = open_with_heads(checkpoint, heads)
    source = source.without(_heads_for_other_classes(source, network, heads))
    if layers is not None:
        source = source.with_layers(layers, segments=config is None or config.type_vocab_size > 0)
    report = compare_source(source, network)
    lacking = missing_heads(report, heads)
    scopes = [*allowed_fresh, *_scopes_of(lacking, report)]
    problem = describe_problem(report, scopes, config=config)
    notes = [
        f"the checkpoint has no {head.name}, so it starts from random weights" for head in lacking
    ]
    if not problem and config is not None:
        problem, others = other_function(source.files, config)
        notes += others
    if problem:
        raise UserError(
            f"cannot start from {report.checkpoint}: {problem}; "
            + advice(report, "use the bert_config that the checkpoint was made with")
        )
    return source, dataclasses.replace(report, notes=(*report.notes, *notes))


def open_with_heads(checkpoint: PathLike, heads: Sequence[Head]) -> Source:
    """Like ``formats.open_source``, without another task's head that has the same names."""
    source = open_source(checkpoint)
    return source.without(variables_of_another_head(source.files.classes, heads))


def variables_of_another_head(classes: Classes | None, heads: Sequence[Head]) -> list[str]:
    """Variables that have the names of one of ``heads`` but, judging by the classes, are not it."""
    kind = classes.kind if classes else None
    others = [head for head in heads if head.kinds and kind not in head.kinds]
    return [name for head in others for name in head.scopes]


def _heads_for_other_classes(
    source: Source, network: Mapping[str, Shape], heads: Sequence[Head]
) -> list[str]:
    """Scopes of classification heads with other names or another number of classes."""
    others = [
        head
        for head in heads
        if None in head.kinds
        and (
            (
                (known := source.files.classes_of(head.kinds)) is not None
                and head.classes not in (None, known.labels)
            )
            or any(
                source.shapes.get(name, shape) != shape
                for name, shape in network.items()
                if _is_in_scopes(name, head.scopes)
            )
        )
    ]
    return [scope for head in others for scope in head.scopes]


def initialise_from_checkpoint(
    checkpoint: PathLike,
    variables: Iterable[tf.Variable],
    *,
    allowed_fresh: Sequence[str] = (),
    heads: Sequence[Head] = (),
    config: BertConfig | None = None,
    layers: Sequence[int] | None = None,
    prefix: str = "",
) -> LoadingReport:
    """Sets the variables' initial values to those of ``checkpoint``; see :func:`check_initial`.

    ``prefix``, including its slash, precedes the checkpoint's names in the variables' names.
    """
    by_name = {variable.op.name[len(prefix) :]: variable for variable in variables}
    source, report = check_initial(
        checkpoint,
        {name: tuple(variable.shape.as_list()) for name, variable in by_name.items()},
        allowed_fresh=allowed_fresh,
        heads=heads,
        config=config,
        layers=layers,
    )
    if report.restored:
        tf.train.init_from_checkpoint(
            _as_tensorflow(source, report.restored),
            {name: by_name[name] for name in report.restored},
        )
    return report


def _as_tensorflow(source: Source, wanted: Sequence[str]) -> str:
    """The path of a TensorFlow checkpoint with the wanted variables of ``source``.

    Writes a copy for other formats, since TensorFlow reads initial values when a session starts,
    and only from its own files. The copy is removed with the current graph. Raises UserError for
    weights that are not finite.
    """
    if source.is_plain_tensorflow(wanted):
        source.check_finite(wanted)
        return source.path
    directory = TemporaryDirectory("weights")
    weakref.finalize(tf.get_default_graph(), directory.cleanup)
    path = str(Path(directory.name) / "model.ckpt")
    try:
        write_checkpoint(path, {name: source.read(name) for name in wanted})
    except OSError as error:
        raise UserError(
            f"cannot write a copy of {source.path} to {directory.name} ({error.strerror}); free "
            "space there or set TMPDIR to another directory."
        ) from error
    return path


def describe_problem(
    report: LoadingReport,
    allowed_fresh: Sequence[str] = (),
    *,
    config: BertConfig | None = None,
) -> str:
    """Names variables of other shapes, or missing outside the scopes; "" if there are none.

    Segment embeddings that a network of this ``config`` would ignore are a problem, too.
    """
    missing = [name for name in report.fresh if not _is_in_scopes(name, allowed_fresh)]
    if report.mismatched:
        return _first([str(mismatch) for mismatch in report.mismatched])
    if missing:
        others = [name for name in report.unexpected if names.BERT.by_google(name) is None]
        return f"it lacks {_first(missing)}" + (f", but has {_first(others)}" if others else "")
    ignores_segments = config is not None and not config.type_vocab_size
    if ignores_segments and names.TOKEN_TYPE_EMBEDDINGS in report.unexpected:
        return f"it has {names.TOKEN_TYPE_EMBEDDINGS}, but the network's type_vocab_size is 0"
    return ""


def advice(report: LoadingReport, on_configuration: str) -> str:
    """What to do about a problem: ``on_configuration`` cannot help if no network was found."""
    if WORD_EMBEDDINGS in report.fresh:
        return "give a file with the variables of one BERT network."
    return f"{on_configuration}, or another checkpoint."


def missing_heads(
    report: LoadingReport, heads: Sequence[Head], allowed_fresh: Sequence[str] = ()
) -> list[Head]:
    """The heads of the network, except allowed ones, that the checkpoint lacks completely."""

    def is_allowed(head: Head) -> bool:
        return all(_is_in_scopes(scope, allowed_fresh) for scope in head.scopes)

    unnamed = [head for head in heads if not is_allowed(head)]
    return [head for head in unnamed if _is_all_fresh(report, head.scopes)]


def _scopes_of(heads: Sequence[Head], report: LoadingReport) -> list[str]:
    """The scopes of the heads, and of variables that are missing along with them."""
    read = [head.only_reader_of for head in heads if head.only_reader_of]
    lacking = [scope for head in heads for scope in head.scopes]
    return [*lacking, *(scope for scope in read if _is_all_fresh(report, [scope]))]


def _is_all_fresh(report: LoadingReport, scopes: Sequence[str]) -> bool:
    """Whether the network has variables in the scopes and the checkpoint has none."""
    found = (*report.restored, *(mismatch.name for mismatch in report.mismatched))
    return any(_is_in_scopes(name, scopes) for name in report.fresh) and not any(
        _is_in_scopes(name, scopes) for name in found
    )


def _is_in_scopes(name: str, scopes: Sequence[str]) -> bool:
    return any(name == scope or name.startswith(f"{scope}/") for scope in scopes)


def _first(names: Sequence[str]) -> str:
    """The first few names and the number of remaining ones."""
    text = ", ".join(names[:_MOST_NAMES_IN_A_MESSAGE])
    more = len(names) - _MOST_NAMES_IN_A_MESSAGE
    return f"{text} and {more} more" if more > 0 else text
