"""The flags of run_squad.py and the settings made from them."""

from __future__ import annotations

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.training_flags import (
    Definer,
    at_least_one,
    optional_file,
    require,
    warn_of_ignored,
)
from bert_tf.compat.nvidia_defaults import SQUAD, adopt_and_say
from bert_tf.config.settings import SquadSettings
from bert_tf.tasks.distillation.flags import teacher_settings
from bert_tf.tasks.finetuning.flags import (
    define_finetuning_flags,
    finetuning_run_settings,
    finetuning_settings,
)
from bert_tf.util.errors import UserError

# NVIDIA's flags for what works differently here: the run scores answers itself, and a separate
# command exports models.
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

# Hugging Face's name of the weight of labels beside a teacher.
_LABEL_FLAG = "alpha_squad"

_COUNTS = ("doc_stride", "max_query_length", "n_best_size", "max_answer_length")


def define_squad_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_squad.py."""
    define = Definer(values)
    define_finetuning_flags(define, _define_squad_flags, examples="windows", label_flag=_LABEL_FLAG)
    _define_ignored_flags(define)


@flag_group("Ignored flags of other scripts")
def _define_ignored_flags(define: Definer) -> None:
    define.ignored(_IGNORED, "this works differently here than in NVIDIA's scripts")


@flag_group("Questions and answers")
def _define_squad_flags(define: Definer) -> None:
    define.string("train_file", None, "SQuAD JSON to train on.")
    define.string("predict_file", None, "SQuAD JSON to answer.")
    define.boolean(
        "do_predict", False, "Answer --predict_file, and score questions with known answers."
    )
    define.integer("predict_batch_size", 8, "Sequences per prediction batch and rank.")
    define.integer(
        "max_predict_questions",
        None,
        "Answer and score at most this many questions, the first ones of --predict_file.",
    )
    define.integer(
        "num_eval_iterations",
        None,
        "NVIDIA's form of --max_predict_questions, in batches of --predict_batch_size.",
    )
    define.integer("max_seq_length", 384, "Maximum tokens of question and context together.")
    define.integer("doc_stride", 128, "Tokens between the starts of a long context's windows.")
    define.integer("max_query_length", 64, "Maximum tokens of a question; the rest is cut off.")
    define.integer("n_best_size", 20, "Answers per question in nbest_predictions.json.")
    define.integer("max_answer_length", 30, "Maximum tokens of an answer.")
    define.boolean("version_2_with_negative", False, "Questions may have no answer (SQuAD 2.0).")
    define.number_or_infinity(
        "null_score_diff_threshold",
        0.0,
        "Predict no answer if the null score exceeds the best answer's score by more than this.",
    )


def squad_settings(values: flags.FlagValues) -> SquadSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    warn_of_ignored(values, also=_IGNORED)
    adopt_and_say(values, SQUAD)
    require(values, "output_dir")
    for name in _COUNTS:
        at_least_one(values, name)
    if values.do_train:
        require(values, "train_file")
    if values.do_predict:
        require(values, "predict_file")
    run = finetuning_run_settings(
        values,
        do_eval="do_predict",
        eval_batch_size="predict_batch_size",
        file_flags=("train_file", "predict_file", "eval_script"),
    )
    return finetuning_settings(
        SquadSettings,
        values,
        run,
        train_file=optional_file(values, "train_file"),
        predict_file=optional_file(values, "predict_file"),
        max_predict_questions=_max_predict_questions(values),
        distillation=teacher_settings(values, label_flag=_LABEL_FLAG),
    )


def _max_predict_questions(values: flags.FlagValues) -> int | None:
    names = ("max_predict_questions", "num_eval_iterations")
    for name in names:
        at_least_one(values, name)
    questions, batches = (values[name].value for name in names)
    if questions is not None and batches is not None:
        raise UserError(
            "--max_predict_questions and --num_eval_iterations set the same number; give one."
        )
    return batches * values.predict_batch_size if batches is not None else questions
