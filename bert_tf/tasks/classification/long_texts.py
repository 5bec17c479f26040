"""What becomes of texts with more tokens than a sequence has room for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from bert_tf.config.declared import AT_LEAST_ONE, Settings, setting
from bert_tf.text.tokenizer import kept_counts, windows_of

HEAD, TAIL, HEAD_TAIL, WINDOWS = "head", "tail", "head_tail", "windows"

Tokens = Sequence[int]


@dataclasses.dataclass(frozen=True)
class LongTexts(Settings):
    """What becomes of texts that are too long."""

    long_texts: str = setting(
        HEAD,
        "What is read of a text over --max_seq_length: its head, its tail, head_tail (a quarter of "
        "the tokens from its beginning, the rest from its end), or all of it in windows, whose "
        "predictions are averaged.",
        choices=(HEAD, TAIL, HEAD_TAIL, WINDOWS),
        of_model=True,
    )
    doc_stride: int = setting(
        128,
        "Tokens between the starts of a long text's windows.",
        bounds=AT_LEAST_ONE,
        of_model=True,
    )

    @property
    def parameters(self) -> dict[str, object]:
        """What decides records besides the defaults, for manifests."""
        if self.long_texts == HEAD:
            return {}
        stride = {"doc_stride": self.doc_stride} if self.long_texts == WINDOWS else {}
        return {"long_texts": self.long_texts, **stride}

    def cut(self, parts: Sequence[Tokens], room: int) -> list[list[Tokens]]:
        """The tokens of each sequence that one or two texts become; WINDOWS is for one text.

        Of two texts, the longer one gets shorter until both fit, as in google-research/bert. The
        quarter of HEAD_TAIL is that of Sun et al. 2019, "How to Fine-Tune BERT for Text
        Classification?", section 5.3.1: 128 of 510 tokens.
        """
        if self.long_texts == WINDOWS and len(parts) == 1:
            [part] = parts
            windows = windows_of(len(part), room, self.doc_stride) or [(0, 0)]
            return [[part[first : first + length]] for first, length in windows]
        counts = kept_counts([len(part) for part in parts], room)
        return [[self._kept(part, count) for part, count in zip(parts, counts)]]

    def _kept(self, part: Tokens, count: int) -> Tokens:
        if count == len(part):
            return part
        first = {TAIL: 0, HEAD_TAIL: count // 4}.get(self.long_texts, count)
        return [*part[:first], *part[len(part) - (count - first) :]]


CUT_OFF = LongTexts()
