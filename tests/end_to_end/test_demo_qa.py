"""The question-answering demo: all of its steps on a tiny model, and what it compares with."""

import json
import shutil

import pytest

from bert_tf.tasks.question_answering.examples import Answer, Example
from bert_tf.util.errors import UserError
from tests.helpers.programs import ROOT, run
from tools.demo import run_qa as demo_qa

LABEL = demo_qa.LABEL


@pytest.fixture(scope="module")
def demo_dir(tmp_path_factory, data, bert_config, flags):
    """What `make demo` leaves, as far as it matters here."""
    directory = tmp_path_factory.mktemp("demo")
    run(
        "run_pretraining.py",
        *flags,
        f"--output_dir={directory / 'model'}",
        "--do_train",
        "--num_train_steps=2",
        "--num_warmup_steps=1",
    )
    shutil.copy(bert_config, directory / "bert_config.json")
    shutil.copytree(data, directory / "data")
    return directory


def run_demo(output_dir, *flags, check=True):
    program = ROOT / "tools" / "demo" / "run_qa.py"
    return run(program, f"--output_dir={output_dir}", "--num_questions=80", *flags, check=check)


@pytest.mark.exhaustive
def test_from_the_demos_model(demo_dir, text_file, tmp_path):
    of_demo = (f"--demo_dir={demo_dir}", f"--text={text_file}")
    done = run_demo(tmp_path, *of_demo, "--epochs=0.3")
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["label"] == LABEL
    assert list(summary["scores"]) == ["first words", "most frequent", "fine-tuned model"]
    for score in summary["scores"].values():
        assert 0 <= score["exact_match"] <= score["f1"] <= 100
    assert sum(summary["questions"].values()) == 80
    assert (tmp_path / "model" / "report.html").is_file()
    last = done.stdout.splitlines()
    assert last[-1].startswith(f"This was a smoke test: {LABEL}.")
    assert demo_qa.MEANING in done.stdout
    assert sum(line.strip().startswith("question:") for line in last) == demo_qa.NUM_SHOWN
    answers = json.loads((tmp_path / "model" / "predictions.json").read_text())
    assert len(answers) == summary["questions"]["dev"]
    shown = {line.split(":", 1)[1].strip() for line in last if line.strip().startswith("answer:")}
    assert shown <= {" ".join(answer.split()) for answer in answers.values()} | set(
        answers.values()
    )

    # The same demo again goes on where it was; one with other settings starts anew.
    steps = (tmp_path / "model" / "log.jsonl").read_text()
    again = run_demo(tmp_path, *of_demo, "--epochs=0.3")
    assert "is kept in" not in again.stdout
    assert (tmp_path / "model" / "log.jsonl").read_text() == steps
    other = run_demo(tmp_path, *of_demo, "--epochs=0.2")
    assert "is kept in" in other.stdout


@pytest.mark.slow
def test_without_a_model_there_is_one_sentence(tmp_path):
    done = run_demo(tmp_path / "out", f"--demo_dir={tmp_path}", check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: --demo_dir: there is no pre-trained model in {tmp_path}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.exhaustive
def test_given_weights(tmp_path):
    with pytest.raises(UserError, match=r"--init_checkpoint: .* contains neither bert_config.json"):
        demo_qa.find_model(tmp_path, tmp_path)
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 60}')
    model = demo_qa.find_model(tmp_path / "none", tmp_path)
    flags = demo_qa.training_flags(model, epochs=None)
    assert f"--init_checkpoint={tmp_path}" in flags
    assert {"--max_seq_length=60", "--doc_stride=20", "--num_train_epochs=2.0"} <= set(flags)
    (tmp_path / "config.json").write_text("{}")
    model = demo_qa.find_model(tmp_path / "none", tmp_path)
    assert "--max_seq_length=128" in demo_qa.training_flags(model, epochs=None)
    assert "--num_train_epochs=0.5" in demo_qa.training_flags(model, epochs=0.5)


def example(number, answer, context="Gives one two three four five."):
    return Example(f"q{number}", "A _ b", context, "t", 0, (Answer(answer, 0),), False)


def test_trivial_answers():
    answers = ["int", "int", "str", "3.7", "a few more words than that", "int"]
    train = [example(number, answer) for number, answer in enumerate(answers)]
    found = demo_qa.trivial_answers(train, [example(6, "float"), example(7, "4.0")])
    # Answers have (1 + 1 + 1 + 1 + 6 + 1) / 6 words: two.
    assert found["first words"] == dict.fromkeys(["q6", "q7"], "Gives one")
    assert found["most frequent"] == {"q6": "int", "q7": "int"}
