"""The settings of a computation of vectors, and their flags."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from absl import flags

from bert_tf.cli.flags import flag_group
from bert_tf.cli.settings_flags import Definer, require
from bert_tf.cli.training_flags import (
    define_computing_flags,
    define_ignored_flags,
    warn_of_ignored,
)
from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, setting
from bert_tf.finetune.flags import define_model_flags
from bert_tf.inference.settings import (
    InferenceSettings,
    define_inference_flags,
    inference_settings,
)
from bert_tf.util.errors import UserError
from bert_tf.util.files import check_output_file, require_file
from bert_tf.util.options import Interval

POOLINGS = TOKENS, MEAN, CLS, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN, LAST_TOKEN = (
    "none", "mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"
)  # fmt: skip
OUTPUT_TYPES = FLOAT32, FLOAT16 = "float32", "float16"
ARRAY_SUFFIX = ".npy"
VECTORS = "vectors"  # the name of the predictions

_ONE_HOT = "use_one_hot_embeddings"


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(
            f"--layers={text}: give whole numbers separated by commas, such as -1,-2."
        ) from None


@dataclasses.dataclass(frozen=True)
class VectorSettings(Settings):
    """Which vectors a text gets."""

    pooling: str | None = setting(
        None,
        "How a text's tokens become a vector: their mean, the largest value of each component "
        "(max), the vector of [CLS] (cls) or of the last token (lasttoken), their sum divided by "
        "the root of their number (mean_sqrt_len), or a mean with weights 1, 2, 3 (weightedmean); "
        "several, comma-separated, follow each other. With none, every token keeps its vectors "
        "(default: what modules.json next to the network says; else none, or mean in exports).",
        kind=str,
    )
    layers: tuple[int, ...] | None = setting(
        None,
        "Layers whose outputs are taken, comma-separated: 0 is the first one, -1 the last "
        "(default: -1,-2,-3,-4 for tokens and -1 for pooled vectors).",
        kind=str,
        parse=_layers,
    )
    normalize: bool | None = setting(
        None,
        "Scale every vector to unit length (default: what modules.json next to the network says).",
        kind=bool,
    )
    prompt_name: str | None = setting(
        None,
        "The prompt of config_sentence_transformers.json next to the network that precedes every "
        "text; empty for none (default: the one that the file makes the default).",
        kind=str,
    )

    def contradictions(self) -> Iterator[str]:
        """An unknown pooling, or several of which one keeps tokens."""
        names = self.pooling.split(",") if self.pooling is not None else []
        for name in names:
            if name not in POOLINGS:
                choices = ", ".join(POOLINGS)
                yield f"--pooling={self.pooling}: {name} is not one of {choices}."
        if TOKENS in names and len(names) > 1:
            yield f"--pooling={self.pooling}: {TOKENS} cannot be combined with others."


@dataclasses.dataclass(frozen=True)
class FeatureSettings(InferenceSettings):
    """The settings of run_features.py."""

    input_file: Path
    output_file: Path
    vectors: VectorSettings = group(VectorSettings)
    output_type: str = setting(
        FLOAT32, "Type of the numbers in a .npy file.", flag="output_dtype", choices=OUTPUT_TYPES
    )
    max_seq_length: int = setting(
        128,
        "Maximum tokens of a sequence, [CLS] and [SEP] included; longer texts are cut (what "
        "sentence_bert_config.json next to the network says is the default where there is one).",
        bounds=Interval(3),
        advice="[CLS], a token, [SEP]",
    )
    batch_size: int = setting(
        32,
        "Maximum number of sequences per batch; on CPUs, batches have up to 512 tokens.",
        bounds=AT_LEAST_ONE,
    )
    keep_empty_lines: bool = setting(
        False,
        "Give empty lines the vectors of an empty text, as google-research/bert does; otherwise "
        "they are errors.",
    )

    @property
    def writes_array(self) -> bool:
        """Whether the output is an array rather than JSON lines."""
        return self.output_file.suffix == ARRAY_SUFFIX

    def contradictions(self) -> Iterator[str]:
        """A type of numbers for JSON lines."""
        if self.output_type != FLOAT32 and not self.writes_array:
            yield (
                f"{self.given('output_type')} is for a {ARRAY_SUFFIX} file, but --output_file="
                f"{self.output_file} will hold JSON lines; drop it or change the name."
            )


def define_feature_flags(values: flags.FlagValues) -> None:
    """Defines the flags of run_features.py."""
    define = Definer(values)
    _define_file_flags(define)
    _define_vector_flags(define)
    define_model_flags(define)
    define_computing_flags(define, precision="fp32")
    define_ignored_flags(define)


@flag_group("Texts and output")
def _define_file_flags(define: Definer) -> None:
    define.string("input_file", None, "UTF-8 texts, one per line; ' ||| ' separates a pair.")
    define.per_host("input_file")
    output = "File for the vectors: an array if its name ends in .npy, otherwise JSON lines."
    define_inference_flags(
        define,
        model="The network",
        without=["seed"],
        output_dir={"flag": "output_file", "help_text": output},
    )


@flag_group("Vectors")
def _define_vector_flags(define: Definer) -> None:
    define.settings(VectorSettings)
    define.settings(FeatureSettings)
    define.ignored({_ONE_HOT: bool}, "embeddings are looked up")


def feature_settings(values: flags.FlagValues) -> FeatureSettings:
    """Turns parsed flags into settings; raises UserError for invalid flags."""
    require(values, "input_file", "output_file", "init_checkpoint")
    warn_of_ignored(values, also=[_ONE_HOT])
    output_file = check_output_file(values.output_file, flag="output_file")
    return inference_settings(
        FeatureSettings,
        values,
        of_run={"output_dir": output_file.with_name(f"{output_file.name}.partial")},
        input_file=require_file(values.input_file, flag="input_file"),
        output_file=output_file,
    )
