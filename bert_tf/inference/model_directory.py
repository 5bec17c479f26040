"""A network and its vocabulary, from a model directory or from individual files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.config.policy_file import policy_changes
from bert_tf.model.config import BertConfig, read_config
from bert_tf.model_directory.directory import ModelDirectory, model_files, require_checkpoint
from bert_tf.model_directory.same_model import other_function, other_vocabulary
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, require_file

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions


@dataclasses.dataclass(frozen=True)
class CompleteModel:
    """The parts of a model.

    Attributes:
      checkpoint: a file or directory with the weights; None for random weights.
      config: the network's configuration.
      tokenizer: splits text into the entries of the model's vocabulary.
      tokenizer_files: the files it was loaded from, and its casing.
      notes: sentences about settings of the model directory that are not supported.
    """

    checkpoint: Path | None
    config: BertConfig
    tokenizer: Tokenizer
    tokenizer_files: TokenizerFiles
    notes: tuple[str, ...] = ()

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary with its hashes."""
        return self.tokenizer_files.vocabulary()


def find_model(
    model_dir: PathLike | None = None,
    *,
    init_checkpoint: PathLike | None = None,
    bert_config_file: PathLike | None = None,
    tokenizer_files: TokenizerFiles | None = None,
) -> CompleteModel:
    """Collects a model's parts; files that are given explicitly replace the directory's.

    They must be those that the weights were trained with, as far as that is known.

    Args:
      model_dir: the output directory of a training run, or a published model.
      init_checkpoint, bert_config_file, tokenizer_files: replacements for the directory's files. If
        no casing is given, it is the one that the model states or else that of its vocabulary.

    Raises:
      UserError: a part is missing, malformed, or belongs to a different model than the weights.
    """
    checkpoint = init_checkpoint or model_dir
    if not checkpoint:
        raise UserError("give --model_dir, or --init_checkpoint with the other files of the model.")
    if model_dir:
        require_checkpoint(model_dir, flag="model_dir")
    if init_checkpoint:
        require_checkpoint(init_checkpoint, flag="init_checkpoint")
    if model_dir and not Path(model_dir).is_dir():
        raise UserError(
            f"--model_dir={model_dir} is not a directory; give one, or --init_checkpoint for a "
            "file."
        )
    parts = collect_parts(
        Path(checkpoint),
        model_files(model_dir or checkpoint),
        bert_config_file=bert_config_file,
        tokenizer_files=tokenizer_files or TokenizerFiles(),
    )
    notes = check_same_model(checkpoint, parts.config, parts.vocabulary)
    return dataclasses.replace(parts, notes=(*parts.notes, *notes))


def check_same_model(
    checkpoint: PathLike, config: BertConfig, vocabulary: Vocabulary | None
) -> list[str]:
    """Compares configuration and vocabulary with the files that accompany a checkpoint.

    Returns sentences about harmless differences and about what could not be compared. Raises
    UserError if they are not those that the weights were trained with.
    """
    files = model_files(checkpoint)
    problem, notes = other_function(files, config)
    if not problem:
        problem, unknown = other_vocabulary(files, vocabulary)
        notes += unknown
    if problem:
        raise UserError(
            f"{checkpoint} cannot be used: {problem}; give the one it was trained with, or "
            "correct the wrong file."
        )
    return notes


def check_vocabulary_fits(tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raises UserError if a vocabulary has more entries than the network has word embeddings."""
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} entries and the model "
            f"{config.vocab_size}; give the vocabulary that the model was trained with."
        )


def collect_parts(
    checkpoint: Path,
    files: ModelDirectory,
    *,
    bert_config_file: PathLike | None,
    tokenizer_files: TokenizerFiles,
) -> CompleteModel:
    """As :func:`find_model`, from the files that accompany a model and without comparing them."""
    config, notes = files.config, files.notes
    if bert_config_file:
        config, config_notes = read_config(require_file(bert_config_file, flag="bert_config_file"))
        notes = (*notes, *config_notes)
    if config is None:
        raise UserError(f"{checkpoint} comes without a bert_config.json; give --bert_config_file.")
    tokenizer_files = tokenizer_files.with_vocabulary_of(files.tokenizer_files)
    if not tokenizer_files.file:
        raise UserError(
            f"{checkpoint} comes without a vocab.txt or spm.model; give --vocab_file or "
            "--spm_model_file."
        )
    tokenizer_files = tokenizer_files.with_casing(files.tokenizer_files.do_lower_case)
    tokenizer = tokenizer_files.load()
    check_vocabulary_fits(tokenizer, config)
    return CompleteModel(
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        tokenizer_files=tokenizer_files,
        notes=notes,
    )


@flag_group("Model and precision")
def define_model_flags() -> None:
    """Defines the flags for the model of a command and its precision."""
    define_model_files_flags()
    flags.DEFINE_string("precision", "fp32", "Precision of products: fp32, bf16, fp16 or auto.")
    flags.DEFINE_string("precision_policy", None, "JSON file: class of operation -> type.")


def define_model_files_flags() -> None:
    """Defines the flags for the model of a command."""
    flags.DEFINE_string("model_dir", None, "Output of a training run, or a published model.")
    flags.DEFINE_string("init_checkpoint", None, "Weights to use instead of the model directory's.")
    flags.DEFINE_string("bert_config_file", None, "Architecture to use instead of the directory's.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, instead of the directory's.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model, instead of the directory's.")
    flags.DEFINE_bool("do_lower_case", None, "Lower-case the text, overriding the model's casing.")


def model_from_flags(values: flags.FlagValues) -> CompleteModel:
    """The model that the flags of :func:`define_model_files_flags` name; see :func:`find_model`."""
    return find_model(
        values.model_dir,
        init_checkpoint=values.init_checkpoint,
        bert_config_file=values.bert_config_file,
        tokenizer_files=TokenizerFiles.from_flags(values),
    )


def options_from_flags(
    values: flags.FlagValues,
    config: BertConfig,
    *,
    native_ops: bool | None,
    sequences: int,
    length: int,
) -> tuple[ForwardOptions, list[str]]:
    """The options selected by the flags of :func:`define_model_flags`, and warnings.

    ``sequences`` x ``length`` is the largest batch, ``native_ops`` as in
    ``arithmetic.measured_options``. Raises UserError for an unknown precision or an invalid
    --precision_policy file.
    """
    changes = policy_changes(values.precision_policy)
    # Imported here, so that errors in the file are reported before TensorFlow starts.
    from bert_tf.inference.arithmetic import measured_options

    return measured_options(
        config,
        precision=values.precision,
        native_ops=native_ops,
        policy_changes=changes,
        sequences=sequences,
        length=length,
    )
