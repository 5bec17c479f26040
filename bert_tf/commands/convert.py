"""Converts between all checkpoint formats, bit for bit.

    python -m bert_tf.commands.convert --input=uncased_L-12_H-768_A-12 \\
        --output_dir=converted --format=huggingface
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from absl import flags
from safetensors import SafetensorError

from bert_tf.checkpoint.formats import ORIGINS, Source, open_source
from bert_tf.checkpoint.sentence_modules import read_sentence_modules
from bert_tf.cli.flags import flag_group, run_command
from bert_tf.model_directory.complete import other_model
from bert_tf.model_directory.directory import ModelDirectory, require_checkpoint
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util import environment
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError, first_line
from bert_tf.util.files import PathLike, atomic_directory


def convert(
    source: Source,
    output_dir: PathLike,
    target: str,
    *,
    include_optimizer: bool = False,
    generator: bool = False,
    card: bool = True,
    add_files: Callable[[Path], None] | None = None,
) -> list[str]:
    """Writes a checkpoint as a model directory; returns the lines of a report.

    Weights that no network here has are left out and named in the report. Float32 values do not
    change. If only the hash of the vocabulary is known, it is put into ``model.json``.

    Args:
      source: the checkpoint, with the configuration to write.
      output_dir: a directory that does not exist or is empty; it appears only when complete.
      target: a key of ``ORIGINS``.
      include_optimizer: also write optimizer slots, counters and the like, unchanged.
      generator: write the generator of a checkpoint of run_electra.py rather than its other
        network; only for Hugging Face's format, since a generator is not a BERT model.
      card: add a model card to a Hugging Face directory. It describes the run that made the
        weights, so they must not have been changed.
      add_files: adds files to the directory before it appears.

    Raises UserError if variables are missing or their shapes contradict the configuration, the
    directory is not empty or cannot be written, or the format cannot represent something.
    """
    from bert_tf.checkpoint.loading import advice, compare_source, describe_problem
    from bert_tf.checkpoint.writing import write_model

    network, shapes, others = _network(source, target, generator=generator)
    report = compare_source(network, shapes)
    problem = describe_problem(report, config=network.config)
    if problem:
        raise UserError(
            f"cannot convert {network.path}: {problem}; "
            + advice(report, "give the --bert_config_file that it was made with")
        )
    if include_optimizer and not report.run_state:
        raise UserError(
            f"--include_optimizer: {network.path} has no optimizer state; leave the flag out."
        )
    kept = report.run_state if include_optimizer else ()
    with _appearing_directory(Path(output_dir)) as directory:
        notes = write_model(
            directory,
            target,
            network,
            {name: network.read(name) for name in report.restored},
            run_state={name: network.read_unchanged(name) for name in kept},
        )
        if card and target == "huggingface":
            from bert_tf.checkpoint.huggingface import write_model_card

            write_model_card(directory, network, name=Path(output_dir).absolute().name)
        if add_files is not None:
            add_files(directory)
        if not generator:
            notes += _keep_sentence_modules(source, directory)
        written = sorted(path.name for path in directory.iterdir())
    fate = "kept" if kept else "left out (--include_optimizer keeps them)"
    lines = [*report.summary("converted", state=""), *others]
    lines += [f"{len(report.run_state)} of a run's state, {fate}"] if report.run_state else []
    return [*lines, *notes, f"{output_dir} ({ORIGINS[target]}): {', '.join(written)}"]


def _keep_sentence_modules(source: Source, directory: Path) -> list[str]:
    """Writes what the source's directory says on vectors of texts; a note where it is left out."""
    try:
        found = read_sentence_modules(source.path)
    except UserError as error:
        return [f"warning: {error} What is said there on vectors of texts is left out"]
    if found is not None:
        found.write(directory)
    return []


def without_flags(lines: Iterable[str]) -> list[str]:
    """The lines of a report, for other commands: without the flags of this one."""
    return [line.partition(" (--")[0] for line in lines]


def _network(
    source: Source, target: str, *, generator: bool
) -> tuple[Source, dict[str, tuple[int, ...]], list[str]]:
    """The network to convert, its expected shapes, and report lines on the other network."""
    from bert_tf.checkpoint.derived import generator_of, generator_shapes, without_generator
    from bert_tf.checkpoint.writing import network_shapes

    if not generator:
        source, others = without_generator(source)
        return (
            source,
            network_shapes(source.config, source.shapes, labels=source.files.labels),
            others,
        )
    if target != "huggingface":
        raise UserError(
            f"--generator: --format={target} cannot hold a generator, whose embeddings are the "
            "discriminator's; give --format=huggingface."
        )
    source = generator_of(source)
    return source, generator_shapes(source), []


def check_new_directory(path: PathLike) -> None:
    """Raises UserError unless ``path`` does not exist or is an empty directory."""
    path = Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"--output_dir={path} exists and is not empty; choose another directory.")


@contextlib.contextmanager
def _appearing_directory(path: Path) -> Iterator[Path]:
    """Yields a temporary directory that is renamed to ``path`` when the block succeeds."""
    check_new_directory(path)
    path = path.absolute()
    workshop = path.with_name(f".{path.name}.partial")
    try:
        with hold_directory(workshop, flag="output_dir"):
            check_new_directory(path)  # another process may have been faster
            with atomic_directory(path, workshop) as temporary:
                temporary.mkdir()
                yield temporary
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise UserError(
            f"--output_dir: cannot write {path} ({reason}); choose another directory."
        ) from error
    finally:
        with contextlib.suppress(OSError):  # none, or in use by another process
            workshop.rmdir()


def _with_given_files(source: Source, given: ModelDirectory) -> Source:
    """The source, with the user's files in place of those stored with the weights.

    Raises UserError if they do not belong to the same model.
    """
    problem, notes = other_model(
        source.files, config=given.config, vocabulary=given.tokenizer_files.vocabulary()
    )
    if problem:
        raise UserError(
            f"cannot convert {source.path}: {problem}; give the one that it was trained with, or "
            "leave the flag out."
        )
    found = source.files.tokenizer_files
    chosen = given.tokenizer_files.with_vocabulary_of(found)
    lower_case, strip_accents = chosen.do_lower_case, chosen.strip_accents
    files = dataclasses.replace(
        source.files,
        config=given.config.with_explicit_gelu() if given.config else source.files.config,
        config_file=given.config_file or source.files.config_file,
        tokenizer_files=dataclasses.replace(
            chosen,
            do_lower_case=found.do_lower_case if lower_case is None else lower_case,
            strip_accents=found.strip_accents if strip_accents is None else strip_accents,
        ),
    )
    return dataclasses.replace(source, files=files, notes=(*source.notes, *given.notes, *notes))


@flag_group("Checkpoint and model files")
def define_flags() -> None:
    """Defines the command's flags."""
    flags.DEFINE_string(
        "input", None, "Checkpoint of any format: directory or file.", required=True
    )
    flags.DEFINE_string("output_dir", None, "Directory to write; new or empty.", required=True)
    flags.DEFINE_enum("format", None, list(ORIGINS), "Format to write.", required=True)
    flags.DEFINE_string("bert_config_file", None, "Architecture, if not stored with the weights.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, if not stored with the weights.")
    flags.DEFINE_string(
        "spm_model_file", None, "SentencePiece model, if not stored with the weights."
    )
    flags.DEFINE_bool("do_lower_case", None, "Whether the vocabulary is lower-cased.")
    flags.DEFINE_bool("strip_accents", None, "Whether it has no accents (default: as lower-cased).")
    flags.DEFINE_bool("include_optimizer", False, "Keep optimizer slots and counters of training.")
    flags.DEFINE_bool(
        "generator", False, "Convert the generator of run_electra.py's output, not its model."
    )


def main(_: object) -> None:
    """Converts a checkpoint and prints the report."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False)
    given = ModelDirectory(tokenizer_files=TokenizerFiles.from_flags(values))
    given = given.with_config_file(values.bert_config_file)
    require_checkpoint(values.input, flag="input")
    source = _with_given_files(open_source(values.input), given)
    lines = convert(
        source,
        values.output_dir,
        values.format,
        include_optimizer=values.include_optimizer,
        generator=values.generator,
    )
    for line in lines:
        print(line)


run = functools.partial(run_command, main, define_flags)


if __name__ == "__main__":
    run()
