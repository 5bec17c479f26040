"""Says that a model does not know the texts that it is given."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence

from bert_tf.model_directory.complete import CompleteModel
from bert_tf.text.tokenizer import Encoding, Tokenizer
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.util.console import say

# A share of fewer unknown tokens may be chance; after so many tokens the texts are as they should.
_LEAST_UNKNOWN, _COUNTED_TOKENS = 10, 100_000


def with_unknown_hint(model: CompleteModel) -> CompleteModel:
    """The model with a tokenizer that warns once if many tokens of its first texts are unknown.

    It raises no error, since it may be given any text, one at a time.
    """
    return dataclasses.replace(
        model, tokenizer=_HintingTokenizer(model.tokenizer, model.checkpoint)
    )


class _HintingTokenizer(CountingTokenizer):
    def __init__(self, tokenizer: Tokenizer, source: object) -> None:
        super().__init__(tokenizer)
        self._source, self._is_done = source, False

    def _add_unknown(self, text: str, ids: Sequence[int], encoding: Encoding | None) -> None:
        if self._is_done:
            return
        super()._add_unknown(text, ids, encoding)
        found = self._found
        is_hint = found.unknown >= _LEAST_UNKNOWN and bool(found.remark)
        if is_hint:
            say(f"warning: {self._source}: of its texts, {found.remark}", stream=sys.stderr)
        self._is_done = is_hint or found.tokens >= _COUNTED_TOKENS
