"""An exported model as its users meet it: without bert_tf, by TensorFlow's tool, in REST's form.

No TensorFlow Serving is needed: the conversions of its REST interface are written out here.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bert_tf.model_directory.complete import find_model
from bert_tf.serving.load import load_model
from tests.helpers.programs import environment, run
from tests.helpers.small_span_model import VOCABULARY, predictor_of, write_model
from tests.helpers.small_task_models import WRITERS

ROWS = [
    {
        "input_ids": [2, 5, 6, 3, 7, 8, 9, 3],
        "input_mask": [1] * 8,
        "segment_ids": [0] * 4 + [1] * 4,
    },
    {
        "input_ids": [2, 6, 3, 9, 10, 3, 0, 0],
        "input_mask": [1] * 6 + [0] * 2,
        "segment_ids": [0] * 3 + [1] * 3 + [0] * 2,
    },
]
COLUMNS = {name: [row[name] for row in ROWS] for name in ROWS[0]}

# Runs without bert_tf and reads a request as TensorFlow Serving's REST interface does.
CLIENT = """
import json, sys
sys.modules["bert_tf"] = None  # an import of it fails
import tensorflow as tf
directory, request = sys.argv[1], json.loads(sys.argv[2])
loaded = tf.saved_model.load(directory)
signature = loaded.signatures[request.get("signature_name", "serving_default")]
inputs = signature.structured_input_signature[1]
if "instances" in request:
    columns = {name: [row[name] for row in request["instances"]] for name in inputs}
else:
    columns = request["inputs"]
assert set(columns) == set(inputs), "every input is needed"
found = signature(**{n: tf.constant(v, inputs[n].dtype) for n, v in columns.items()})
texts = {n for n, v in found.items() if v.dtype == tf.string}  # TensorFlow Serving: UTF-8
outputs = {n: v.numpy().astype(str) if n in texts else v.numpy() for n, v in found.items()}
outputs = {name: value.tolist() for name, value in outputs.items()}
if "instances" in request:
    rows = [dict(zip(outputs, values)) for values in zip(*outputs.values())]
    print(json.dumps({"predictions": rows}, allow_nan=False))
else:
    print(json.dumps({"outputs": outputs}, allow_nan=False))
"""


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def exported(model_dir, tmp_path_factory):
    export_dir = tmp_path_factory.mktemp("export") / "squad"
    done = run("-m", "bert_tf.commands.export", f"--model_dir={model_dir}",
               f"--export_dir={export_dir}", "--n_best_size=3")  # fmt: skip
    assert done.stdout.startswith(f"exported {model_dir} to {export_dir / '1'}\n")
    assert not done.stderr
    return export_dir / "1"


@pytest.fixture(scope="module")
def expected(model_dir):
    parts = find_model(model_dir)
    model = predictor_of(parts, num_candidates=3, native_ops=False)
    return model.run({name: np.array(rows) for name, rows in COLUMNS.items()})


def answer(exported, request, tmp_path):
    variables = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
    done = run("-c", CLIENT, exported, json.dumps(request), cwd=tmp_path, env=variables)
    return json.loads(done.stdout)


@pytest.mark.each_tensorflow
def test_rest_rows(exported, expected, tmp_path):
    request = {"signature_name": "serving_default", "instances": ROWS}
    predictions = answer(exported, request, tmp_path)["predictions"]
    assert len(predictions) == len(ROWS)
    for row, prediction in enumerate(predictions):
        for name in ("start_logits", "end_logits", "null_logits"):
            np.testing.assert_allclose(
                prediction[name], expected[name][row], atol=1e-5, err_msg=name
            )
        assert prediction["top_start_indices"] == expected["top_start_indices"][row].tolist()


def test_rest_columns_with_unique_ids(exported, expected, tmp_path):
    inputs = {"unique_ids": [7, 8], **COLUMNS}
    request = {"signature_name": "with_unique_ids", "inputs": inputs}
    outputs = answer(exported, request, tmp_path)["outputs"]
    assert outputs["unique_ids"] == [7, 8]
    np.testing.assert_allclose(outputs["end_logits"], expected["end_logits"], atol=1e-5)
    assert outputs["top_end_indices"] == expected["top_end_indices"].tolist()


TASKS = {
    "classification": {"classes", "label", "label_id", "logits", "probabilities"},
    "tagging": {"label_ids", "labels", "logits", "probabilities"},
    "question_answering": {
        *("start_logits", "end_logits", "null_logits", "top_start_indices", "top_start_logits"),
        *("top_end_indices", "top_end_logits"),
    },
    "masked_words": {"positions", "probabilities", "word_ids", "words"},
    "multiple_choice": {"scores"},
    "vectors": {"vectors"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "task", [pytest.param(t, marks=[] if t == "tagging" else pytest.mark.exhaustive) for t in TASKS]
)
def test_models_of_every_task(tmp_path, task):
    model = WRITERS[task](tmp_path / "model")
    export_dir = tmp_path / "served"
    done = run(
        "-m", "bert_tf.commands.export", f"--model_dir={model}", f"--export_dir={export_dir}"
    )
    assert done.stdout.splitlines() == [
        f"exported {model} to {export_dir / '1'}",
        f"{export_dir / 'models.config'} is for TensorFlow Serving",
    ]
    rows = [{**row, "input_ids": [4, *row["input_ids"][1:]]} for row in ROWS]  # [MASK]
    found = answer(export_dir / "1", {"instances": rows}, tmp_path)["predictions"]
    assert len(found) == len(rows)
    assert {name for row in found for name in row} == TASKS[task]
    if task == "tagging":
        [tagged] = load_model(model).predict([["who", "wrote"]])
        features = {"input_ids": [[2, 5, 6, 3]], "input_mask": [[1] * 4], "segment_ids": [[0] * 4]}
        answered = answer(export_dir / "1", {"inputs": features}, tmp_path)["outputs"]
        assert answered["labels"][0][1:3] == list(tagged.labels)


@pytest.mark.slow
def test_a_repository_for_triton(tmp_path):
    model = WRITERS["classification"](tmp_path / "model")
    flags = [f"--model_dir={model}", f"--export_dir={tmp_path / 'served'}", "--server=triton"]
    done = run("-m", "bert_tf.commands.export", *flags)
    assert done.stdout.endswith(f"{tmp_path / 'served/config.pbtxt'} is for Triton\n")
    assert "tensorflow_savedmodel" in (tmp_path / "served/config.pbtxt").read_text()
    found = answer(tmp_path / "served/1/model.savedmodel", {"inputs": COLUMNS}, tmp_path)["outputs"]
    assert [len(row) for row in found["classes"]] == [3, 3]
    # A second version leaves the file alone, which may have been changed.
    done = run("-m", "bert_tf.commands.export", *flags)
    assert done.stdout.splitlines() == [
        f"exported {model} to {tmp_path / 'served/2'}",
        f"{tmp_path / 'served/config.pbtxt'} was there and is kept",
    ]


@pytest.mark.parametrize("int8", [pytest.param(False, marks=pytest.mark.slow), True])
def test_onnx(tmp_path, int8):
    for name in ("onnxruntime", "tf2onnx"):
        pytest.importorskip(name, reason=f"{name} is not installed")
    model = WRITERS["classification"](tmp_path / "model")
    flags = [f"--model_dir={model}", f"--export_dir={tmp_path / 'served'}", "--format=onnx"]
    done = run("-m", "bert_tf.commands.export", *flags, f"--int8={int8}")
    exported, difference, config = done.stdout.splitlines()
    assert exported == f"exported {model} to {tmp_path / 'served/1'}"
    how = "in 8-bit integers" if int8 else "in float32"
    assert re.fullmatch(rf"largest difference of .* {how} .*: \d\.\de[-+]\d\d", difference)
    assert config == f"{tmp_path / 'served/config.pbtxt'} is for Triton"
    assert not done.stderr
    assert "onnxruntime_onnx" in (tmp_path / "served/config.pbtxt").read_text()


def saved_model_cli(*arguments):
    tool = Path(sys.executable).with_name("saved_model_cli")
    done = subprocess.run(
        [str(tool), *map(str, arguments)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_saved_model_cli_shows_the_signatures(exported):
    shown = saved_model_cli("show", "--dir", exported, "--tag_set", "serve", "--all")
    for name in ("serving_default", "with_unique_ids"):
        assert f"signature_def['{name}']" in shown
    assert "signature_def['text']" not in shown
    assert shown.count("inputs['unique_ids'] tensor_info:") == 1
    assert "outputs['null_logits'] tensor_info:" in shown


@pytest.mark.exhaustive
def test_saved_model_cli_runs_it(exported, expected, tmp_path):
    np.savez(tmp_path / "ids.npz", ids=np.array(COLUMNS["input_ids"], np.int32))
    expressions = f"input_mask={COLUMNS['input_mask']};segment_ids={COLUMNS['segment_ids']}"
    saved_model_cli(
        "run", "--dir", exported, "--tag_set", "serve", "--signature_def", "serving_default",
        "--inputs", f"input_ids={tmp_path}/ids.npz[ids]", "--input_exprs", expressions,
        "--outdir", tmp_path,
    )  # fmt: skip
    found = np.load(tmp_path / "start_logits.npy")
    np.testing.assert_allclose(found, expected["start_logits"], atol=1e-5)


BAD = [
    ("no export directory", ["--export_dir="], "--export_dir"),
    ("a file instead", ["--export_dir={file}"], "cannot write to"),
    ("version that exists", ["--export_dir={export_dir}", "--version=1"], "1 already exists"),
    ("no model", ["--model_dir=nowhere"], "--model_dir=nowhere is neither a file nor a directory"),
    ("no span head", ["--model_dir={pretrained}"], "run_squad.py --do_train"),
    ("no candidates", ["--n_best_size=0"], "--n_best_size=0"),
    ("too long", ["--max_seq_length=100"], "--max_seq_length=100"),
    ("8 bits of another format", ["--task=vectors", "--int8"], "--int8 is for --format=onnx"),
    (
        "server without ONNX",
        ["--task=vectors", "--format=onnx", "--server=tensorflow_serving"],
        "--server=tensorflow_serving serves no ONNX",
    ),
    (
        "strings in ONNX",
        ["--task=vectors", "--format=onnx", "--text_signature"],
        "--text_signature is for SavedModels",
    ),
    (
        "precision of ONNX",
        ["--task=vectors", "--format=onnx", "--precision=bf16"],
        "--precision and --precision_policy are for SavedModels",
    ),
    ("another head", ["--task=tagging"], "no head of labels; give a model that run_ner.py"),
    ("unknown precision", ["--precision=fp8"], "--precision=fp8"),
    ("no policy", ["--precision_policy={vocabulary}"], "--precision_policy: "),
    ("another vocabulary", ["--vocab_file={vocabulary}"], "the vocabulary has"),
]


@pytest.mark.parametrize(("flags", "sentence"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad_input_is_one_sentence(model_dir, exported, tmp_path, flags, sentence):
    names = {
        "file": tmp_path / "file",
        "export_dir": exported.parent,
        "pretrained": tmp_path / "pretrained",
        "vocabulary": tmp_path / "vocab.txt",
    }
    names["file"].write_text("no directory")
    names["vocabulary"].write_text("".join(f"{e}\n" for e in [*VOCABULARY, "more"]))
    if "{pretrained}" in flags[0]:
        write_model(names["pretrained"], span_head=False)
    usual = [f"--model_dir={model_dir}", f"--export_dir={tmp_path}/squad"]
    given = [flag.format(**names) for flag in flags]
    usual += [] if "--task" in flags[0] else ["--task=question_answering"]
    done = run("-m", "bert_tf.commands.export", *usual, *given, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert sentence in done.stderr
    assert not list(tmp_path.glob("squad/*"))
