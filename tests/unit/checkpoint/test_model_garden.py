"""Checkpoints of TensorFlow 2's model garden, with its objects, names and shapes."""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import tensorflow.compat.v2 as tf2

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint
from bert_tf.commands.convert import convert
from bert_tf.util.errors import UserError
from tests.unit.checkpoint.tiny_models import IDS, MASK, SEGMENTS, SIZES, our_outputs

HEADS, HEAD_SIZE = 3, 4
SIZE, INNER, WORDS = SIZES["hidden_size"], SIZES["intermediate_size"], SIZES["vocab_size"]

# Parts of a layer: the names of variables, and the objects that hold them.
LAYER = {
    **{
        f"self_attention/{name}": (
            f"_attention_layer/_{name}_dense",
            {"kernel": (SIZE, HEADS, HEAD_SIZE), "bias": (HEADS, HEAD_SIZE)},
        )
        for name in ("query", "key", "value")
    },
    "self_attention/attention_output": (
        "_attention_layer/_output_dense",
        {"kernel": (HEADS, HEAD_SIZE, SIZE), "bias": (SIZE,)},
    ),
    "self_attention_layer_norm": ("_attention_layer_norm", {"gamma": (SIZE,), "beta": (SIZE,)}),
    "intermediate": ("_intermediate_dense", {"kernel": (SIZE, INNER), "bias": (INNER,)}),
    "output": ("_output_dense", {"kernel": (INNER, SIZE), "bias": (SIZE,)}),
    "output_layer_norm": ("_output_layer_norm", {"gamma": (SIZE,), "beta": (SIZE,)}),
}
POOLER = {"kernel": (SIZE, SIZE), "bias": (SIZE,)}
ENCODER = {
    "word_embeddings": ("_embedding_layer", {"embeddings": (WORDS, SIZE)}),
    "position_embedding": ("_position_embedding_layer", {"embeddings": (16, SIZE)}),
    "type_embeddings": ("_type_embedding_layer", {"embeddings": (2, SIZE)}),
    "embeddings/layer_norm": ("_embedding_norm_layer", {"gamma": (SIZE,), "beta": (SIZE,)}),
    **{
        f"transformer/layer_{n}/{name}": (f"_transformer_layers/{n}/{path}", shapes)
        for n in range(2)
        for name, (path, shapes) in LAYER.items()
    },
    "pooler_transform": ("_pooler_layer", POOLER),
}
MASKED_LM = {
    "cls/predictions/transform/dense": ("dense", POOLER),
    "cls/predictions/transform/LayerNorm": ("layer_norm", {"gamma": (SIZE,), "beta": (SIZE,)}),
    "cls/predictions/output_bias": ("output_bias", {"bias": (WORDS,)}),
}
LOGITS = {"kernel": (SIZE, 2), "bias": (2,)}
NEXT_SENTENCE = {
    "next_sentence/pooler_dense": ("dense", POOLER),
    "next_sentence/logits": ("out_proj", LOGITS),
}


def save(path, parts):
    """A checkpoint whose root has ``parts``: name of an object -> (prefix of names, table).

    Returns the variables' values, the first of each name, without prefixes.
    """
    generator = np.random.default_rng(3)
    values = {}
    with tf.Graph().as_default(), tf.Session() as session:
        root = tf2.train.Checkpoint()
        for part, (prefix, table) in parts.items():
            for name, (place, shapes) in table.items():
                owner = root
                for step in (*part.split("/"), *place.split("/")):
                    if getattr(owner, step, None) is None:
                        setattr(owner, step, tf2.Module())
                    owner = getattr(owner, step)
                for kind, shape in shapes.items():
                    full = f"{name}/{kind}"
                    value = generator.normal(0, 0.5, shape).astype(np.float32)
                    values.setdefault(full, value)
                    setattr(owner, kind, tf2.Variable(value, name=f"{prefix}{full}"))
        session.run(tf.global_variables_initializer())
        root.write(str(path))
    return values


def encoder_with_numbers(table):
    """The same variables in the objects of a functional model, as the first models have them."""
    number, places = -1, {}
    found = {}
    for name, (place, shapes) in table.items():
        whole, _, rest = place.partition("/")
        if whole == "_transformer_layers":
            whole, rest = place.split("/")[1], place.split("/", 2)[2]
        if whole not in places:
            number += 1
            places[whole] = f"layer_with_weights-{number}"
        found[name] = (f"{places[whole]}/{rest}" if rest else places[whole], shapes)
    return found


def write_config(directory, **changes):
    config = {**SIZES, "hidden_act": "gelu", **changes}
    (directory / "bert_config.json").write_text(json.dumps(config))


def layer_norm(x, values, name):
    centred = x - x.mean(-1, keepdims=True)
    normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
    return normal * values[f"{name}/gamma"] + values[f"{name}/beta"]


def dense(x, values, name, product="...i,io->...o"):
    return np.einsum(product, x, values[f"{name}/kernel"]) + values[f"{name}/bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def encoded(values):
    """[2, 8, size]: the model garden's encoder in float64, with its kernels of attention."""
    x = values["word_embeddings/embeddings"][IDS] + values["type_embeddings/embeddings"][SEGMENTS]
    x = layer_norm(
        x + values["position_embedding/embeddings"][: IDS.shape[1]], values, "embeddings/layer_norm"
    )
    for n in range(2):
        layer = f"transformer/layer_{n}"
        query, key, value = (
            dense(x, values, f"{layer}/self_attention/{name}", "bti,ins->btns")
            for name in ("query", "key", "value")
        )
        scores = np.einsum("btns,buns->bntu", query, key) / np.sqrt(HEAD_SIZE)
        odds = np.exp(scores - scores.max(-1, keepdims=True)) * MASK[:, None, None, :]
        context = np.einsum("bntu,buns->btns", odds / odds.sum(-1, keepdims=True), value)
        attended = dense(
            context, values, f"{layer}/self_attention/attention_output", "btns,nso->bto"
        )
        x = layer_norm(x + attended, values, f"{layer}/self_attention_layer_norm")
        inner = gelu(dense(x, values, f"{layer}/intermediate"))
        x = layer_norm(
            x + dense(inner, values, f"{layer}/output"), values, f"{layer}/output_layer_norm"
        )
    return x


def assert_close(ours, expected):
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("objects", ["attributes", "numbers"])
def test_an_encoder_gives_the_model_gardens_outputs(tmp_path, objects):
    table = ENCODER if objects == "attributes" else encoder_with_numbers(ENCODER)
    values = save(tmp_path / "bert_model.ckpt-1", {"model": ("", table)})
    write_config(tmp_path)
    source = open_source(tmp_path)
    assert source.notes == ("written by TensorFlow 2's model garden, with 3 attention heads",)
    convert(source, tmp_path / "out", "google")
    hidden = encoded(values)
    pooled = np.tanh(dense(hidden[:, 0], values, "pooler_transform"))
    assert_close(
        our_outputs(tmp_path / "out", "BertModel"),
        {"last_hidden_state": hidden, "pooler_output": pooled},
    )


def expected_of_pretraining(values, pooled, logits):
    hidden = encoded(values)
    transformed = gelu(dense(hidden, values, "cls/predictions/transform/dense"))
    transformed = layer_norm(transformed, values, "cls/predictions/transform/LayerNorm")
    words = transformed @ values["word_embeddings/embeddings"].T
    first = np.tanh(dense(hidden[:, 0], values, pooled))
    return {
        "prediction_logits": words + values["cls/predictions/output_bias/bias"],
        "seq_relationship_logits": dense(first, values, logits),
    }


def test_a_pretrained_model_has_its_heads(tmp_path):
    """BertPretrainerV2 has a pooler of its own for the next sentence."""
    values = save(
        tmp_path / "ckpt-1",
        {
            "encoder": ("bert_encoder_v2/", ENCODER),
            "masked_lm": ("bert/", MASKED_LM),
            "model/classification_heads/0": ("bert/", NEXT_SENTENCE),
            "optimizer/_variables": ("Adam/m/", {"word_embeddings": ENCODER["word_embeddings"]}),
        },
    )
    write_config(tmp_path)
    lines = convert(open_source(tmp_path), tmp_path / "out", "bert_tf")
    assert (
        "2 of the checkpoint, unused: encoder/_pooler_layer/bias, encoder/_pooler_layer/kernel"
        in lines
    )
    assert_close(
        our_outputs(tmp_path / "out", "BertForPreTraining"),
        expected_of_pretraining(values, "next_sentence/pooler_dense", "next_sentence/logits"),
    )


def test_the_older_pretrained_model_has_its_heads(tmp_path):
    head = {"predictions/transform/logits": ("layer_with_weights-0", LOGITS)}
    older = {
        name.replace("self_attention/attention_output", "self_attention_output"): part
        for name, part in ENCODER.items()
    }
    parts = {"encoder": ("", older), "masked_lm": ("", MASKED_LM), "classification": ("", head)}
    values = save(tmp_path / "ckpt-1", parts)
    values = {
        name.replace("self_attention_output", "self_attention/attention_output"): value
        for name, value in values.items()
    }
    write_config(tmp_path)
    convert(open_source(tmp_path), tmp_path / "out", "google")
    assert_close(
        our_outputs(tmp_path / "out", "BertForPreTraining"),
        expected_of_pretraining(values, "pooler_transform", "predictions/transform/logits"),
    )


def test_a_head_of_another_task_is_not_taken_for_one_of_pretraining(tmp_path):
    head = {"predictions/transform/logits": ("logits", LOGITS)}
    save(tmp_path / "ckpt-1", {"encoder": ("", ENCODER), "head": ("", head)})
    write_config(tmp_path)
    stored = open_source(tmp_path).stored
    assert "head/logits/kernel" in stored
    assert not any(name.startswith("cls/") for name in stored)


def other_network(directory):
    table = {"shared/query": ("query", POOLER)}
    save(directory / "ckpt-1", {"model": ("", table)})


def other_heads(directory):
    save(directory / "ckpt-1", {"model": ("", ENCODER)})
    write_config(directory, num_attention_heads=4)


def two_models(directory):
    save(directory / "ckpt-1", {"first": ("a/", ENCODER), "second": ("b/", ENCODER)})


def no_graph(directory):
    save(directory / "ckpt-1", {"model": ("", ENCODER)})
    index = directory / "ckpt-1.data-00000-of-00001"
    content = index.read_bytes()
    index.write_bytes(content.replace(b"_transformer_layers", b"\xff" * 19))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (other_network, "has no BERT encoder under the model garden's names"),
        (other_heads, "has 3 attention heads, but .*bert_config.json has num_attention_heads 4"),
        (
            two_models,
            "holds several models: first/.* and second/.* are the same variable; save one",
        ),
        (no_graph, "cannot be read"),
    ],
)
def test_other_checkpoints_of_objects_are_one_sentence(tmp_path, make, words):
    make(tmp_path)
    with pytest.raises(UserError, match=words) as error:
        open_source(tmp_path)
    assert "\n" not in str(error.value)


def test_a_missing_layer_is_named(tmp_path):
    save(tmp_path / "ckpt-1", {"model": ("", ENCODER)})
    write_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(
        UserError, match="it lacks bert/encoder/layer_2/attention/self/query/kernel"
    ):
        convert(open_source(tmp_path), tmp_path / "out", "bert_tf")


def test_bytes_are_read_with_zeros_at_their_end(tmp_path):
    """As the table of objects may have them."""
    with tf.Graph().as_default(), tf.Session() as session:
        table = tf.Variable(b"\x0a\x00", name="table")
        session.run(table.initializer)
        path = tf.train.Saver([table]).save(session, str(tmp_path / "ckpt"))
    assert TensorflowCheckpoint(path).read("table").item() == b"\x0a\x00"
