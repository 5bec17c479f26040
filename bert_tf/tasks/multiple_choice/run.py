"""Multiple choice: fine-tuning on SWAG, RACE or own questions, scores and predictions."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np

from bert_tf.finetune import run as finetuning
from bert_tf.finetune.classes import check_trained_on, read_files
from bert_tf.finetune.report import Report, worst_examples
from bert_tf.finetune.run import as_stored
from bert_tf.finetune.scores import softmax
from bert_tf.finetune.settings import TRAIN
from bert_tf.finetune.task import Predicted, SequenceTask
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.classes import CHOICE, Classes
from bert_tf.records.layouts import CHOICE_PREDICTION, CHOICE_TRAINING
from bert_tf.records.sequences import SequenceStage
from bert_tf.tasks.multiple_choice.files import (
    VERSION,
    ChoiceFile,
    QuestionEncoder,
    check_length,
    find_split,
    read_questions,
)
from bert_tf.tasks.multiple_choice.flags import ChoiceSettings
from bert_tf.tasks.multiple_choice.task import ChoiceTask
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.evaluation import Results
from bert_tf.train.run import Run
from bert_tf.util.files import atomic_open
from bert_tf.util.page import Example


def run(settings: ChoiceSettings) -> Results | None:
    """Trains, evaluates and predicts as the settings say (see :func:`bert_tf.finetune.run.run`)."""
    return finetuning.run(MultipleChoice.open, settings)


@dataclasses.dataclass(frozen=True)
class MultipleChoice(SequenceTask):
    """One of several choices for each question.

    The results are ``eval_accuracy`` and ``eval_loss``, the mean cross entropy over the choices of
    a question.
    """

    settings: ChoiceSettings
    files: Mapping[str, ChoiceFile]

    name: ClassVar[str] = "multiple choice"
    classes: ClassVar[Classes] = Classes(CHOICE)
    predictions_name: ClassVar[str] = "predictions.jsonl"
    metrics: ClassVar[Sequence[str]] = ("eval_accuracy",)
    unit: ClassVar[str] = "questions"

    @classmethod
    def open(cls, settings: ChoiceSettings, run: Run) -> MultipleChoice:
        """Reads the files of a run; raises UserError for bad input."""
        settings = as_stored(settings, run)
        check_trained_on(run, cls.name)
        return cls(settings, read_files(settings, find=find_split, read=read_questions))

    def network(self, config: BertConfig) -> ChoiceTask:
        """The network of a head with one output."""
        return ChoiceTask(config)

    def stage(self, kind: str, tokenizer_files: TokenizerFiles) -> SequenceStage:
        """One record for each question; only training needs labels."""
        file, length, training = self.files[kind], self.settings.max_seq_length, kind == TRAIN
        check_length(length)
        parameters = {"max_seq_length": length, "num_choices": file.num_choices}
        return SequenceStage(
            "choice_features",
            file.paths,
            tokenizer_files,
            {**parameters, "training": training},
            CHOICE_TRAINING if training else CHOICE_PREDICTION,
            VERSION,
            file.questions,
            QuestionEncoder(length, file.num_choices),
            unit="questions",
            total=len(file.questions),
            items_per_batch=64,
            total_per_worker=2_000,
            num_workers=self.settings.num_workers,
        )

    def decode(self, predicted: Predicted) -> list[np.ndarray]:
        """The probabilities of each question's choices."""
        rows = zip(predicted.file.questions, predicted.outputs["scores"])
        return [softmax(scores[: len(question.choices)]) for question, scores in rows]

    def score(
        self, predicted: Predicted, answers: Sequence[np.ndarray], output_dir: Path
    ) -> Results:
        """The accuracy and the loss; writes ``report.html``."""
        questions = predicted.file.questions
        of_labels = np.array([own[q.label] for q, own in zip(questions, answers)])
        is_right = [own.argmax() == q.label for q, own in zip(questions, answers)]
        least = np.finfo(np.float64).tiny  # so that the loss is finite
        results = {
            "eval_accuracy": float(np.mean(is_right)),
            "eval_loss": float(-np.log(np.maximum(of_labels, least)).mean()),
        }
        file = predicted.file
        Report(
            f"{self.name}: {file.path.name}",
            results,
            {"eval_accuracy": "accuracy"},
            {"file": file.path, "questions": f"{len(questions):,}"},
            worst_examples(
                "Questions", (-of_labels).tolist(), lambda n: _example(file, answers[n], n)
            ),
        ).write(output_dir)
        return results

    def write(self, predicted: Predicted, answers: Sequence[np.ndarray], output_dir: Path) -> None:
        """Writes a JSON line for each question, in their order."""
        with atomic_open(output_dir / self.predictions_name) as output:
            for question, own in zip(predicted.file.questions, answers):
                number = int(own.argmax())
                values = {"label": number, "choice": question.choices[number]}
                line = json.dumps({**values, "probabilities": own.tolist()}, ensure_ascii=False)
                output.write(f"{line}\n")


def _example(file: ChoiceFile, probabilities: np.ndarray, number: int) -> Example:
    """A question of the report with its right choice, and the probabilities of all."""
    question, chosen = file.questions[number], int(probabilities.argmax())
    right = question.choices[question.label or 0]
    order = np.argsort(-probabilities, kind="stable")
    return Example(
        str(number + 1),
        question.question or f"Question {number + 1:,}",
        question.context,
        marks={},
        answers={"true": [right], "predicted": [question.choices[chosen]]},
        facts=[f"label {question.label}, predicted {chosen}"],
        filters={"Outcome": "right" if chosen == question.label else "wrong"},
        candidates=[(question.choices[n], float(probabilities[n])) for n in order],
    )
