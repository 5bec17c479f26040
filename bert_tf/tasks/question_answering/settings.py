"""The settings of question answering, and the flags of run_squad.py that they are made from."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, at_least_one, require
from bert_tf.cli.training_flags import define_evaluation_flags, warn_of_ignored
from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, path_setting, setting
from bert_tf.finetune.flags import define_finetuning_flags, finetuning_settings
from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.tasks.question_answering.examples import AUTO, SCORE_UNITS
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

NUM_SPECIAL = 3  # [CLS] and two [SEP]


@dataclasses.dataclass(frozen=True)
class WindowSettings:
    """Lengths and distances in tokens.

    Attributes:
      max_seq_length: maximum length of a sequence, special tokens included.
      doc_stride: distance between the starts of consecutive windows.
      max_query_length: length to which questions are truncated.
    """

    max_seq_length: int = 384
    doc_stride: int = 128
    max_query_length: int = 64

    @property
    def has_room(self) -> bool:
        """Whether a part of the paragraph fits next to the longest question."""
        return self.max_seq_length > self.max_query_length + NUM_SPECIAL

    def validate(self) -> None:
        """Raises UserError for impossible lengths."""
        for name in ("doc_stride", "max_query_length"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name}={getattr(self, name)} must be at least 1.")
        if not self.has_room:
            raise UserError(
                f"--max_seq_length={self.max_seq_length} leaves no room for a paragraph next to "
                f"--max_query_length={self.max_query_length} and {NUM_SPECIAL} special tokens; "
                f"give at least {self.max_query_length + NUM_SPECIAL + 1}."
            )


@dataclasses.dataclass(frozen=True)
class AnswerSettings(Settings):
    """How answers are chosen."""

    n_best_size: int = setting(
        20, "Answers per question in nbest_predictions.json.", bounds=AT_LEAST_ONE
    )
    max_answer_length: int = setting(
        30, "Maximum tokens of an answer.", bounds=AT_LEAST_ONE, of_model=True
    )
    version_2_with_negative: bool = setting(
        False, "Questions may have no answer (SQuAD 2.0).", of_model=True
    )
    null_score_diff_threshold: float = setting(
        0.0,
        "Predict no answer if the null score exceeds the best answer's score by more than this.",
        takes_infinity=True,
        of_model=True,
    )


@dataclasses.dataclass(frozen=True)
class SquadSettings(FinetuningSettings):
    """Fine-tuning and prediction for question answering."""

    train_file: Path | None = path_setting("SQuAD JSON to train on.", flag_of_file="train_file")
    predict_file: Path | None = path_setting("SQuAD JSON to answer.", flag_of_file="predict_file")
    max_predict_questions: int | None = setting(
        None,
        "Answer and score at most this many questions, from the start of --predict_file.",
        kind=int,
        bounds=AT_LEAST_ONE,
    )
    doc_stride: int = setting(
        128,
        "Tokens between the starts of a long context's windows.",
        bounds=AT_LEAST_ONE,
        of_model=True,
    )
    max_query_length: int = setting(
        64,
        "Maximum tokens of a question; longer ones are truncated.",
        bounds=AT_LEAST_ONE,
        of_model=True,
    )
    score_by: str = setting(
        AUTO,
        "What is compared with the true answers: words (SQuAD's rule), characters (MLQA's rule for "
        "Chinese), or auto: characters if the answers are of a language without blanks.",
        choices=SCORE_UNITS,
    )
    tune_threshold: bool = setting(
        False,
        "With --version_2_with_negative: choose the --null_score_diff_threshold with the best F1 "
        "on --predict_file, use it, and store it with the model.",
    )
    answers: AnswerSettings = group(AnswerSettings)

    @property
    def windows(self) -> WindowSettings:
        """The lengths for splitting paragraphs into windows."""
        return WindowSettings(self.max_seq_length, self.doc_stride, self.max_query_length)

    def contradictions(self) -> Iterator[str]:
        """A threshold that is both given and chosen, or has no use."""
        yield from super().contradictions()
        if self.tune_threshold and not self.run.evaluation.do_eval:
            yield "--tune_threshold chooses on the file to answer; add --do_predict."


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
