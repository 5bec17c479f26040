"""Model FLOPs: the arithmetic that training needs, however it is computed.

Only products are counted, with two operations for a multiplication and an addition (Chowdhery et
al. 2022, "PaLM", appendix B). What a program computes more (recomputation) or less (positions that
no head reads) changes its time, not this number.
"""

from __future__ import annotations

from bert_tf.model.config import BertConfig

# The backward pass computes two products for each of the forward pass: the gradients of both
# factors.
_PASSES = 3


def training_flops(
    config: BertConfig, *, length: int, predictions: int, next_sentence: bool
) -> float:
    """FLOPs of the forward and backward pass of one sequence in pre-training.

    Args:
      config: the architecture.
      length: positions of the sequence, S.
      predictions: masked positions whose words are predicted; 0 without a masked-LM head.
      next_sentence: whether there are a pooler and a next-sentence head.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    dense = length * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    # The scores of all pairs of positions, and the sums of values that they weight.
    attention = 2 * length * length * hidden
    products = layers * (dense + attention)
    products += predictions * (hidden * hidden + hidden * config.vocab_size)
    if next_sentence:
        products += hidden * hidden + 2 * hidden
    return float(_PASSES * 2 * products)
