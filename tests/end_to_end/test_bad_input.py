"""Bad input gets one clear sentence and a non-zero exit: never a stack trace, never silence.

Cases that are found before a graph is built run in this process; the others run the program.
"""

import json
import os
import shutil

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

from bert_tf.durable.sealed_json import SEAL
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.tasks.pretraining import flags as pretraining_flags
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.util.errors import UserError
from tests.helpers.programs import environment, run

SCRIPT = "run_pretraining.py"


@pytest.fixture(scope="module")
def files(data, bert_config, tmp_path_factory):
    """Named wrong files for the cases."""
    directory = tmp_path_factory.mktemp("wrong")
    records = sorted((data / "records" / "train").glob("*.tfrecord"))
    first = records[0].read_bytes()

    def write(name, content):
        path = directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def config(**changes):
        changed = {**json.loads(bert_config.read_text()), **changes}
        return write(f"config-{'-'.join(changes)}.json", json.dumps(changed))

    record_set = RecordSet(records[:1])
    with TFRecordWriter(directory / "beyond.tfrecord") as writer:
        for record in record_set.read(range(len(record_set))):
            example = PRETRAINING_MASKED.decode(record)
            example["masked_lm_positions"][-1] = 32
            writer.write(PRETRAINING_MASKED.encode(example))
    flipped = bytearray(first)
    flipped[len(flipped) // 2] ^= 0xFF
    (directory / "empty_directory").mkdir()
    return {
        "directory": directory,
        "empty": write("empty.tfrecord", b""),
        "empty_json": write("empty.json", b""),
        "truncated": write("truncated.tfrecord", first[:-7]),
        "corrupted": write("corrupted.tfrecord", bytes(flipped)),
        "beyond": directory / "beyond.tfrecord",
        "text": write("notes.txt", "these are no records\n" * 50),
        "no_json": write("broken.json", "{'vocab_size': 5"),
        "misspelt": config(hiden_size=3),
        "indivisible": config(num_attention_heads=5),
        "few_positions": config(max_position_embeddings=16),
        "other_width": config(hidden_size=64),
        "empty_directory": directory / "empty_directory",
        "policy": write("policy.json", json.dumps({"softmax": "fp16"})),
        "misspelt_policy": write("misspelt_policy.json", json.dumps({"sofmax": "fp16"})),
    }


# What is wrong, the flags that make it so, what the sentence must name.
BEFORE_TENSORFLOW = [
    ("no config", ["--bert_config_file="], "--bert_config_file"),
    ("missing config", ["--bert_config_file=nowhere.json"], "nowhere.json"),
    ("empty config", ["--bert_config_file={empty_json}"], "is empty"),
    ("no output directory", ["--output_dir="], "--output_dir"),
    ("nothing to do", ["--nodo_train"], "--do_train"),
    ("no training records", ["--input_file="], "--input_file"),
    ("missing records", ["--input_file=nowhere*.tfrecord"], "nowhere*.tfrecord"),
    ("empty directory", ["--input_file={empty_directory}"], "empty_directory"),
    ("two names for the records", ["--input_files_dir={directory}"], "--input_files_dir"),
    ("two micro batches", ["--micro_batch_size=3"], "--micro_batch_size=3"),
    ("no heads", ["--nsp=false", "--mlm=false"], "--nsp=false"),
    ("negative clip", ["--clip_norm=-1"], "--clip_norm=-1"),
    ("masking everything", ["--masked_lm_prob=1.5"], "--masked_lm_prob=1.5"),
    ("masking no word", ["--ngram=0"], "--ngram"),
    ("masking nothing", ["--final_masked_lm_prob=0"], "--final_masked_lm_prob=0"),
    ("no checkpoints", ["--save_checkpoints_steps=0"], "--save_checkpoints_steps=0"),
    (
        "evaluation between checkpoints",
        ["--do_eval", "--eval_every_steps=4"],
        "=4 is not a multiple",
    ),
    ("pauses without evaluation", ["--eval_every_steps=3"], "--do_eval"),
    ("rewrite and precision", ["--amp", "--precision=bf16"], "--amp"),
    ("two precisions", ["--manual_fp16", "--precision=bf16"], "--manual_fp16"),
    ("two bias corrections", ["--optimizer_type=lamb", "--adam_bias_correction"], "LAMB"),
    ("rewrite and policy", ["--amp", "--precision_policy={policy}"], "--amp"),
    ("missing policy", ["--precision_policy=nowhere.json"], "nowhere.json"),
    ("unknown class", ["--precision_policy={misspelt_policy}"], "unknown class 'sofmax'"),
    ("tiny loss scale", ["--init_loss_scale=0.5"], "--init_loss_scale=0.5"),
    ("huge loss scale", ["--loss_scale=1e10"], "--loss_scale=1e+10"),
    (
        "two loss scales",
        ["--loss_scale=128", "--init_loss_scale=65536"],
        "--loss_scale=128 is constant, but --init_loss_scale is for a dynamic loss scale",
    ),
    ("floor above the start", ["--min_loss_scale=1e6"], "--min_loss_scale=1e+06"),
    ("no window", ["--loss_scale_window=0"], "--loss_scale_window=0"),
    ("no skipped update", ["--max_skipped_updates=0"], "--max_skipped_updates=0"),
]

BEFORE_THE_GRAPH = [
    ("malformed config", ["--bert_config_file={no_json}"], "not valid JSON"),
    ("misspelt key", ["--bert_config_file={misspelt}"], "hiden_size"),
    ("heads do not divide", ["--bert_config_file={indivisible}"], "num_attention_heads"),
    ("table too small", ["--vocab_size=100"], "vocab_size is 100, but the records in"),
    ("too few positions", ["--bert_config_file={few_positions}"], "max_position_embeddings"),
    ("wrong length", ["--max_seq_length=64"], "--max_seq_length"),
    ("wrong predictions", ["--max_predictions_per_seq=9"], "--max_predictions_per_seq"),
    ("batch arithmetic", ["--global_batch_size=20"], "20"),
    ("long warm-up", ["--num_warmup_steps=7"], "--num_warmup_steps=7"),
    ("float16 on a CPU", ["--precision=fp16"], "--precision=fp16"),
    ("float16 from a file", ["--precision_policy={policy}"], "softmax (--precision_policy)"),
    ("loss scale of float32", ["--loss_scale=128"], "--loss_scale=128 is for gradients that pass"),
    ("nothing to evaluate", ["--nodo_train", "--do_eval"], "contains no checkpoint"),
]

DIVERGES = ["--learning_rate=1e30", "--clip_norm=0"]
IN_TENSORFLOW = [
    ("empty records", ["--input_file={empty}"], "empty.tfrecord"),
    ("no records", ["--input_file={text}"], "notes.txt"),
    ("truncated record", ["--input_file={truncated}"], "truncated.tfrecord"),
    ("corrupted record", ["--input_file={corrupted}", "--num_train_steps=40"], "corrupted.tf"),
    ("position out of range", ["--input_file={beyond}"], "beyond.tfrecord cannot be used: its mas"),
    ("missing checkpoint", ["--init_checkpoint=nowhere/model.ckpt"], "nowhere/model.ckpt"),
]


def with_files(changes, files):
    return [change.format(**files) for change in changes]


@pytest.mark.parametrize(
    ("changes", "named"),
    [case[1:] for case in BEFORE_TENSORFLOW],
    ids=[c[0] for c in BEFORE_TENSORFLOW],
)
def test_refused_before_tensorflow_starts(changes, named, flags, files, tmp_path):
    values = values_of(
        *flags, f"--output_dir={tmp_path}", "--do_train", *with_files(changes, files)
    )
    with pytest.raises(UserError) as error:
        pretraining_flags.pretraining_settings(values)
    assert named in str(error.value)


def values_of(*given):
    values = absl_flags.FlagValues()
    pretraining_flags.define_pretraining_flags(values)
    values([SCRIPT, *given])
    return values


@pytest.mark.parametrize(
    ("changes", "named"),
    [case[1:] for case in BEFORE_THE_GRAPH],
    ids=[case[0] for case in BEFORE_THE_GRAPH],
)
def test_refused_before_a_graph_is_built(changes, named, flags, files, tmp_path, capfd):
    values = values_of(
        *flags, f"--output_dir={tmp_path}", "--do_train", *with_files(changes, files)
    )
    with pytest.raises(UserError) as error:
        pretraining.run(pretraining_flags.pretraining_settings(values))
    sentence = str(error.value)
    assert named in sentence
    assert sentence[-1] in ".?"
    assert "\n" not in sentence
    assert capfd.readouterr().err == ""


def assert_one_sentence(done, named):
    assert done.returncode == 2, done.stdout + done.stderr
    [sentence] = [line for line in done.stderr.splitlines() if line]
    assert sentence.startswith("error: ")
    assert named in sentence
    assert sentence[-1] in ".?"
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        *(pytest.param(*case[1:], id=case[0]) for case in IN_TENSORFLOW),
        pytest.param(DIVERGES, "not finite", id="rate that diverges", marks=pytest.mark.slow),
    ],
)
def test_refused_by_the_program(changes, named, flags, files, tmp_path):
    given = [*flags, f"--output_dir={tmp_path}", "--do_train", *with_files(changes, files)]
    assert_one_sentence(run(SCRIPT, *given, check=False), named)


@pytest.fixture(scope="module")
def small_model(flags, tmp_path_factory):
    output_dir = tmp_path_factory.mktemp("small")
    run(SCRIPT, *flags, f"--output_dir={output_dir}", "--do_train", "--num_train_steps=2")
    return output_dir


def test_output_directory_of_another_model(flags, files, small_model):
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={small_model}",
        "--do_train",
        f"--bert_config_file={files['other_width']}",
        check=False,
    )
    assert_one_sentence(done, str(small_model))
    assert "hidden_size 32 -> 64" in done.stderr


def test_records_of_another_vocabulary(flags, data, small_model, tmp_path):
    copy, records = tmp_path / "model", tmp_path / "records"
    shutil.copytree(small_model, copy)
    shutil.copytree(data / "records" / "train", records)
    manifest = json.loads((records / "manifest.json").read_text())
    manifest["vocabulary"]["sha256"] = "0" * 64
    del manifest[SEAL]
    (records / "manifest.json").write_text(json.dumps(manifest))
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={copy}",
        "--do_train",
        f"--input_file={records}",
        check=False,
    )
    assert_one_sentence(done, "a different vocabulary")


def test_checkpoint_of_other_shapes(flags, files, small_model, tmp_path):
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={tmp_path}",
        "--do_train",
        f"--init_checkpoint={small_model}",
        f"--bert_config_file={files['other_width']}",
        check=False,
    )
    assert_one_sentence(done, str(small_model))


def test_truncated_checkpoint(flags, small_model, tmp_path):
    copy = tmp_path / "model"
    shutil.copytree(small_model, copy)
    for path in copy.glob("model.ckpt-*.data*"):
        path.write_bytes(path.read_bytes()[:100])
    done = run(SCRIPT, *flags, f"--output_dir={copy}", "--do_train", check=False)
    assert_one_sentence(done, str(copy))


@pytest.mark.slow
def test_weights_that_are_not_finite(flags, small_model, tmp_path):
    reader = tf.train.load_checkpoint(str(small_model))
    with tf.Graph().as_default(), tf.Session() as session:
        for name in reader.get_variable_to_shape_map():
            value = reader.get_tensor(name)
            if name == "bert/embeddings/word_embeddings":
                value = np.full_like(value, np.nan)
            tf.get_variable(name, initializer=value)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(tmp_path / "nan" / "model.ckpt"))
    done = run(
        SCRIPT,
        *flags,
        f"--output_dir={tmp_path / 'out'}",
        "--do_train",
        f"--init_checkpoint={tmp_path / 'nan'}",
        check=False,
    )
    assert_one_sentence(done, "values of bert/embeddings/word_embeddings are NaN or infinite")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere; run as an ordinary user")
def test_output_directory_without_write_permission(flags, tmp_path):
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    done = run(SCRIPT, *flags, f"--output_dir={closed / 'model'}", "--do_train", check=False)
    assert_one_sentence(done, "--output_dir")


def test_output_directory_that_is_a_file(flags, files):
    done = run(SCRIPT, *flags, f"--output_dir={files['text']}", "--do_train", check=False)
    assert_one_sentence(done, "--output_dir")


def test_several_processes_without_horovod(flags, tmp_path):
    of_two = {**environment(), "OMPI_COMM_WORLD_SIZE": "2"}
    command = [SCRIPT, *flags, f"--output_dir={tmp_path}", "--do_train"]
    done = run(*command, check=False, env=of_two)
    assert_one_sentence(done, "--horovod")


def test_unknown_flag(flags):
    done = run(SCRIPT, *flags, "--lerning_rate=1", check=False)
    assert_one_sentence(done, "--lerning_rate is not a flag of this command; did you mean")
    assert "--learning_rate" in done.stderr
