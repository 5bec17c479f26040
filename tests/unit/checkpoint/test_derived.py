"""Both networks of run_electra.py in transformers, which computes the same from them."""

import dataclasses

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch
import transformers

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.loading import check_initial
from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.commands.convert import convert
from bert_tf.model.config import BertConfig
from bert_tf.model.options import ForwardOptions
from bert_tf.model.task import create_network
from bert_tf.model.variables import load_value
from bert_tf.model_directory.record import write_model_files
from bert_tf.tasks.classification.task import ClassificationTask
from bert_tf.tasks.pretraining.task import masked_lm_logits
from bert_tf.tasks.question_answering.task import SpanTask
from bert_tf.tasks.replaced_tokens.objective import ReplacedTokens
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from tests.helpers import rounding
from tests.unit.checkpoint.tiny_models import IDS, MASK, SEGMENTS, SIZES

CONFIG = BertConfig(**SIZES)
POSITIONS = np.tile(np.arange(1, 8, dtype=np.int32), [2, 1])
FEATURES = {
    "input_ids": IDS.astype(np.int32),
    "input_mask": MASK.astype(np.int32),
    "segment_ids": SEGMENTS.astype(np.int32),
    "masked_lm_positions": POSITIONS,
}
# Two layers of six products, embeddings' projection and two of a head; none sums more terms than
# the feed-forward's second. Probabilities are at most 1.
OF_PROBABILITIES = rounding.of_products(2 * 6 + 3, SIZES["intermediate_size"])


def task_of(**changes):
    objective = ReplacedTokens(generator_hidden_size=changes.pop("generator_hidden_size", 1 / 3))
    return objective.task(dataclasses.replace(CONFIG, **changes))


def save(directory, task, extra=None):
    """A model directory with random weights, whose probabilities are far from equal ones."""
    rng = np.random.default_rng(1)
    arrays = {
        spec.name: rng.normal(spec.initial == 1, 0.5, spec.shape).astype(np.float32)
        for spec in task.specs()
    }
    directory.mkdir()
    write_checkpoint(str(directory / "model.ckpt-3"), {**arrays, **(extra or {})})
    tf.train.update_checkpoint_state(str(directory), "model.ckpt-3")
    vocab = directory.parent / "entries.txt"
    vocab.write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\n" + "".join(f"w{i}\n" for i in range(35)))
    write_model_files(directory, task.config, TokenizerFiles(vocab, do_lower_case=False), None)
    return arrays


def our_outputs(task, arrays):
    """What the discriminator reads and what it finds, and the generator's words."""
    with tf.Graph().as_default(), tf.Session() as session:
        network = create_network(task, ForwardOptions())
        for variable in network.variables.all():
            load_value(variable, arrays[variable.op.name], session)
        features = {name: tf.constant(value) for name, value in FEATURES.items()}
        outputs = task.outputs(network.variables, features, ForwardOptions())
        words = tf.nn.softmax(masked_lm_logits(outputs.generator.words, ForwardOptions()))
        return session.run([outputs.input_ids, tf.sigmoid(outputs.logits), words])


def their_model(directory, class_name):
    model, loading = getattr(transformers, class_name).from_pretrained(
        directory, output_loading_info=True
    )
    assert not any(loading.values()), loading
    assert model.config.architectures == [class_name]
    return model.eval()


def their_logits(model, input_ids):
    batch = {"input_ids": input_ids, "attention_mask": MASK, "token_type_ids": SEGMENTS}
    with torch.no_grad():
        return model(**{name: torch.tensor(value) for name, value in batch.items()}).logits


@pytest.mark.parametrize(
    ("share", "activation"),
    [
        pytest.param(1 / 3, "gelu", marks=pytest.mark.slow),
        pytest.param(1.0, "gelu_erf", marks=pytest.mark.slow),
        pytest.param(1 / 3, "gelu_erf", marks=pytest.mark.exhaustive),
        pytest.param(1.0, "gelu", marks=pytest.mark.exhaustive),
    ],
)
def test_both_networks_give_the_same_probabilities_in_transformers(tmp_path, activation, share):
    task = task_of(hidden_act=activation, generator_hidden_size=share)
    arrays = save(tmp_path / "ours", task)
    source = open_source(tmp_path / "ours")
    lines = convert(source, tmp_path / "discriminator", "huggingface")
    convert(source, tmp_path / "generator", "huggingface", generator=True)
    of_generator = sum(name.startswith("generator/") for name in arrays)
    assert f"{of_generator} of the generator, left out (--generator converts it instead)" in lines

    input_ids, replaced, words = our_outputs(task, arrays)
    model = their_model(tmp_path / "discriminator", "ElectraForPreTraining")
    theirs = torch.sigmoid(their_logits(model, input_ids)).numpy()
    assert (model.config.embedding_size, model.config.hidden_size) == (12, 12)
    assert theirs[MASK > 0].std() > 1000 * OF_PROBABILITIES
    np.testing.assert_allclose(replaced[MASK > 0], theirs[MASK > 0], atol=OF_PROBABILITIES)

    model = their_model(tmp_path / "generator", "ElectraForMaskedLM")
    theirs = torch.softmax(their_logits(model, IDS), dim=-1).numpy()
    assert (model.config.embedding_size, model.config.hidden_size) == (12, round(12 * share))
    assert theirs.std() > 1000 * OF_PROBABILITIES
    at_tokens = MASK[:, 1:] > 0
    words = words.reshape(2, 7, -1)[at_tokens]
    np.testing.assert_allclose(words, theirs[:, 1:][at_tokens], atol=OF_PROBABILITIES)


def test_the_tokenizer_has_segments(tmp_path):
    save(tmp_path / "ours", task_of())
    convert(open_source(tmp_path / "ours"), tmp_path / "hf", "huggingface")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    assert tokenizer("w3", "w4")["token_type_ids"] == [0, 0, 0, 1, 1]
    assert tokenizer.convert_tokens_to_ids("w3") == 8


def test_the_discriminator_is_kept_by_other_formats(tmp_path):
    arrays = save(tmp_path / "ours", task_of(), {"global_step": np.int64(3)})
    convert(open_source(tmp_path / "ours"), tmp_path / "google", "google")
    found = open_source(tmp_path / "google")
    expected = {name for name in arrays if not name.startswith("generator/")}
    assert set(found.stored) == expected
    for name in expected:
        np.testing.assert_array_equal(found.read(name), arrays[name])


@pytest.mark.parametrize(
    ("target", "given", "words"),
    [
        ("google", {}, "--generator: --format=google cannot hold a generator"),
        ("huggingface", {"include_optimizer": True}, "no place for an optimizer's state"),
    ],
)
def test_what_a_generator_cannot_be(tmp_path, target, given, words):
    state = {"generator/bert/embeddings_project/kernel/adam_m": np.ones([12, 4], np.float32)}
    save(tmp_path / "ours", task_of(), state)
    with pytest.raises(UserError, match=words):
        convert(open_source(tmp_path / "ours"), tmp_path / "out", target, generator=True, **given)


def test_a_checkpoint_without_a_generator_is_refused(tmp_path):
    save(tmp_path / "ours", task_of())
    convert(open_source(tmp_path / "ours"), tmp_path / "google", "google")
    with pytest.raises(UserError, match=r"--generator: .* has no generator; give a checkpoint of"):
        convert(open_source(tmp_path / "google"), tmp_path / "out", "huggingface", generator=True)


def test_a_network_without_token_types_is_refused(tmp_path):
    save(tmp_path / "ours", task_of(type_vocab_size=0))
    with pytest.raises(UserError, match="Hugging Face's ELECTRA always has them"):
        convert(open_source(tmp_path / "ours"), tmp_path / "out", "huggingface")


@pytest.mark.parametrize(
    ("task", "fresh"),
    [
        (ClassificationTask(CONFIG, 2), ("bert/pooler/dense/", "output_")),
        (SpanTask(CONFIG), ("cls/squad/",)),
    ],
    ids=["classification", "questions"],
)
def test_fine_tuning_starts_from_the_discriminator(tmp_path, task, fresh):
    """The pooler is fresh with the head that reads it; the generator is one entry of the report."""
    arrays = save(tmp_path / "ours", task_of())
    network = {spec.name: spec.shape for spec in task.specs()}
    _, report = check_initial(
        tmp_path / "ours", network, heads=task.heads, config=dataclasses.replace(CONFIG)
    )
    assert all(name.startswith(fresh) for name in report.fresh)
    assert set(report.restored) == {name for name in arrays if name.startswith("bert/")}
    of_generator = sum(name.startswith("generator/") for name in arrays)
    [unused] = [line for line in report.summary() if "unused" in line]
    assert unused.endswith(f"cls/discriminator/output_weights, generator/* ({of_generator})")
