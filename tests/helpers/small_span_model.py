"""A span model small enough for any test: a layer, a few words, weights far from zero."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tensorflow.compat.v1 as tf

from bert_tf.inference.predictor import Predictor
from bert_tf.inference.settings import chosen_options
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.precision import policy_for
from bert_tf.model.variables import VariableSpec, create_variables
from bert_tf.model_directory.record import write_model_files
from bert_tf.tasks.question_answering.task import SQUAD_SCOPE, SpanTask
from bert_tf.text.tokenizer_files import TokenizerFiles

_WORDS = "who wrote the book where did she live in a town by sea anna it 1843 ? . , ##s ##ed"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *_WORDS.split()]
CONFIG = BertConfig(
    vocab_size=len(VOCABULARY),
    hidden_size=32,
    num_hidden_layers=1,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=64,
    initializer_range=0.5,
)


class ScoresTask(SpanTask):
    """Predicts what an export does: the scores of all positions as well."""

    def predictions(self, outputs, features, options):
        best = super().predictions(outputs, features, options)
        null_logits = best.pop("null_logits")
        top = {f"top_{name}": value for name, value in best.items()}
        scores = {"start_logits": outputs.start, "end_logits": outputs.end}
        return {**scores, **top, "null_logits": null_logits}


def predictor_of(
    parts, *, num_candidates: int = 20, precision="fp32", native_ops=None, **settings
) -> Predictor:
    """The network of a model directory's parts, with all scores."""
    native_layers = chosen_options(parts.config, native_ops=native_ops)[0].native_layers
    options = ForwardOptions(policy_for(precision), native_layers=native_layers)
    task = ScoresTask(parts.config, num_candidates)
    return Predictor(task, parts.checkpoint, **{"options": options, **settings})


TEXT = "Anna wrote the book in 1843. She lived by the sea, in a town. Who lived where?"


def write_model(directory: Path, *, span_head: bool = True, config: BertConfig = CONFIG) -> Path:
    """Makes ``directory`` a model directory with weights drawn at random."""
    specs = [s for s in SpanTask(config).specs() if span_head or not s.name.startswith(SQUAD_SCOPE)]
    return write_weights(directory, specs, config)


def write_weights(
    directory: Path, specs: Sequence[VariableSpec], config: BertConfig = CONFIG, **labels
) -> Path:
    """Makes ``directory`` a model directory with such variables, drawn at random, and labels."""
    directory.mkdir(parents=True, exist_ok=True)
    vocab_file = directory / "vocab.txt"
    vocab_file.write_text("".join(f"{entry}\n" for entry in VOCABULARY))
    write_model_files(directory, config, TokenizerFiles(vocab_file, do_lower_case=True), **labels)
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.create_global_step()
        create_variables(specs, initializer_range=config.initializer_range)
        session.run(tf.global_variables_initializer())
        session.run(step.assign(7))
        tf.train.Saver().save(session, str(directory / "model.ckpt"), global_step=7)
    return directory
