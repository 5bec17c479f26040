"""What an exported span model takes and returns."""

from __future__ import annotations

from collections.abc import Mapping

import tensorflow.compat.v1 as tf

from bert_tf.inference.export import Exportable, TextSignature, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, kept_tokens, with_special_tokens
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.question_answering.windows import NUM_SPECIAL, WindowSettings, fitting_windows

UNIQUE_IDS = "unique_ids"


def exportable_spans(
    model: CompleteModel, *, num_candidates: int = 20, windows: WindowSettings | None = None
) -> Exportable:
    """A span model with its signatures.

    ``with_unique_ids`` takes and returns ``unique_ids``, too, for clients of google-research/bert's
    and NVIDIA's exports. ``text`` takes questions and contexts, and reads the first window.

    Args:
      model: the model.
      num_candidates: number of best positions to return.
      windows: lengths for ``text``; None for run_squad.py's, limited to the network's.
    """
    windows = windows or fitting_windows(model.config.max_position_embeddings)
    checked_length(model, windows.max_seq_length)

    def of_texts(
        network: Network, tokenizer: GraphTokenizer, texts: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        features, left_out = text_features(texts["question"], texts["context"], tokenizer, windows)
        return {**_outputs(network, features), **features, "tokens_left_out": left_out}

    return Exportable(
        SpanTask(model.config, num_candidates=num_candidates),
        _outputs,
        texts={"text": TextSignature(("question", "context"), of_texts)},
        returned={f"with_{UNIQUE_IDS}": UNIQUE_IDS},
    )


def text_features(
    questions: tf.Tensor, contexts: tf.Tensor, tokenizer: GraphTokenizer, windows: WindowSettings
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """The network's inputs for questions and contexts, limited to each context's first window.

    Args:
      questions, contexts: [B] UTF-8 strings.
      tokenizer: encodes them.
      windows: lengths in tokens.

    Returns:
      ``input_ids``, ``input_mask``, ``segment_ids`` [B, S] int32, where S is the longest length in
      the batch, and the number of tokens cut off the end of each context, [B] int32.
    """
    question = tokenizer.encode(questions)[:, : windows.max_query_length]
    context = tokenizer.encode(contexts)
    tokens = context.row_lengths()
    kept = tf.minimum(tokens, windows.max_seq_length - NUM_SPECIAL - question.row_lengths())
    features = with_special_tokens([question, kept_tokens(context, kept)], tokenizer.ids)
    return features, tf.cast(tokens - kept, tf.int32)


def _outputs(network: Network, features: Features) -> dict[str, tf.Tensor]:
    """Logits and candidates; -inf becomes the lowest float32, since JSON has no infinity.

    ``start_logits`` and ``end_logits`` are [B, S] float32, ``top_start_indices`` and
    ``top_end_indices`` [B, K] int32, ``top_start_logits`` and ``top_end_logits`` [B, K] float32,
    ``null_logits`` [B] float32.
    """
    task = network.task
    logits = task.outputs(network.variables, features, network.options)
    best = task.predictions(logits, features, network.options)
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
