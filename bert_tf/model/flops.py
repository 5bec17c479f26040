"""Model FLOPs: the arithmetic that training requires, however it is computed.

Only matrix products count, at two operations per multiply-add (Chowdhery et al. 2022, "PaLM",
appendix B). Whether a program computes more (recomputation) or less (positions that no head reads)
affects its time, not this number.
"""

from __future__ import annotations

from bert_tf.model.config import BertConfig

# For each product of the forward pass, the backward pass computes two: the gradients of both
# factors.
_PASSES = 3


def training_flops(
    config: BertConfig, *, length: int, predictions: int, next_sentence: bool
) -> float:
    """FLOPs of one sequence's forward and backward pass in pre-training.

    Args:
      config: the architecture.
      length: sequence length, S.
      predictions: masked positions whose tokens are predicted; 0 without a masked-LM head.
      next_sentence: whether there are a pooler and a next-sentence head.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    dense = length * (4 * hidden * hidden + 2 * hidden * config.intermediate_size)
    # The scores of all pairs of positions, and the weighted sums of values.
    attention = 2 * length * length * hidden
    products = layers * (dense + attention)
    products += predictions * (hidden * hidden + hidden * config.vocab_size)
    if next_sentence:
        products += hidden * hidden + 2 * hidden
    return float(_PASSES * 2 * products)
