"""What an exported model for multiple choice takes and returns."""

from __future__ import annotations

from typing import ClassVar

from bert_tf.inference.export import Exportable, Tensors, checked_length
from bert_tf.inference.graph_tokenizer import GraphTokenizer, first_sequence
from bert_tf.model.task import Features, Network
from bert_tf.model_directory.classes import CHOICE, Classes
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.multiple_choice.task import ChoiceTask


class ExportableChooser(Exportable):
    """A model whose signatures score each sequence: of an example's, the highest is the choice."""

    classes = Classes(CHOICE)
    texts: ClassVar = {"text_pair": ("text", "other_text")}

    def __init__(self, model: CompleteModel, *, max_seq_length: int | None = None) -> None:
        """Reads at most ``max_seq_length`` tokens, None being the network's positions."""
        self.task = ChoiceTask(model.config)
        self._max_seq_length = checked_length(model, max_seq_length)

    def outputs(self, network: Network, features: Features) -> Tensors:
        """``scores`` [B] float32."""
        return network.predictions(features)

    def of_texts(self, network: Network, tokenizer: GraphTokenizer, texts: Tensors) -> Tensors:
        """The scores of contexts, each with a choice, that lose their ends as in training."""
        parts = [tokenizer.encode(text) for text in texts.values()]
        features, left_out = first_sequence(parts, tokenizer.ids, self._max_seq_length)
        return {**self.outputs(network, features), "tokens_left_out": left_out}
