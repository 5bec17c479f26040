"""The scoring command as a user runs it."""

import json
import re

import pytest

from tests.helpers.programs import run

COMMAND = ("-m", "bert_tf.commands.squad_metrics")


def question(question_id, *answers, is_impossible=None):
    found = {
        "id": question_id,
        "question": "What?",
        "answers": [{"text": text, "answer_start": 0} for text in answers],
    }
    return found if is_impossible is None else {**found, "is_impossible": is_impossible}


def write(path, value):
    path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
    return path


def squad_json(*questions):
    return {"data": [{"title": "t", "paragraphs": [{"context": "red hill", "qas": questions}]}]}


@pytest.fixture
def files(tmp_path):
    v1 = squad_json(question("1", "red hill", "hill"), question(2, "red"))  # ids of both kinds
    v2 = squad_json(
        question("1", "red hill", is_impossible=False), question("2", is_impossible=True)
    )
    return {
        "v1": write(tmp_path / "v1.json", v1),
        "v2": write(tmp_path / "v2.json", v2),
        "answers": write(tmp_path / "predictions.json", {"1": "The red hill!", "2": "red tree"}),
        "odds": write(tmp_path / "null_odds.json", {"1": -2.0, "2": 0.5}),
    }


def score(data, answers, *more, check=True):
    return run(*COMMAND, f"--data_file={data}", f"--predictions_file={answers}", *more, check=check)


def test_v1(files):
    done = score(files["v1"], files["answers"])
    found = json.loads(done.stdout)
    assert found == {"exact_match": 50.0, "f1": 100.0 * (1 + 2 / 3) / 2, "total": 2}
    assert done.stderr == ""


def test_v2_with_odds(files):
    """At the official limit of 1.0 both are answered; below 0.5 the second is not."""
    odds = f"--null_odds_file={files['odds']}"
    found = json.loads(score(files["v2"], files["answers"], odds).stdout)
    assert (found["exact"], found["HasAns_f1"], found["NoAns_f1"]) == (50.0, 100.0, 0.0)
    assert (found["best_f1"], found["best_f1_thresh"]) == (100.0, -2.0)
    found = json.loads(score(files["v2"], files["answers"], odds, "--na_prob_thresh=0.4").stdout)
    assert found["exact"] == found["exact_match"] == found["f1"] == 100.0


def test_odds_make_it_v2(files):
    """As run_squad.py with --version_2_with_negative scores data without an unanswerable one."""
    odds = f"--null_odds_file={files['odds']}"
    found = json.loads(score(files["v1"], files["answers"], odds, "--na_prob_thresh=0").stdout)
    assert (found["exact"], found["f1"], found["HasAns_total"]) == (50.0, 50.0, 2)
    assert (found["best_exact"], found["best_f1_thresh"]) == (50.0, 0.5)


def test_chinese_is_scored_by_characters(tmp_path):
    data = write(
        tmp_path / "zh.json", squad_json(question("1", "海淀区"), question("2", "李明先生"))
    )
    answers = write(tmp_path / "predictions.json", {"1": "于海淀区", "2": "李明先生"})
    done = score(data, answers)
    assert json.loads(done.stdout)["f1"] == pytest.approx(100 * (6 / 7 + 1) / 2)
    assert done.stderr.startswith("zh.json: answers are scored by characters, ")
    assert done.stderr.endswith("--score_by=words is SQuAD's rule\n")
    done = score(data, answers, "--score_by=words")
    assert (json.loads(done.stdout)["f1"], done.stderr) == (50.0, "")


def test_unanswerable_questions_of_exports(tmp_path):
    """The official script counts an empty answer to them as right, and any other as wrong."""
    marked = question("2", "", is_impossible=True), question("3", "", is_impossible=True)
    data = write(tmp_path / "data.json", squad_json(question("1", "hill"), *marked))
    answers = write(tmp_path / "predictions.json", {"1": "hill", "2": "", "3": "hill"})
    found = json.loads(score(data, answers).stdout)
    assert (found["exact"], found["NoAns_exact"]) == (100 * 2 / 3, 50.0)
    write(data, squad_json(question("1", "hill"), question("2"), question("3")))
    assert json.loads(score(data, answers).stdout) == found


def test_missing_predictions_are_said_beside_the_result(files, tmp_path):
    answers = write(tmp_path / "some.json", {"1": "hill"})
    done = score(files["v1"], answers)
    assert json.loads(done.stdout)["exact_match"] == 50.0
    warning = "warning: 1 of 2 questions have no prediction and count as 0: 2\n"
    assert done.stderr == warning
    done = score(files["v2"], answers)
    assert json.loads(done.stdout)["total"] == 1
    assert "and do not count: 2" in done.stderr


def test_help_without_tensorflow():
    code = (
        "import sys; sys.argv = ['squad_metrics', '--help']\n"
        "import runpy, atexit\n"
        "atexit.register(lambda: print('tensorflow' in sys.modules))\n"
        "runpy.run_module('bert_tf.commands.squad_metrics', run_name='__main__')\n"
    )
    done = run("-c", code, check=False)
    assert "--predictions_file" in done.stdout
    assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"data_file": "none.json"}, r"--data_file: .*none\.json does not exist"),
        ({"data_file": "answers"}, r"--data_file: .* is not a SQuAD file"),
        ({"predictions_file": "none.json"}, r"--predictions_file: .*none\.json does not exist"),
        ({"predictions_file": "[1]"}, "--predictions_file: .* not a JSON object"),
        ({"predictions_file": "{"}, "--predictions_file: .* not valid JSON"),
        ({"predictions_file": "[" * 100_000}, "--predictions_file: .* nested too deeply"),
        ({"predictions_file": '{"1": [{"text": "a"}]}'}, "'1' to .*; give a predictions.json"),
        ({"predictions_file": '{"7": "a"}'}, "none of the predictions is for a question"),
        ({"null_odds_file": '{"1": NaN}'}, "'1' to NaN; give a null_odds.json"),
        ({"null_odds_file": f'{{"1": 1{"0" * 400}}}'}, "is not valid JSON .a number of 401 digits"),
        ({"null_odds_file": '{"1": true}'}, "'1' to true; give a null_odds.json"),
        ({"null_odds_file": '{"1": 0.5}'}, "null odds lack 1 questions .* such as 2"),
        ({"na_prob_thresh": "0.5"}, "--na_prob_thresh applies to --null_odds_file; give both"),
        ({"na_prob_thresh": "nan"}, "--na_prob_thresh=nan: must be a number"),
    ],
)
def test_bad_input(files, tmp_path, flags, message):
    values = {"data_file": files["v2"], "predictions_file": files["answers"]}
    for name, value in flags.items():
        if value[0] in "[{":
            value = write(tmp_path / f"{name}.json", value)
        values[name] = files.get(value, value)
    done = run(*COMMAND, *(f"--{name}={value}" for name, value in values.items()), check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert re.search(message, done.stderr), done.stderr
