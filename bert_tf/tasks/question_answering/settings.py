"""The settings of question answering."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, path_setting, setting
from bert_tf.finetune.settings import FinetuningSettings
from bert_tf.tasks.question_answering.scores import AUTO, SCORE_UNITS
from bert_tf.tasks.question_answering.windows import WindowSettings


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
