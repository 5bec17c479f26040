"""What a fine-tuning task alone knows: its files, its network, and what predictions mean."""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from bert_tf.finetune.settings import EVAL, PREDICT
from bert_tf.model.config import BertConfig
from bert_tf.model_directory.classes import Classes
from bert_tf.records.sequences import SequenceRecords, SequenceStage
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.train.evaluation import Results
from bert_tf.train.job import Job
from bert_tf.train.run import Run
from bert_tf.util.digest import EVAL_DIGEST_KEY, PREDICT_DIGEST_KEY

if TYPE_CHECKING:
    from bert_tf.tasks.distillation.task import DistilledTask

Fitted = TypeVar("Fitted", bound="SequenceTask")


class Predicted(NamedTuple):
    """The network's predictions for a file.

    Attributes:
      file: its contents, as the task read them.
      records: its records.
      tokenizer_files: the tokenizer that they were made with.
      outputs: the predictions, [N, ...] for the N records, in their order.
    """

    file: Any
    records: SequenceRecords
    tokenizer_files: TokenizerFiles
    outputs: Mapping[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class SequenceTask(abc.ABC):
    """A task of a run, whose files have been read.

    Attributes:
      settings: what the user requested, with what is stored with the model.
      files: the contents of the files that the run uses, by kind; each has a ``path``.
      evaluated: the kind of the file that is scored.
      predicted: the kind of the file that is predicted once, at the end; None for none.
      digests: names, for messages, of the ledger's digests of these files.
      unit: what progress lines call a record.
      digits: the number of decimals of metrics in messages.
    """

    settings: Any
    files: Mapping[str, Any]

    evaluated: ClassVar[str] = EVAL
    predicted: ClassVar[str | None] = PREDICT
    digests: ClassVar[Mapping[str, str]] = {
        EVAL_DIGEST_KEY: "development set",
        PREDICT_DIGEST_KEY: "file to predict",
    }
    unit: ClassVar[str] = "sequences"
    digits: ClassVar[int] = 4

    @property
    def name(self) -> str | None:
        """The name of the training data in the ledger; None for none."""
        return None

    @property
    def classes(self) -> Classes | None:
        """What the outputs of its head mean, to be stored with the model."""
        return None

    @property
    def chosen_on(self) -> str | None:
        """The records on which thresholds of the classes were chosen, likewise."""
        return None

    @property
    def predictions_name(self) -> str:
        """The file with the predictions of ``predicted``."""
        raise NotImplementedError

    @property
    def metric(self) -> str:
        """The metric by which checkpoints are compared."""
        return self.metrics[0]

    @property
    @abc.abstractmethod
    def metrics(self) -> Sequence[str]:
        """The results to show and to compare; none if the file has nothing to compare with."""

    @property
    def rate_factors(self) -> tuple[tuple[str, float], ...]:
        """Factors of the learning rate of its head's variables (``OptimizationSettings``)."""
        return ()

    @property
    def ledger(self) -> Mapping[str, Mapping[str, Any]]:
        """Further sections of the run's ledger."""
        return {}

    @property
    def lists(self) -> Mapping[str, Sequence[Any]]:
        """JSON files to write to the output directory: name to content."""
        return {}

    def entries(self, records: Mapping[str, SequenceRecords]) -> Mapping[str, Any]:
        """The ledger's last entries on the data; ``records`` are those of each file."""
        del records
        return {}

    def fitted(self: Fitted, run: Run, max_seq_length: int) -> Fitted:
        """The task with sequences that fit the network.

        Raises UserError for impossible lengths.
        """
        del run
        settings = dataclasses.replace(self.settings, max_seq_length=max_seq_length)
        return dataclasses.replace(self, settings=settings)

    @abc.abstractmethod
    def network(self, config: BertConfig) -> DistilledTask:
        """The network to train; ``config`` is the student's or the teacher's."""

    @abc.abstractmethod
    def stage(self, kind: str, tokenizer_files: TokenizerFiles) -> SequenceStage:
        """The stage that makes the records of a file. Raises UserError for impossible lengths."""

    @abc.abstractmethod
    def decode(self, predicted: Predicted) -> Any:
        """What the network's predictions say about the items of a file."""

    @abc.abstractmethod
    def score(self, predicted: Predicted, answers: Any, output_dir: Path) -> Results:
        """Scores what :meth:`decode` returned; may write files to ``output_dir``."""

    def write(self, predicted: Predicted, answers: Any, output_dir: Path) -> None:
        """Writes what :meth:`decode` returned for the file that is predicted."""
        raise NotImplementedError

    def about_predictions(self, output_dir: Path) -> Iterator[str]:
        """Sentences that tell where the predictions are."""
        path = self.files[PREDICT].path
        yield f"the predictions of {path} are in {output_dir / self.predictions_name}"

    def conclude(self, job: Job, results: Results) -> None:
        """Reports an executed job and its results on rank 0."""
        # Imported here so that a run without an evaluation does not load it.
        from bert_tf.finetune.report import REPORT_NAME

        del results
        job.run.message(f"the report is {job.settings.output_dir / REPORT_NAME}")
