"""A network and its vocabulary, from a model directory or its single files."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bert_tf.checkpoint.model_files import ModelFiles, model_files, require_checkpoint
from bert_tf.checkpoint.same_model import other_function, other_vocabulary
from bert_tf.command_line import flag_group
from bert_tf.config.bert_config import BertConfig, read_config
from bert_tf.config.policy_file import policy_changes
from bert_tf.errors import UserError
from bert_tf.files import PathLike, require_file
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.tokenizer_files import TokenizerFiles, Vocabulary

if TYPE_CHECKING:
    from bert_tf.model.options import ForwardOptions


@dataclasses.dataclass(frozen=True)
class ModelParts:
    """What a model is made of.

    Attributes:
      checkpoint: a file or a directory with the weights; None for random ones.
      config: the network's.
      tokenizer: its vocabulary.
      tokenizer_files: where that was read, with its casing.
      notes: sentences on settings of the model directory that are not followed.
    """

    checkpoint: Path | None
    config: BertConfig
    tokenizer: Tokenizer
    tokenizer_files: TokenizerFiles
    notes: tuple[str, ...] = ()

    @property
    def vocabulary(self) -> Vocabulary:
        """The vocabulary by its hash."""
        return self.tokenizer_files.vocabulary()


def find_model(
    model_dir: PathLike | None = None,
    *,
    init_checkpoint: PathLike | None = None,
    bert_config_file: PathLike | None = None,
    tokenizer_files: TokenizerFiles | None = None,
) -> ModelParts:
    """Collects a model's parts; what is given by itself is taken instead of the directory's.

    It must be what the weights were trained with, wherever that is known.

    Args:
      model_dir: what a training left, or a published model.
      init_checkpoint, bert_config_file, tokenizer_files: instead of the directory's. Without a
        casing, what the model says or, where it says nothing, its vocabulary shows.

    Raises:
      UserError: a part is missing, malformed, or of another model than the weights.
    """
    checkpoint = init_checkpoint or model_dir
    if not checkpoint:
        raise UserError("give --model_dir, or --init_checkpoint and the files beside it.")
    if model_dir:
        require_checkpoint(model_dir, flag="model_dir")
    if init_checkpoint:
        require_checkpoint(init_checkpoint, flag="init_checkpoint")
    if model_dir and not Path(model_dir).is_dir():
        raise UserError(
            f"--model_dir={model_dir} is no directory; give one, or --init_checkpoint for a file."
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
    """Compares configuration and vocabulary with what stands beside a checkpoint.

    Returns sentences on what differs without harm, and on what could not be compared. Raises
    UserError where they are not those of the weights.
    """
    beside = model_files(checkpoint)
    problem, notes = other_function(beside, config)
    if not problem:
        problem, unknown = other_vocabulary(beside, vocabulary)
        notes += unknown
    if problem:
        raise UserError(
            f"{checkpoint} cannot be used: {problem}; give what it was trained with, or correct "
            "the file that is wrong."
        )
    return notes


def check_vocabulary_fits(tokenizer: Tokenizer, config: BertConfig) -> None:
    """Raises UserError for a vocabulary with more entries than the network's table has rows."""
    if tokenizer.vocab_size > config.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} entries and the model "
            f"{config.vocab_size}; give the vocabulary that the model was trained with."
        )


def collect_parts(
    checkpoint: Path,
    beside: ModelFiles,
    *,
    bert_config_file: PathLike | None,
    tokenizer_files: TokenizerFiles,
) -> ModelParts:
    """As :func:`find_model`, from what stands beside a model and without comparing them."""
    config, notes = beside.config, beside.notes
    if bert_config_file:
        config, of_file = read_config(require_file(bert_config_file, flag="bert_config_file"))
        notes = (*notes, *of_file)
    if config is None:
        raise UserError(f"{checkpoint} has no bert_config.json beside it; give --bert_config_file.")
    files = tokenizer_files.with_vocabulary_of(beside.tokenizer_files)
    if not files.file:
        raise UserError(f"{checkpoint} has no vocab.txt beside it; give --vocab_file.")
    files = files.with_casing(beside.tokenizer_files.do_lower_case)
    tokenizer = files.load()
    check_vocabulary_fits(tokenizer, config)
    return ModelParts(
        checkpoint=checkpoint,
        config=config,
        tokenizer=tokenizer,
        tokenizer_files=files,
        notes=notes,
    )


@flag_group("Model and precision")
def define_model_flags() -> None:
    """Defines the flags that say which model a command takes, and its precision."""
    define_model_files_flags()
    flags.DEFINE_string("precision", "fp32", "Precision of products: fp32, bf16, fp16 or auto.")
    flags.DEFINE_string("precision_policy", None, "JSON file: class of operation -> type.")


def define_model_files_flags() -> None:
    """Defines the flags that say which model a command takes."""
    flags.DEFINE_string("model_dir", None, "What a training left, or a published model.")
    flags.DEFINE_string("init_checkpoint", None, "Weights, instead of the model directory's.")
    flags.DEFINE_string("bert_config_file", None, "Architecture, instead of the directory's.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, instead of the directory's.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model, instead of the directory's.")
    flags.DEFINE_bool("do_lower_case", None, "Lower-case the text, instead of what the model says.")


def model_from_flags(values: flags.FlagValues) -> ModelParts:
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
    """What the flags of :func:`define_model_flags` ask for on this machine, and warnings of it.

    ``sequences`` x ``length`` is the largest batch, ``native_ops`` as in
    ``arithmetic.measured_options``. Raises UserError for an unknown precision and for a file that
    is none of precision.
    """
    changes = policy_changes(values.precision_policy)
    # Imported here: what is wrong with the file is said before TensorFlow starts.
    from bert_tf.inference.arithmetic import measured_options

    return measured_options(
        config,
        precision=values.precision,
        native_ops=native_ops,
        policy_changes=changes,
        sequences=sequences,
        length=length,
    )
