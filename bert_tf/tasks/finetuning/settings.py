"""Settings shared by the fine-tuning tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bert_tf.config.declared import (
    AT_LEAST_ONE,
    NOT_NEGATIVE,
    Settings,
    group,
    path_setting,
    setting,
)
from bert_tf.config.settings import OptimizationSettings, RunSettings, RuntimeSettings
from bert_tf.tasks.distillation.settings import DistillationSettings
from bert_tf.tasks.finetuning.layer_rates import LayerSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError


def _seeds(text: str) -> tuple[int, ...]:
    try:
        seeds = tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        raise UserError(f"--seeds={text} must be comma-separated whole numbers.") from None
    if len(set(seeds)) != len(seeds):
        raise UserError(f"--seeds={text} names a seed twice; give each run a different one.")
    return seeds


# Devlin et al. 2019, appendix A.3.
_BERT_SEARCH = "learning_rate=5e-5,3e-5,2e-5;train_batch_size=16,32;num_train_epochs=2,3,4"


def _search(text: str) -> dict[str, tuple[str, ...]]:
    """Flag -> values, of ``flag=value,value;flag=value,value``."""
    found: dict[str, tuple[str, ...]] = {}
    for part in (_BERT_SEARCH if text == "bert" else text).split(";") if text else ():
        flag, _, values = (piece.strip() for piece in part.partition("="))
        flag, given = flag.lstrip("-"), tuple(value.strip() for value in values.split(","))
        if not flag or not all(given) or flag in found or len(set(given)) < len(given):
            raise UserError(
                f"--search={text}: {part.strip() or 'an empty part'} must be a flag with different "
                "values, such as learning_rate=2e-5,3e-5; flags are separated by semicolons."
            )
        found[flag] = given
    return found


@dataclasses.dataclass(frozen=True)
class FinetuningSettings(Settings):
    """The settings that all fine-tuning runs share.

    Attributes:
      bert_config_file: None uses the file stored with the weights that the run starts from.
      tokenizer_files: override the files stored with these weights.
      seeds: empty for a single run with ``run.seed``.
      distillation: None to train without a teacher.
    """

    bert_config_file: Path | None
    tokenizer_files: TokenizerFiles
    run: RunSettings
    optimization: OptimizationSettings
    runtime: RuntimeSettings
    distillation: DistillationSettings | None
    features_dir: Path = setting(
        ..., "Directory of the records (output_dir/features).", kind=Path, parse=Path, per_host=True
    )
    max_seq_length: int = setting(
        ..., "Maximum tokens of a sequence.", kind=int, bounds=AT_LEAST_ONE, of_model=True
    )
    length_buckets: bool = setting(
        ...,
        "Train on batches of sequences of similar length, with less padding; off shuffles all.",
        kind=bool,
    )
    seeds: tuple[int, ...] = setting(
        (),
        "Repeat the run with these seeds, comma-separated, and report mean and deviation.",
        kind=str,
        parse=_seeds,
    )
    search: dict[str, tuple[str, ...]] = setting(
        {},
        "Train with every combination of these values and compare the evaluations: "
        "'learning_rate=2e-5,3e-5;num_train_epochs=2,3', or bert for the 18 of Devlin et al. 2019, "
        "appendix A.3. With --seeds, each several times.",
        kind=str,
        parse=_search,
    )
    num_workers: int = setting(
        0,
        "Processes that write records; 0 means one per core.",
        bounds=NOT_NEGATIVE,
        per_host=True,
    )
    layers: LayerSettings = group(LayerSettings)

    def contradictions(self) -> Iterator[str]:
        """A search without anything to compare."""
        if self.search and not (self.run.do_train and self.run.evaluation.do_eval):
            yield (
                "--search compares trained models; add --do_train and an evaluation (--do_eval, in "
                "run_squad.py --do_predict)."
            )


@dataclasses.dataclass(frozen=True)
class DirectorySettings(FinetuningSettings):
    """Fine-tuning and prediction on the files of a directory.

    Attributes:
      data_dir: None if no file of it is needed.
    """

    data_dir: Path | None = path_setting("Directory of the files.")
    do_predict: bool = setting(False, "Predict the test set and write the results.")
    train_file: Path | None = path_setting(
        "Training file instead of the one in --data_dir.", flag_of_file="train_file"
    )
    eval_file: Path | None = path_setting(
        "File to evaluate instead of the one in --data_dir.", flag_of_file="eval_file"
    )
    predict_file: Path | None = path_setting(
        "File to predict instead of the one in --data_dir.", flag_of_file="predict_file"
    )
    predict_batch_size: int = setting(
        8, "Sequences per prediction batch and rank.", bounds=AT_LEAST_ONE
    )

    def missing_files(self) -> list[tuple[str, str]]:
        """What the run does without a file of its own: flags of the action and of the file."""
        uses = (
            ("do_train", self.run.do_train, "train_file", self.train_file),
            ("do_eval", self.run.evaluation.do_eval, "eval_file", self.eval_file),
            ("do_predict", self.do_predict, "predict_file", self.predict_file),
        )
        return [(action, flag) for action, does, flag, file in uses if does and file is None]

    @property
    def files_given(self) -> bool:
        """Whether any file is named by its flag."""
        return any((self.train_file, self.eval_file, self.predict_file))
