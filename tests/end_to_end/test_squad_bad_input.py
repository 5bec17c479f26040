"""Wrong use of run_squad.py is caught before training, with one sentence that names it.

All cases but the last run in this process, as nothing of TensorFlow is started before they end.
"""

import json

import pytest
import tensorflow.compat.v1 as tf
from absl import flags as absl_flags

from bert_tf.model.bert import bert_specs
from bert_tf.model.config import BertConfig
from bert_tf.model.variables import create_variables
from bert_tf.tasks.question_answering import run as squad_task
from bert_tf.tasks.question_answering.settings import define_squad_flags, squad_settings
from bert_tf.util.errors import UserError
from tests.helpers.programs import run
from tests.helpers.squad_files import CONFIG, ENTRIES, LENGTHS, squad, write_model, write_squad


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Named right and wrong files for the cases."""
    directory = tmp_path_factory.mktemp("wrong_squad")
    write_squad(directory / "train.json", 2, seed=1)
    write_squad(directory / "train2.json", 2, seed=1, unanswerable=True)

    def write(name, content):
        path = directory / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def changed(name, change):
        content = squad(2, seed=1)
        change(content["data"][0]["paragraphs"])
        return write(name, content)

    def questions(paragraphs):
        return [question for paragraph in paragraphs for question in paragraph["qas"]]

    def duplicate(paragraphs):
        first, second = questions(paragraphs)[:2]
        second["id"] = first["id"]

    def displace(paragraphs):
        for question in questions(paragraphs):
            question["answers"][0]["answer_start"] += 10

    def forget(paragraphs):
        for question in questions(paragraphs):
            question["answers"] = []

    cased = write_model(directory / "cased")
    (cased / "vocab.txt").write_text("\n".join([*ENTRIES[:-1], "Paris"]) + "\n")
    says_cased = write_model(directory / "says_cased")
    write("says_cased/tokenizer_config.json", {"do_lower_case": False})
    small = write_model(directory / "small")
    (small / "bert_config.json").write_text(json.dumps({**CONFIG, "vocab_size": 10}))
    no_vocabulary = write_model(directory / "no_vocabulary")
    (no_vocabulary / "vocab.txt").unlink()
    return {
        "directory": directory,
        "train2": directory / "train2.json",
        "duplicate": changed("duplicate.json", duplicate),
        "displaced": changed("displaced.json", displace),
        "unlabelled": changed("unlabelled.json", forget),
        "malformed": write("malformed.json", '{"data": ['),
        "empty": write("empty.json", ""),
        "no_questions": write("no_questions.json", {"version": "1.1", "data": []}),
        "other_json": write("other.json", ["not", "SQuAD"]),
        "start": write_model(directory / "start"),
        "cased": cased,
        "says_cased": says_cased,
        "small": small,
        "no_vocabulary": no_vocabulary,
        "nothing": directory,
        "float16": write("float16.json", {"logits": "fp16"}),
        "other_policy": write("other_policy.json", {"gelu": "fp16"}),
    }


# What is wrong, the flags that make it so, what the sentence must name.
CASES = [
    ("no output directory", ["--output_dir="], "--output_dir"),
    ("nothing to do", ["--nodo_train"], "--do_predict"),
    ("no training file", ["--train_file="], "--train_file"),
    ("no file to predict", ["--do_predict"], "--predict_file"),
    ("missing file", ["--train_file=nowhere.json"], "nowhere.json"),
    ("empty file", ["--train_file={empty}"], "empty.json"),
    ("malformed JSON", ["--train_file={malformed}"], "malformed.json"),
    ("other JSON", ["--train_file={other_json}"], "other.json"),
    ("no questions", ["--train_file={no_questions}"], "no_questions.json"),
    ("duplicate ids", ["--train_file={duplicate}"], "same id"),
    ("answers not where they should be", ["--train_file={displaced}"], "answer_start"),
    ("no answers to train on", ["--train_file={unlabelled}"], "has no answer"),
    ("v2.0 without its flag", ["--train_file={train2}"], "--version_2_with_negative"),
    ("scores without answers",
     ["--do_predict", "--predict_file={unlabelled}", "--save_checkpoints_steps=2",
      "--eval_every_steps=2"], "--eval_every_steps"),
    ("beyond the positions", ["--max_seq_length=60"], "max_position_embeddings=48"),
    ("no room for a context", ["--max_query_length=37"], "--max_seq_length=40"),
    ("cased vocabulary, lower case", ["{cased}", "--do_lower_case"], "--do_lower_case"),
    ("uncased vocabulary, capitals", ["--do_lower_case=false"], "--do_lower_case"),
    ("cased model, lower case", ["{says_cased}", "--do_lower_case"], "--do_lower_case"),
    ("another vocabulary", ["{small}"], "vocabulary"),
    ("no vocabulary", ["{no_vocabulary}"], "--vocab_file"),
    ("no model", ["{nothing}"], "--bert_config_file"),
    ("a model by its name", ["--init_checkpoint=bert-base-uncased"],
     "--init_checkpoint=bert-base-uncased is neither a file nor a directory, and no model is down"),
    ("two vocabularies", ["--vocab_file={empty}", "--spm_model_file={empty}"], "--spm_model_file"),
    ("all warm-up and more", ["--warmup_proportion=1.5"], "--warmup_proportion=1.5"),
    ("no epochs", ["--num_train_epochs=0"], "--num_train_epochs=0"),
    ("seeds that are no numbers", ["--seeds=1,x"], "--seeds=1,x"),
    ("the same seed twice", ["--seeds=1,1"], "--seeds=1,1"),
    ("no answers listed", ["--n_best_size=0"], "--n_best_size=0"),
    ("empty batches", ["--predict_batch_size=0"], "--predict_batch_size=0"),
    ("float16 on a CPU", ["--precision=fp16"], "--allow_slow_fp16"),
    ("float16 on a CPU, predicting",
     ["--nodo_train", "--do_predict", "--predict_file={directory}/train.json", "--manual_fp16"],
     "--precision=fp16 on a CPU"),
    ("several seeds in one log", ["--seeds=1,2", "--dllog_path=log.json"], "--dllog_path"),
    ("a log that is a directory", ["--dllog_path={nothing}"], "is a directory; give a file name"),
    ("float16 from a file on a CPU", ["--precision_policy={float16}"], "(--precision_policy)"),
    ("unknown class of operation", ["--precision_policy={other_policy}"], "class 'gelu'"),
    ("stopping without evaluations", ["--early_stopping_evaluations=2"], "--eval_every_steps"),
]  # fmt: skip


def arguments(changes, files, output_dir):
    """Flags of a good run from ``{start}``, or from another directory, with changes."""
    changes = [change.format(**files) for change in changes]
    models = [change for change in changes if not change.startswith("--")]
    return [
        "run_squad.py",
        f"--init_checkpoint={(models or [files['start']])[0]}",
        f"--train_file={files['directory'] / 'train.json'}",
        f"--output_dir={output_dir}",
        *LENGTHS,
        "--train_batch_size=4",
        "--do_train",
        *(change for change in changes if change.startswith("--")),
    ]


@pytest.mark.parametrize(
    ("changes", "named"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_refused(changes, named, files, tmp_path):
    values = absl_flags.FlagValues()
    define_squad_flags(values)
    values(arguments(changes, files, tmp_path / "out"))
    with pytest.raises(UserError) as error:
        squad_task.run(squad_settings(values))
    sentence = str(error.value)
    assert named in sentence
    assert sentence.endswith(".")
    assert "\n" not in sentence


def test_predicting_without_a_span_head(files, tmp_path):
    """By the program itself: one line, status 2."""
    headless = write_model(tmp_path / "headless")
    config = BertConfig.from_dict(CONFIG)
    with tf.Graph().as_default(), tf.Session() as session:
        create_variables(bert_specs(config, pooler=True), initializer_range=0.02)
        session.run(tf.global_variables_initializer())
        tf.train.Saver().save(session, str(headless / "bert_model.ckpt"))
    done = run(
        "run_squad.py",
        f"--init_checkpoint={headless}",
        f"--predict_file={files['directory'] / 'train.json'}",
        f"--output_dir={tmp_path / 'out'}",
        *LENGTHS,
        "--do_predict",
        check=False,
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    [sentence] = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "has no span head" in sentence
    assert "--do_train" in sentence
