"""The settings of a computation of vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from bert_tf.config.declared import AT_LEAST_ONE, Settings, group, setting
from bert_tf.config.settings import RunSettings, RuntimeSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval

POOLINGS = TOKENS, MEAN, CLS, MAX, MEAN_SQRT_LEN, WEIGHTED_MEAN, LAST_TOKEN = (
    "none", "mean", "cls", "max", "mean_sqrt_len", "weightedmean", "lasttoken"
)  # fmt: skip
OUTPUT_TYPES = FLOAT32, FLOAT16 = "float32", "float16"
ARRAY_SUFFIX = ".npy"
VECTORS = "vectors"  # the name of the predictions


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
                known = ", ".join(POOLINGS)
                yield f"--pooling={self.pooling}: {name} is not one of {known}."
        if TOKENS in names and len(names) > 1:
            yield f"--pooling={self.pooling}: {TOKENS} cannot be combined with others."


@dataclasses.dataclass(frozen=True)
class FeatureSettings(Settings):
    """The settings of run_features.py.

    ``bert_config_file`` (if not None) and ``tokenizer_files`` override those stored with the
    weights.
    """

    bert_config_file: Path | None
    tokenizer_files: TokenizerFiles
    input_file: Path
    output_file: Path
    run: RunSettings
    runtime: RuntimeSettings
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
