"""Small networks with weights large enough that the two GELUs differ, on both sides."""

from __future__ import annotations

import dataclasses

import numpy as np
import tensorflow.compat.v1 as tf
import torch
import transformers

from bert_tf.checkpoint import names
from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import initialise_from_checkpoint
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.checkpoint.writing import network_shapes
from bert_tf.model.bert import bert_output, pooled_output
from bert_tf.model.config import BertConfig
from bert_tf.model.heads import masked_lm_scores, next_sentence_logits, project_to_classes
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import Variables, VariableSpec, create_variables
from bert_tf.model_directory.classes import WORD_LABELS, Classes
from bert_tf.model_directory.record import MODEL_RECORD_NAME, write_model_files
from bert_tf.text.tokenizer_files import TokenizerFiles

IDS = np.array([[2, 17, 8, 33, 3, 21, 9, 3], [2, 5, 30, 3, 11, 3, 0, 0]])
MASK = (IDS > 0).astype(np.int64)
SEGMENTS = np.array([[0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 1, 1, 0, 0]])

SIZES = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}

# The same network in DistilBERT's configuration; it has no token types.
DISTILBERT_SIZES = {
    "vocab_size": 40,
    "dim": 12,
    "n_layers": 2,
    "n_heads": 3,
    "hidden_dim": 20,
    "max_position_embeddings": 16,
}

# Those of a head for words.
LABELS = ("B-A", "I-A", "O")

DISTILBERT_CLASSES = (
    "DistilBertModel",
    "DistilBertForMaskedLM",
    "DistilBertForQuestionAnswering",
    "DistilBertForTokenClassification",
)

CLASSES = (
    "BertModel",
    "BertForPreTraining",
    "BertForMaskedLM",
    "BertForNextSentencePrediction",
    "BertForQuestionAnswering",
    "BertForSequenceClassification",
    "BertForTokenClassification",
    *DISTILBERT_CLASSES,
)


def huggingface_model(class_name, *, activation="gelu", seed=0, **changes):
    """A model of transformers with random weights, and three labels where it has any to choose."""
    labels = 3 if class_name.endswith("Classification") else 2
    if class_name.startswith("DistilBert"):
        sizes = {**DISTILBERT_SIZES, "activation": activation, **changes}
        config = transformers.DistilBertConfig(**sizes, num_labels=labels)
    else:
        sizes = {**SIZES, "hidden_act": activation, **changes}
        config = transformers.BertConfig(**sizes, num_labels=labels)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = getattr(transformers, class_name)(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return model


def huggingface_outputs(model):
    """The tensors that the model computes for the batch above, by transformers' names."""
    batch = {"input_ids": IDS, "attention_mask": MASK}
    if model.config.model_type == "bert":
        batch["token_type_ids"] = SEGMENTS
    with torch.no_grad():
        output = model(**{name: torch.tensor(values) for name, values in batch.items()})
    return {name: value.numpy() for name, value in output.items()}


def our_outputs(checkpoint, class_name, batch=(IDS, MASK, SEGMENTS)):
    """What this toolkit computes from any checkpoint, under the same names.

    ``batch`` has input ids, mask and segments.
    """
    source = open_source(checkpoint)
    shapes = network_shapes(source.config, source.shapes, labels=source.files.labels)
    with tf.Graph().as_default(), tf.Session() as session:
        specs = [VariableSpec(name, shape) for name, shape in shapes.items()]
        variables = create_variables(specs, initializer_range=0.02)
        report = initialise_from_checkpoint(checkpoint, variables.all(), config=source.config)
        assert not report.fresh
        assert not report.notes
        outputs = _build(variables, source.config, class_name, batch)
        session.run(tf.global_variables_initializer())
        return session.run(outputs)


def _build(variables: Variables, config: BertConfig, class_name: str, batch):
    policy = policy_for("fp32")
    size, length = batch[0].shape
    hidden = bert_output(
        variables,
        config,
        dict(zip(("input_ids", "input_mask", "segment_ids"), map(tf.constant, batch))),
        ForwardOptions(policy),
    ).sequence_output

    def classes(x, head):
        weights, bias = (variables[f"{head}output_{part}"] for part in ("weights", "bias"))
        flat = project_to_classes(tf.reshape(x, [-1, 12]), weights, bias, policy=policy)
        return tf.reshape(flat, [*x.shape[:-1], weights.shape[0]])

    def words():
        everywhere = tf.tile(tf.range(length)[tf.newaxis], [size, 1])
        scores = masked_lm_scores(hidden, everywhere, variables, config=config, policy=policy)
        return tf.reshape(scores.logits(policy), [size, length, -1])

    def pooled():
        return pooled_output(hidden, variables, policy=policy)

    def follows():
        return next_sentence_logits(pooled(), variables, policy=policy)

    if class_name == "DistilBertModel":
        return {"last_hidden_state": hidden}
    if class_name == "BertModel":
        return {"last_hidden_state": hidden, "pooler_output": pooled()}
    if class_name == "BertForPreTraining":
        return {"prediction_logits": words(), "seq_relationship_logits": follows()}
    if class_name.endswith("BertForMaskedLM"):
        return {"logits": words()}
    if class_name == "BertForNextSentencePrediction":
        return {"logits": follows()}
    if class_name.endswith("BertForQuestionAnswering"):
        start, end = tf.unstack(classes(hidden, names.SQUAD), axis=-1)
        return {"start_logits": start, "end_logits": end}
    if class_name == "BertForSequenceClassification":
        return {"logits": classes(pooled(), names.CLASSES)}
    return {"logits": classes(hidden, names.CLASSES)}


def save_google(
    directory,
    class_name,
    *,
    activation="gelu",
    extra=None,
    seed=1,
    tokenizer_files=None,
    num_classes=3,
):
    """A directory as google-research/bert publishes them, with random weights for a class.

    ``num_classes`` is the number of classes of a text; the vocabulary is made up if not given.
    """
    config = BertConfig(**SIZES, hidden_act=activation)
    if class_name.startswith("DistilBert"):
        config = dataclasses.replace(config, type_vocab_size=0)
    if tokenizer_files is None:
        vocab = directory.parent / "entries.txt"
        words = "".join(f"w{i}\n" for i in range(35))
        vocab.write_text(f"[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n{words}")
        tokenizer_files = TokenizerFiles(vocab, do_lower_case=False)
    else:
        config = dataclasses.replace(config, vocab_size=tokenizer_files.load().vocab_size)
    labels = LABELS if class_name.endswith("TokenClassification") else None
    shapes = network_shapes(config, _names_of(class_name, num_classes), labels=labels)
    generator = np.random.default_rng(seed)
    arrays = {
        name: generator.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()
    }
    directory.mkdir()
    write_checkpoint(str(directory / "bert_model.ckpt"), {**arrays, **(extra or {})})
    classes = labels and Classes(WORD_LABELS, tuple(labels))
    write_model_files(directory, config, tokenizer_files, classes)
    if classes is None:  # published models have no record of ours
        (directory / MODEL_RECORD_NAME).unlink()
    text = (directory / "bert_config.json").read_text()
    (directory / "bert_config.json").write_text(text.replace("gelu_tanh", "gelu"))
    return arrays


def _names_of(class_name, num_classes):
    """Google's names and shapes of the heads and the pooler that a class has."""
    pooler = {"bert/pooler/dense/bias": (12,)}
    next_sentence = {"cls/seq_relationship/output_bias": (2,)}
    masked_lm = {"cls/predictions/output_bias": (40,)}
    return {
        "BertModel": pooler,
        "BertForPreTraining": {**masked_lm, **next_sentence},
        "BertForMaskedLM": masked_lm,
        "BertForNextSentencePrediction": next_sentence,
        "BertForQuestionAnswering": {"cls/squad/output_bias": (2,)},
        "BertForSequenceClassification": {"output_bias": (num_classes,)},
        "BertForTokenClassification": {"output_bias": (3,)},
        "DistilBertModel": {},
        "DistilBertForMaskedLM": masked_lm,
        "DistilBertForQuestionAnswering": {"cls/squad/output_bias": (2,)},
        "DistilBertForTokenClassification": {"output_bias": (3,)},
    }[class_name]
