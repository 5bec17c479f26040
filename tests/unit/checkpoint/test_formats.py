"""One view of every format, and what is said of files that are none."""

import collections
import contextlib
import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from bert_tf.checkpoint import names
from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.tensorflow_file import TensorflowCheckpoint, write_checkpoint
from bert_tf.commands.convert import convert
from bert_tf.model.config import BertConfig
from bert_tf.records.framing import frame_of
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.forward_passes import pretraining_specs
from tests.helpers.programs import ROOT
from tests.unit.checkpoint.tiny_models import huggingface_model, save_google

RELEASED = ROOT / "tests/data/uncased_L-8_H-512_A-8.ckpt"


@pytest.fixture(name="model", scope="module")
def pretraining_model():
    return huggingface_model("BertForPreTraining")


@pytest.fixture(name="theirs")
def huggingface_directory(tmp_path, model):
    directory = tmp_path / "theirs"
    model.save_pretrained(directory)
    return directory


@pytest.fixture(name="google")
def google_directory(tmp_path):
    save_google(tmp_path / "google", "BertForPreTraining")
    return tmp_path / "google"


def read_all(path):
    source = open_source(path)
    return {name: source.read(name) for name in source.stored}


def assert_same(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_array_equal(value, second[name], err_msg=name)


def released_names():
    return list(TensorflowCheckpoint(str(RELEASED)).entries)


def our_names():
    """The same by test_variables.py, which has Google's written out."""
    config = BertConfig(vocab_size=9, hidden_size=4, num_hidden_layers=8, num_attention_heads=2)
    return [spec.name for spec in pretraining_specs(config)]


@pytest.mark.parametrize("list_names", [released_names, our_names])
def test_every_name_that_google_released_is_in_the_table(list_names):
    theirs, found = {}, list_names()
    for name in found:
        row = names.BERT.by_google(name)
        canonical = names.BERT.canonical(row.huggingface)
        assert names.BERT.by_huggingface(canonical) == row
        theirs[row.huggingface] = name
    assert len(theirs) == len(found) == 142
    assert row_of("bert/encoder/layer_7/output/dense/kernel") == (
        "bert.encoder.layer.7.output.dense.weight",
        True,
    )
    assert row_of("cls/seq_relationship/output_weights") == ("cls.seq_relationship.weight", False)


def row_of(google):
    row = names.BERT.by_google(google)
    return row.huggingface, row.transposed


def test_names_that_are_not_in_the_table():
    for name in ("bert/encoder/layer_x/output/dense/kernel", "global_step", "cls/other/kernel"):
        assert names.BERT.by_google(name) is None
    for naming in (names.BERT, names.DISTILBERT):
        name = "distilbert.transformer.layer.0.ffn.weight"
        assert naming.by_huggingface(name) is None


def test_directories_and_files_name_the_same_model(theirs, google):
    assert_same(read_all(theirs), read_all(theirs / "model.safetensors"))
    whole = read_all(google)
    for name in ("bert_model.ckpt", "bert_model.ckpt.index"):
        assert_same(whole, read_all(google / name))
    for path in (theirs, theirs / "model.safetensors"):
        assert open_source(path).config.hidden_act == "gelu_erf"
    source = open_source(google / "bert_model.ckpt")
    assert source.files.tokenizer_files.vocab_file == google / "vocab.txt"
    assert (source.config.hidden_act, source.files.tokenizer_files.do_lower_case) == (
        "gelu_tanh",
        False,
    )
    assert source.describe() == "format: Google; GELU in its tanh form (gelu_tanh)"
    assert open_source(theirs).describe() == "format: Hugging Face; exact GELU (gelu_erf)"


def old_spelling(name):
    name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
    return name.replace("LayerNorm.bias", "LayerNorm.beta")


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_pytorch_files_old_and_new_read_alike(tmp_path, theirs, model, zipped):
    state = collections.OrderedDict(
        (old_spelling(name), value) for name, value in model.state_dict().items()
    )
    state["bert.embeddings.position_ids"] = torch.arange(16)[None]
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path, _use_new_zipfile_serialization=zipped)
    assert_same(read_all(path), read_all(theirs))


def test_a_bare_model_has_no_prefix(tmp_path, theirs, model):
    model.bert.save_pretrained(tmp_path / "bare")
    whole = read_all(theirs)
    bare = {name: value for name, value in whole.items() if name.startswith("bert/")}
    assert_same(read_all(tmp_path / "bare"), bare)


@pytest.mark.parametrize("safe", [True, False])
def test_sharded_models(tmp_path, theirs, model, safe):
    model.save_pretrained(tmp_path / "shards", max_shard_size="4KB", safe_serialization=safe)
    assert len(list((tmp_path / "shards").glob("*-of-*"))) > 2
    assert_same(read_all(tmp_path / "shards"), read_all(theirs))


def test_nvidias_pytorch_files(tmp_path, theirs, model):
    """Weights under "model", dense layers with an activation called dense_act."""

    def nvidias(name):
        for part in ("intermediate", "pooler", "transform"):
            name = name.replace(f"{part}.dense.", f"{part}.dense_act.")
        return f"module.{name}"

    state = {nvidias(name): value for name, value in model.state_dict().items()}
    path = tmp_path / "ckpt_8601.pt"
    torch.save({"model": state, "optimizer": {"step": 3}, "files": ["a"]}, path)
    config = (theirs / "config.json").read_text()
    plain = {k: v for k, v in json.loads(config).items() if k in ("vocab_size", "hidden_act")}
    (tmp_path / "bert_config.json").write_text(json.dumps(plain))
    source = open_source(path)
    assert (source.origin, source.config.hidden_act) == ("nvidia", "gelu_erf")
    assert_same(read_all(path), read_all(theirs))


def test_nvidias_tensorflow_state_is_no_weight(tmp_path):
    bias = "bert/pooler/dense/bias"
    state = {
        f"{bias}/adam_m": np.zeros(12, np.float32),
        f"{bias}/accum": np.zeros(12, np.float32),
        "local_step": np.int32(3),
        "batch_finite": np.bool_(True),
        "current_loss_scale": np.float32(1024),
        "good_steps": np.int64(5),
        "global_step": np.int64(9),
    }
    save_google(tmp_path / "nvidia", "BertModel", extra=state)
    source = open_source(tmp_path / "nvidia")
    assert source.origin == "nvidia"
    assert {name for name in source.stored if names.is_run_state(name)} == set(state)


def test_the_float32_value_of_a_float16_weight_counts(tmp_path):
    values = {
        "bert/pooler/dense/bias": np.array([0.1], np.float16),
        "bert/pooler/dense/bias/shadow": np.array([0.1], np.float32),
    }
    write_checkpoint(str(tmp_path / "model.ckpt"), values)
    assert open_source(tmp_path).read("bert/pooler/dense/bias") == np.float32(0.1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
def test_half_precision_is_widened_and_reported(tmp_path, model, dtype, name):
    state = {key: value.to(dtype) for key, value in model.bert.state_dict().items()}
    write = save_file if name.endswith("safetensors") else torch.save
    write(state, tmp_path / name)
    source = open_source(tmp_path)
    kernel = source.read("bert/pooler/dense/kernel")
    assert kernel.dtype == np.float32
    np.testing.assert_array_equal(kernel, state["pooler.dense.weight"].float().numpy().T)
    short = str(dtype).partition(".")[2]
    expected = f"{len(state)} variables are stored as {short} and widened to float32"
    assert source.notes == (expected,)


def test_double_precision_is_rounded_and_reported(tmp_path):
    state = {
        "pooler.dense.weight": torch.tensor([[1 / 3, 1.0], [0.0, 2.0]], dtype=torch.float64),
        "pooler.dense.bias": torch.tensor([0.1, 0.2], dtype=torch.float64),
        "embeddings.LayerNorm.weight": torch.ones(2),
    }
    save_file(state, tmp_path / "model.safetensors")
    source = open_source(tmp_path)
    bias = source.read("bert/pooler/dense/bias")
    assert bias.dtype == np.float32
    np.testing.assert_array_equal(bias, np.float32([0.1, 0.2]))
    assert source.notes == ("2 variables are stored as float64 and rounded to float32",)


def test_views_of_one_storage(tmp_path):
    whole = torch.arange(48, dtype=torch.float32).reshape(4, 12)
    state = {"pooler.dense.weight": whole[:, 3:5].t(), "pooler.dense.bias": whole[2]}
    torch.save(state, tmp_path / "pytorch_model.bin")
    source = open_source(tmp_path)
    np.testing.assert_array_equal(source.read("bert/pooler/dense/kernel"), whole[:, 3:5].numpy())
    np.testing.assert_array_equal(source.read("bert/pooler/dense/bias"), whole[2].numpy())


@pytest.mark.parametrize("changed", ["decoder.weight", "decoder.bias"])
def test_an_untied_masked_lm_head_is_left_out(tmp_path, model, changed):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    save_file(state, tmp_path / "tied.safetensors")
    state[f"cls.predictions.{changed}"] += 1
    save_file(state, tmp_path / "untied.safetensors")
    assert "cls/predictions/output_bias" in open_source(tmp_path / "tied.safetensors").stored
    source = open_source(tmp_path / "untied.safetensors")
    assert not any(name.startswith("cls/predictions") for name in source.stored)
    assert f"cls.predictions.{changed} differs from " in source.notes[0]


def test_settings_that_our_network_does_not_follow_are_told(theirs):
    change_json(theirs / "config.json", layer_norm_eps=1e-5)
    [note] = open_source(theirs).notes
    assert "layer_norm_eps 1e-05, but this network always uses 1e-12" in note


def change_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def cut(path, share=0.5):
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])


class Stranger:
    """What a state dict never holds."""

    def __reduce__(self):
        return print, ("this must never run",)


def no_state_dict(value):
    def write(directory):
        torch.save(value, directory / "pytorch_model.bin")
        (directory / "model.safetensors").unlink()

    return write


def replaced(name, content):
    def write(directory):
        (directory / name).write_bytes(content)

    return write


def quantised(directory):
    save_file(
        {"pooler.dense.weight": torch.zeros(2, 2, dtype=torch.int8)},
        directory / "model.safetensors",
    )


def twice(directory):
    values = {"pooler.dense.bias": torch.zeros(2), "bert.pooler.dense.bias": torch.zeros(2)}
    save_file(values, directory / "model.safetensors")


def as_index(content):
    def write(directory):
        (directory / "model.safetensors").rename(directory / "model-1.safetensors")
        (directory / "model.safetensors.index.json").write_text(json.dumps(content))

    return write


def two_models(directory):
    (directory / "bert_model.ckpt.index").touch()


def safetensors_header(header):
    content = header.encode()
    return replaced("model.safetensors", len(content).to_bytes(8, "little") + content + bytes(12))


def one_array(**changes):
    return json.dumps({"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12], **changes}})


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n"

WRONG = {
    "header cut": (lambda d: cut(d / "model.safetensors", 0.1), "the file is truncated"),
    "values cut": (lambda d: cut(d / "model.safetensors", 0.9), "the file is truncated"),
    "nine bytes": (replaced("model.safetensors", b"123"), "the file is truncated"),
    "other content": (replaced("model.safetensors", b"GIF89a" * 9), "is not a safetensors file"),
    "damaged header": (
        replaced("model.safetensors", (9).to_bytes(8, "little") + b'{"a":[1]}'),
        "header of this safetensors file is damaged",
    ),
    "a place too small": (
        replaced(
            "model.safetensors",
            (54).to_bytes(8, "little")
            + b'{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}'.ljust(54)
            + bytes(8),
        ),
        "header of this safetensors file is damaged",
    ),
    **{
        name: (safetensors_header(header), "header of this safetensors file is damaged")
        for name, header in [
            ("nested shape", one_array(shape=[[3]])),
            ("another type", one_array(dtype="C64")),
            ("a deep header", '{"a":' * 9999),
        ]
    },
    "a list": (safetensors_header("[" * 9), "is not a safetensors file"),
    "endless header": (
        replaced("model.safetensors", b"\xff" * 7 + b"\x7f" + b"{" * 99),
        "is not a safetensors file",
    ),
    "git-lfs": (replaced("model.safetensors", POINTER), "is a git-lfs pointer"),
    "a program": (no_state_dict({"a": Stranger()}), "refers to 'print', which a plain"),
    "a whole module": (no_state_dict(torch.nn.Linear(1, 1)), "refers to 'torch.nn.modules"),
    "a number": (no_state_dict(3), "does not contain a dictionary of tensors"),
    "a note": (no_state_dict({"epoch": 3}), "'epoch' is not a tensor but has type int"),
    "quantised": (quantised, "pooler.dense.weight has type int8"),
    "twice": (twice, "are the same variable"),
    "no shard": (
        as_index({"weight_map": {"a": "model-2.safetensors"}}),
        "'model-2.safetensors' is missing in",
    ),
    "a name too long": (as_index({"weight_map": {"a": "m" * 999}}), "m' is missing in"),
    "not there": (
        as_index({"weight_map": {"a": "model-1.safetensors"}}),
        "model-1.safetensors does not contain 'a';",
    ),
    "no map": (as_index({}), "it has no weight_map"),
    "numbers for files": (as_index({"weight_map": {"a": 1}}), "its weight_map has 1 for 'a'"),
    "lists for files": (
        as_index({"weight_map": {"a": ["model-1.safetensors"]}}),
        "its weight_map has ['model-1.safetensors'] for 'a'",
    ),
    "no file": (as_index({"weight_map": {"a": ""}}), "its weight_map has '' for 'a'"),
    "an index of a list": (as_index([]), "it has no weight_map"),
    "two models": (
        two_models,
        "contains several models, model.safetensors, bert_model.ckpt.index;",
    ),
    "another network": (
        lambda d: change_json(d / "config.json", model_type="roberta"),
        "model_type 'roberta' is not supported",
    ),
    "tokenizer": (
        replaced("tokenizer_config.json", b'{"do_lower_case": "yes"}'),
        "do_lower_case must be true or false",
    ),
    "a list for a tokenizer": (
        replaced("tokenizer_config.json", b"[]"),
        "tokenizer_config.json is not a JSON object",
    ),
    "a list for a network": (replaced("config.json", b"[]"), "config.json is not a JSON object"),
    "architecture of numbers": (
        lambda d: change_json(d / "config.json", architectures=5, hidden_size=1e9),
        "hidden_size must be a positive whole number, not 1000000000.0",
    ),
    "empty": (lambda d: (d / "model.safetensors").unlink(), "holds no checkpoint"),
}


@pytest.mark.parametrize(("damage", "words"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_one_sentence(theirs, capsys, damage, words):
    damage(theirs)
    with pytest.raises(UserError) as error:
        open_source(theirs)
    message = str(error.value)
    assert words in message
    assert str(theirs) in message
    assert "\n" not in message
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
def test_truncated_pytorch_files(tmp_path, model, zipped, share):
    path = tmp_path / "pytorch_model.bin"
    torch.save(model.state_dict(), path, _use_new_zipfile_serialization=zipped)
    cut(path, share)
    with pytest.raises(UserError, match="truncated"):
        open_source(path)


def test_truncated_and_foreign_tensorflow_files(google, tmp_path):
    data = google / "bert_model.ckpt.data-00000-of-00001"
    whole = data.read_bytes()
    cut(data, 0.99)
    with pytest.raises(UserError, match="the file is truncated"):
        open_source(google)
    data.write_bytes(POINTER)
    with pytest.raises(UserError, match="git-lfs pointer"):
        open_source(google)
    data.write_bytes(whole)
    index = google / "bert_model.ckpt.index"
    whole = index.read_bytes()
    index.write_bytes(whole[-48:])  # its footer, which refers to blocks before it
    with pytest.raises(UserError, match=r"bert_model\.ckpt cannot be read .*; copy it again"):
        open_source(google)
    index.write_bytes(whole)
    write_checkpoint(str(google / "other.ckpt"), {"a": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match=r"holds bert_model\.ckpt, other\.ckpt; give the path"):
        open_source(google)
    with pytest.raises(UserError, match=r"vocab\.txt is not a checkpoint of a known kind"):
        open_source(google / "vocab.txt")
    with pytest.raises(UserError, match="missing does not exist"):
        open_source(tmp_path / "missing")
    write_checkpoint(str(tmp_path / "v2"), {"_CHECKPOINTABLE_OBJECT_GRAPH": np.zeros(1)})
    with pytest.raises(UserError, match=r"v2 cannot be read"):
        open_source(tmp_path / "v2")


@pytest.mark.parametrize(
    ("old", "new"),
    [(b"a\x08\x01\x12", b"a\x08\x41\x12"), (b"\x0fa\x08", b"\x0f\xff\x08")],
    ids=["type", "name"],
)
def test_an_index_of_another_program(tmp_path, old, new):
    """With an unknown type, or a name that is not text; checksums are right."""
    write_checkpoint(str(tmp_path / "a.ckpt"), {"a": np.zeros(3, np.float32)})
    path = tmp_path / "a.ckpt.index"
    whole = path.read_bytes()
    end = whole[-48] - 4  # where the footer refers to, without the checksum before it
    entries = whole[:end].replace(old, new)
    assert entries != whole[:end]
    path.write_bytes(entries + frame_of(entries)[-4:] + whole[end + 4 :])
    with pytest.raises(UserError, match=r"a\.ckpt cannot be read .*; copy it again"):
        open_source(tmp_path)


def open_and_read(path):
    with contextlib.suppress(UserError):
        read_all(path)


@pytest.mark.parametrize("kind", ["zip", "before 1.6", "safetensors"])
def test_damage_anywhere_is_no_other_error(tmp_path, kind):
    values = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}
    path = tmp_path / ("model.safetensors" if kind == "safetensors" else "pytorch_model.bin")
    if kind == "safetensors":
        save_file(values, path)
    else:
        torch.save(values, path, _use_new_zipfile_serialization=kind == "zip")
    whole, random = path.read_bytes(), np.random.default_rng(7)
    for _ in range(300):
        damaged = np.frombuffer(whole, np.uint8).copy()
        places = random.integers(len(damaged), size=random.choice([1, 8]))
        damaged[places] = random.integers(256, size=len(places))
        path.write_bytes(damaged.tobytes())
        open_and_read(path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b'model_checkpoint_path: "m', b"neither: 3", b'\xc3"']
)
def test_a_damaged_list_of_checkpoints(google, content):
    """Where one checkpoint is there it is the latest; of two nothing says which."""
    (google / "checkpoint").write_bytes(content)
    assert open_source(google).path == str(google / "bert_model.ckpt")
    for path in list(google.glob("bert_model.ckpt.*")):
        path.with_name(f"other{path.name}").write_bytes(path.read_bytes())
    with pytest.raises(UserError, match=r"holds bert_model[.]ckpt, otherbert_model[.]ckpt; give"):
        open_source(google)


@pytest.mark.parametrize("target", ["google", "huggingface"])
def test_no_room_for_a_converted_model(google, tmp_path, target):
    with pytest.raises(UserError, match=r"cannot write .*File too large"), no_room(2000):
        convert(open_source(google), tmp_path / "out", target)
    assert not list(tmp_path.glob("*out*"))
