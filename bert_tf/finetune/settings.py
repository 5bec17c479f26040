"""Settings shared by the fine-tuning tasks, and which layers a run trains.

The layers of a network are, from below, its embeddings and the layers of its encoder; the pooler
and the head are above them and are always trained, at the full rate unless the task has its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
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
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

# The files of a run, by what it does with them; also the names of their records' directories.
TRAIN, EVAL, PREDICT = "train", "eval", "predict"

_EMBEDDINGS, _ENCODER = "embeddings", "encoder"


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
    searched: dict[str, tuple[str, ...]] = {}
    for part in (_BERT_SEARCH if text == "bert" else text).split(";") if text else ():
        flag, _, values = (piece.strip() for piece in part.partition("="))
        flag, given = flag.lstrip("-"), tuple(value.strip() for value in values.split(","))
        if not flag or not all(given) or flag in searched or len(set(given)) < len(given):
            raise UserError(
                f"--search={text}: {part.strip() or 'an empty part'} must be a flag with different "
                "values, such as learning_rate=2e-5,3e-5; flags are separated by semicolons."
            )
        searched[flag] = given
    return searched


@dataclasses.dataclass(frozen=True)
class LayerSettings(Settings):
    """Frozen layers and the learning rates of the others."""

    freeze: str = setting(
        "",
        "Keep the lower part of the network as it is: embeddings; a number of layers and the "
        "embeddings; or encoder, all but pooler and head.",
    )
    layerwise_lr_decay: float = setting(
        1.0,
        "Multiply the learning rate by this for each layer from the top layer, which has the full "
        "rate, down to the embeddings (Sun et al. 2019, section 5.3.4: 0.95).",
        bounds=Interval(0, 1, open_low=True),
    )
    gradual_unfreezing: float = setting(
        0.0,
        "Train only the head at first, and one more layer from the top at a time, until all are "
        "trained after this fraction of the steps (Howard and Ruder 2018, section 3.3).",
        bounds=Interval(0, 1, open_high=True),
    )

    def contradictions(self) -> Iterator[str]:
        """What cannot be frozen, and layers that are frozen and yet have rates."""
        if self.freeze not in ("", _EMBEDDINGS, _ENCODER) and not self._num_layers:
            yield (
                f"--freeze={self.freeze} must be {_EMBEDDINGS}, {_ENCODER} or a number of layers, "
                "at least 1."
            )
        for name in ("layerwise_lr_decay", "gradual_unfreezing"):
            if self.freeze == _ENCODER and getattr(self, name) != getattr(LayerSettings, name):
                yield f"--freeze={_ENCODER} leaves no layer for {self.given(name)}; drop one."

    @property
    def _num_layers(self) -> int:
        """The number that ``freeze`` is; 0 if it is none."""
        return int(self.freeze) if self.freeze.isascii() and self.freeze.isdigit() else 0

    def applied_to(
        self,
        optimization: OptimizationSettings,
        num_layers: int,
        more_factors: Iterable[tuple[str, float]] = (),
    ) -> OptimizationSettings:
        """The optimization settings for an encoder with ``num_layers`` layers.

        ``more_factors`` are further ``rate_factors``. Raises UserError if ``freeze`` names more
        layers.
        """
        layers = ["^bert/embeddings", *(f"^bert/encoder/layer_{n}/" for n in range(num_layers))]
        if self._num_layers > num_layers:
            raise UserError(
                f"--freeze={self.freeze}: the network has {num_layers} layers; give at most that "
                f"many, or {_ENCODER}."
            )
        frozen = {"": 0, _EMBEDDINGS: 1, _ENCODER: len(layers)}.get(
            self.freeze, 1 + self._num_layers
        )
        factors = [(layer, 0.0) for layer in layers[:frozen]]
        if self.layerwise_lr_decay != 1:
            factors += [
                (layer, self.layerwise_lr_decay ** (num_layers - number))
                for number, layer in enumerate(layers[frozen:], frozen)
            ]
        opens = []
        if self.gradual_unfreezing:
            trained = layers[frozen:]
            opens = [
                (layer, self.gradual_unfreezing * (len(trained) - number) / len(trained))
                for number, layer in enumerate(trained)
            ]
        return dataclasses.replace(
            optimization, rate_factors=(*factors, *more_factors), trained_from=tuple(opens)
        )


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
      train_file, eval_file, predict_file: directories only where the task reads some.
    """

    data_dir: Path | None = path_setting("Directory of the files.")
    do_predict: bool = setting(False, "Predict the test set and write the results.")
    train_file: Path | None = path_setting(
        "Training file instead of the one in --data_dir.",
        flag_of_file="train_file",
        or_directory=True,
    )
    eval_file: Path | None = path_setting(
        "File to evaluate instead of the one in --data_dir.",
        flag_of_file="eval_file",
        or_directory=True,
    )
    predict_file: Path | None = path_setting(
        "File to predict instead of the one in --data_dir.",
        flag_of_file="predict_file",
        or_directory=True,
    )
    predict_batch_size: int = setting(
        8, "Sequences per prediction batch and rank.", bounds=AT_LEAST_ONE
    )

    @property
    def files(self) -> dict[str, Path | None]:
        """The files that the run uses, by kind; None for one that no flag of its own names."""
        uses = {TRAIN: self.run.do_train, EVAL: self.run.evaluation.do_eval}
        uses[PREDICT] = self.do_predict
        return {kind: getattr(self, f"{kind}_file") for kind, is_used in uses.items() if is_used}

    @property
    def missing_files(self) -> list[str]:
        """The kinds of those that no flag of its own names."""
        return [kind for kind, path in self.files.items() if path is None]

    @property
    def needs_directory(self) -> bool:
        """Whether files of --data_dir are needed."""
        return bool(self.missing_files)
