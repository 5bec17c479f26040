"""What the doctor says of planned fine-tunings."""

import json

import pytest
from absl import flags

from bert_tf.commands.doctor import TRAINING_SCRIPTS
from bert_tf.doctor.examination import examine
from bert_tf.util.console import Grade
from tests.helpers.files import content_of

ENTRIES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "?", ".", "the", "tower", "of", "paris", "is"),
    *("high", "who", "built", "it", "where", "river", "flows", "north"),
]
CONFIG = {
    "vocab_size": len(ENTRIES),
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
}


def squad_file(path, question, count=2):
    """``count`` questions on a paragraph."""
    context = "the tower of paris is high . the river flows north ."
    questions = [
        {"id": f"{number}", "question": text, "answers": [{"text": "paris", "answer_start": 13}]}
        for number, text in enumerate([question, *["where is it ?"] * (count - 1)])
    ]
    paragraph = {"context": context, "qas": questions}
    path.write_text(
        json.dumps({"version": "1.1", "data": [{"title": "t", "paragraphs": [paragraph]}]})
    )
    return path


@pytest.fixture
def places(tmp_path):
    (tmp_path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    squad_file(tmp_path / "train.json", "where is the tower ?")
    squad_file(tmp_path / "dev.json", "who built the tower ?")
    return tmp_path


def said_of(script, places, *more):
    values = flags.FlagValues()
    TRAINING_SCRIPTS[script].define(values)
    model = [f"--bert_config_file={places}/config.json", f"--vocab_file={places}/vocab.txt"]
    where = [f"--output_dir={places}/model", "--max_seq_length=24", "--precision=fp32"]
    values(["doctor", *model, *where, "--do_train", "--learning_rate=3e-5", *more])
    return examine(TRAINING_SCRIPTS[script], values, num_ranks=1, ranks_per_host=1)


def squad(places, *more):
    files = [f"--train_file={places}/train.json", f"--predict_file={places}/dev.json"]
    lengths = ["--do_predict", "--max_query_length=8", "--doc_stride=8"]
    return said_of("run_squad.py", places, *files, *lengths, *more)


def of_grade(findings, grade):
    return [(part, sentence) for found, part, sentence in findings if found == grade]


def test_questions(places):
    before = content_of(places)
    findings = squad(places)
    assert not of_grade(findings, Grade.ERROR)
    [(part, sentence)] = of_grade(findings, Grade.WARNING)
    assert part == "checkpoint"
    assert "starts from random" in sentence
    fine = of_grade(findings, Grade.FINE)
    assert {"memory", "disk", "batch", "precision", "vocabulary"} <= {part for part, _ in fine}
    assert content_of(places) == before


@pytest.mark.parametrize(
    ("more", "grade", "part", "sentence"),
    [
        (["--learning_rate=0.01"], Grade.WARNING, "learning rate", "is above the usual range"),
        (["--predict_file={}/train.json"], Grade.WARNING, "questions", "are the training questio"),
        (["--max_seq_length=64"], Grade.ERROR, "whole run", "max_position_embeddings=32"),
        (["--do_lower_case=false"], Grade.ERROR, "whole run", "contradicts --do_lower_case"),
        (["--train_file={}/config.json"], Grade.ERROR, "whole run", "config.json"),
        (["--warmup_proportion=0.9"], Grade.WARNING, "learning rate", "the warm-up takes"),
        (["--init_checkpoint={}/nowhere"], Grade.ERROR, "whole run", "nowhere"),
    ],
    ids=lambda value: value[0].partition("{")[0] if isinstance(value, list) else "",
)
def test_one_thing_wrong_with_questions(places, more, grade, part, sentence):
    findings = squad(places, "--num_train_epochs=90", *(flag.format(places) for flag in more))
    assert [s for p, s in of_grade(findings, grade) if p == part and sentence in s], list(findings)
    assert findings.worst == grade


def test_a_warm_up_is_compared_with_all_questions(places):
    squad_file(places / "train.json", "where is the tower ?", 9)
    length = ["--train_batch_size=1", "--num_train_epochs=10", "--num_warmup_steps=80"]
    assert not of_grade(squad(places, *length), Grade.ERROR)
    too_long = [*length, "--num_warmup_steps=999"]
    assert (
        "is more than the at most"
        in dict(of_grade(squad(places, *too_long), Grade.ERROR))["whole run"]
    )


def test_a_vocabulary_that_is_larger_than_the_network(places):
    (places / "config.json").write_text(json.dumps({**CONFIG, "vocab_size": 9}))
    [(part, sentence)] = of_grade(squad(places), Grade.ERROR)
    assert part == "whole run"
    assert "the vocabulary has 20 entries and the model 9" in sentence


def test_classification(places):
    (places / "train.tsv").write_text("sentence\tlabel\nthe tower is high\t1\nthe river\t0\n")
    files = ["--task_name=SST-2", f"--data_dir={places}"]
    findings = said_of("run_classifier.py", places, *files)
    assert not of_grade(findings, Grade.ERROR)
    assert ("whole run", "all checks of the run itself have passed") in of_grade(
        findings, Grade.FINE
    )
    assert not (places / "model").exists()
    findings = said_of("run_classifier.py", places, *files, "--learning_rate=9")
    assert "learning rate" in dict(of_grade(findings, Grade.WARNING))
    assert of_grade(
        said_of("run_classifier.py", places, *files, f"--data_dir={places}/no"), Grade.ERROR
    )
