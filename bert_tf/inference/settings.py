"""Which trained model a program uses, and how it computes: settings and flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, command_line, from_flags, optional_file
from bert_tf.config.declared import Settings
from bert_tf.config.policy_file import policy_changes
from bert_tf.config.settings import RunSettings, RuntimeSettings, StartSettings
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.text.tokenizer_files import TokenizerFiles

if TYPE_CHECKING:
    from bert_tf.model.config import BertConfig
    from bert_tf.model.options import ForwardOptions

_Settings = TypeVar("_Settings", bound="InferenceSettings")


@flag_group("Model and precision")
def define_model_flags(precision: str | None = None) -> None:
    """Defines the flags for a command's model and its precision; None is that of its training."""
    define_model_files_flags()
    usual = "" if precision else " (default: that of the model's training)"
    flags.DEFINE_string(
        "precision", precision, f"Precision of products: fp32, bf16, fp16 or auto{usual}."
    )
    flags.DEFINE_string("precision_policy", None, "JSON file: class of operation -> type.")


def define_model_files_flags() -> None:
    """Defines the flags for a command's model."""
    flags.DEFINE_string("model_dir", None, "Output of a training run, or a published model.")
    flags.DEFINE_string("init_checkpoint", None, "Weights to use instead of the model directory's.")
    flags.DEFINE_string("bert_config_file", None, "Architecture to use instead of the directory's.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, instead of the directory's.")
    flags.DEFINE_string("spm_model_file", None, "SentencePiece model, instead of the directory's.")
    flags.DEFINE_bool("do_lower_case", None, "Lower-case the text (default: as the model states).")
    flags.DEFINE_bool("strip_accents", None, "Strip its accents (default: as the model states).")


@flag_group("Model and precision")
def define_native_flag() -> None:
    """Defines --native_ops for commands that only compute on this machine."""
    flags.DEFINE_bool(
        "native_ops",
        None,
        "Use the compiled operations between a layer's matrix products (default: on CPUs, if they "
        "are built).",
    )


def model_from_flags(values: flags.FlagValues) -> CompleteModel:
    """The model that the flags of :func:`define_model_files_flags` name; see :func:`find_model`."""
    return find_model(
        values.model_dir,
        init_checkpoint=values.init_checkpoint,
        bert_config_file=values.bert_config_file,
        tokenizer_files=TokenizerFiles.from_flags(values),
    )


def options_from_flags(
    values: flags.FlagValues, model: CompleteModel, *, native_ops: bool | None
) -> tuple[ForwardOptions, list[str]]:
    """The options that the flags of :func:`define_model_flags` select, and warnings.

    ``native_ops`` is as in :func:`chosen_options`, and errors too. Raises UserError for an invalid
    --precision_policy file.
    """
    changes = policy_changes(values.precision_policy)
    return options_of(
        model, precision=values.precision, native_ops=native_ops, policy_changes=changes
    )


def options_of(
    model: CompleteModel,
    *,
    precision: str | None,
    native_ops: bool | None = None,
    policy_changes: Mapping[str, str] | None = None,
) -> tuple[ForwardOptions, list[str]]:
    """The options for a model, in a precision or else in that of its training; and warnings.

    It is float32 for a model that does not state one. Arguments and errors are as in
    :func:`chosen_options`.
    """
    # Imported here, because defining flags does not need TensorFlow.
    from bert_tf.tuning.hardware import probe_hardware, usable_precision

    stored = model.kept.get("precision")
    kept: Mapping[str, str] = {}
    notes: list[str] = []
    if precision is None:
        precision, kept, notes = usable_precision(model.kept, probe_hardware())
    elif stored is not None and precision not in (stored, "auto"):
        notes = [f"the model was trained with {stored}, not {precision}"]
    options, warnings = chosen_options(
        model.config,
        precision=precision,
        native_ops=native_ops,
        policy_changes=policy_changes or kept,
    )
    return options, [*notes, *warnings]


def chosen_options(
    config: BertConfig,
    *,
    precision: str = "fp32",
    native_ops: bool | None = None,
    policy_changes: Mapping[str, str] | None = None,
) -> tuple[ForwardOptions, list[str]]:
    """The data types and layer implementation for predictions, and warnings.

    Args:
      precision: one of ``precision.PRECISIONS``, or ``auto`` for what is fastest on this kind of
        machine.
      native_ops: True requires native operations, False avoids them, None uses them on CPUs if they
        are built.
      policy_changes: class of operation -> data type, where it differs from the precision's.

    Raises UserError for an unknown precision, for bfloat16 on a processor that does not compute it,
    and if native operations are required but missing.
    """
    # Imported here, because defining flags does not need TensorFlow.
    from bert_tf.ranks.ranks import SingleProcess
    from bert_tf.tuning.arithmetic import choose

    arithmetic = choose(
        config,
        ranks=SingleProcess(),
        precision=precision,
        native_ops=native_ops,
        policy_changes=policy_changes,
    )
    return arithmetic.options, list(arithmetic.warnings)


@dataclasses.dataclass(frozen=True)
class InferenceSettings(Settings):
    """The settings of a run that applies a trained network to files.

    ``bert_config_file`` (if not None) and ``tokenizer_files`` override those stored with the
    weights.
    """

    bert_config_file: Path | None
    tokenizer_files: TokenizerFiles
    run: RunSettings
    runtime: RuntimeSettings


def define_inference_flags(
    define: Definer, *, model: str, without: Iterable[str] = (), **of_run: Mapping[str, Any]
) -> None:
    """Defines the flags of such a run's weights and output.

    ``model`` says what the network is for; ``without`` and ``of_run`` are for ``RunSettings``, as
    in ``Definer.settings``.
    """
    weights = (
        f"{model}: a checkpoint of Google's, NVIDIA's, Hugging Face's or this program's, or its "
        "directory."
    )
    training = ["do_train", "dry_run", "save_checkpoints_steps", "keep_checkpoint_max"]
    define.settings(RunSettings, without=[*training, *without], **of_run)
    define.settings(
        StartSettings,
        without=["resume_from", "reset_step", "allowed_fresh"],
        init_checkpoint={"help_text": weights},
    )


def inference_settings(
    kind: type[_Settings],
    values: flags.FlagValues,
    *,
    of_run: Mapping[str, Any] | None = None,
    **of_task: Any,
) -> _Settings:
    """The settings of such a run, made from its flags, ``of_run`` and ``of_task``.

    Raises UserError for invalid flags.
    """
    return from_flags(
        kind,
        values,
        bert_config_file=optional_file(values, "bert_config_file"),
        tokenizer_files=TokenizerFiles.from_flags(values),
        run=from_flags(RunSettings, values, command=command_line(values), **(of_run or {})),
        runtime=from_flags(RuntimeSettings, values),
        **of_task,
    )
