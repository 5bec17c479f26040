"""The flags of run_squad.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, at_least_one, require
from bert_tf.cli.training_flags import define_evaluation_flags, warn_of_ignored
from bert_tf.finetune.flags import define_finetuning_flags, finetuning_settings
from bert_tf.tasks.question_answering.settings import AnswerSettings, SquadSettings
from bert_tf.util.errors import UserError

# NVIDIA's flags that have no effect here: a run scores its answers itself, and a separate command
# exports models.
_IGNORED = {
    "eval_script": str,
    "use_trt": bool,
    "export_triton": bool,
    "triton_model_name": str,
    "triton_model_version": int,
    "triton_server_url": str,
    "triton_model_overwrite": bool,
    "triton_max_batch_size": int,
    "triton_dyn_batching_delay": float,
    "triton_engine_count": int,
}


def define_squad_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_squad.py."""
    define = Definer(values)
    define_finetuning_flags(
        define,
        _define_squad_flags,
        examples="windows",
        label_flag="alpha_squad",  # Hugging Face's name
        max_seq_length={
            "default": 384,
            "help_text": "Maximum number of tokens in question and context together.",
        },
        length_buckets=True,
    )
    _define_ignored_flags(define)


@flag_group("Ignored flags of other scripts")
def _define_ignored_flags(define: Definer) -> None:
    define.ignored(_IGNORED, "this works differently here than in NVIDIA's scripts")
    define.per_host("eval_script")


@flag_group("Questions and answers")
def _define_squad_flags(define: Definer) -> None:
    define.settings(SquadSettings)
    define_evaluation_flags(
        define,
        without=["max_eval_steps"],
        do_eval={
            "flag": "do_predict",
            "help_text": "Answer --predict_file, and score questions with known answers.",
        },
        eval_batch_size={
            "flag": "predict_batch_size",
            "help_text": "Sequences per prediction batch and rank.",
        },
    )
    define.integer(
        "num_eval_iterations",
        None,
        "NVIDIA's form of --max_predict_questions, as a number of --predict_batch_size batches.",
    )
    define.settings(AnswerSettings)


def squad_settings(values: flags.FlagValues) -> SquadSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    warn_of_ignored(values, also=_IGNORED)
    if any(values[name].present for name in _IGNORED):
        from bert_tf.compat.nvidia_defaults import SQUAD, adopt_and_say

        adopt_and_say(values, SQUAD)
    require(values, "output_dir")
    if values.do_train:
        require(values, "train_file")
    if values.do_predict:
        require(values, "predict_file")
    return finetuning_settings(
        SquadSettings,
        values,
        does=["do_train", "do_predict"],
        max_predict_questions=_max_predict_questions(values),
    )


def _max_predict_questions(values: flags.FlagValues) -> int | None:
    names = ("max_predict_questions", "num_eval_iterations")
    at_least_one(values, "num_eval_iterations")
    questions, batches = (values[name].value for name in names)
    if questions is not None and batches is not None:
        raise UserError(
            "--max_predict_questions and --num_eval_iterations set the same number; give one."
        )
    return batches * values.predict_batch_size if batches is not None else questions
