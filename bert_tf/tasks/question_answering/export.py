"""What an exported span model takes and returns."""

from __future__ import annotations

from typing import ClassVar

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, Tensors, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, kept_tokens, with_special_tokens
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.windows import NUM_SPECIAL, WindowSettings, fitting_windows

UNIQUE_IDS = "unique_ids"


class ExportableSpans(Exportable):
    """A span model.

    Of its signatures, ``with_unique_ids`` takes and returns ``unique_ids``, too, for clients of
    google-research/bert's and NVIDIA's exports. ``text`` takes questions and contexts, and reads
    the first window.
    """

    texts: ClassVar = {"text": ("question", "context")}
    returned: ClassVar = {f"with_{UNIQUE_IDS}": UNIQUE_IDS}

    def __init__(
        self,
        model: CompleteModel,
        *,
        num_candidates: int = 20,
        windows: WindowSettings | None = None,
    ) -> None:
        """Returns the best positions.

        Args:
          model: the model.
          num_candidates: number of best positions to return.
          windows: lengths for ``text``; None for run_squad.py's, limited to the network's.
        """
        self._windows = windows or fitting_windows(model.config.max_position_embeddings)
        checked_length(model, self._windows.max_seq_length)
        self.task = SpanTask(model.config, num_candidates=num_candidates)

    def outputs(self, network: Network, features: Features) -> Tensors:
        """Logits and candidates; -inf becomes the lowest float32, since JSON has no infinity.

        ``start_logits`` and ``end_logits`` are [B, S] float32, ``top_start_indices`` and
        ``top_end_indices`` [B, K] int32, ``top_start_logits`` and ``top_end_logits`` [B, K]
        float32, ``null_logits`` [B] float32.
        """
        logits = self.task.outputs(network.variables, features, network.options)
        best = self.task.predictions(logits, features, network.options)
        null = {"null_logits": best.pop("null_logits")}
        outputs = {
            "start_logits": logits.start,
            "end_logits": logits.end,
            **{f"top_{name}": tensor for name, tensor in best.items()},
            **null,
        }
        lowest = tf.float32.min
        return {
            name: tf.maximum(tensor, lowest) if tensor.dtype == tf.float32 else tensor
            for name, tensor in outputs.items()
        }

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The outputs for each context's first window, and its inputs, to which positions refer."""
        windows = self._windows
        question = tokenizer.encode(texts["question"])[:, : windows.max_query_length]
        context = tokenizer.encode(texts["context"])
        tokens = context.row_lengths()
        kept = tf.minimum(tokens, windows.max_seq_length - NUM_SPECIAL - question.row_lengths())
        features = with_special_tokens([question, kept_tokens(context, kept)], tokenizer.ids)
        left_out = tf.cast(tokens - kept, tf.int32)
        return {**self.outputs(network, features), **features, "tokens_left_out": left_out}
