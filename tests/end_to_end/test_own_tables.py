"""run_classifier.py on a user's own files: any format and any labels; what a run leaves behind."""

import csv
import json
import random
import re

import pytest

from tests.end_to_end.finetuning_runs import results_of
from tests.helpers.model_records import classes_in
from tests.helpers.programs import mpirun, requires_horovod, run
from tests.helpers.squad_files import NAMES, PLACES, write_model

SCRIPT = "run_classifier.py"
REGIONS = ("north", "south", "west")


def examples(count, *, seed):
    """Texts with the region of their place, and whether they have many words."""
    rng = random.Random(seed)
    for _ in range(count):
        place, dots = rng.choice(PLACES), rng.randint(0, 6)
        region = REGIONS[PLACES.index(place) % 3]
        yield f'{rng.choice(NAMES)} lives in "{place}", ' + ". " * dots, region, dots > 3


def write_csv(path, rows, columns=("text", "label")):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("own")
    write_model(directory / "start")
    for name, count, seed in (("train", 120, 1), ("dev", 30, 2)):
        found = list(examples(count, seed=seed))
        write_csv(directory / f"{name}.csv", [row[:2] for row in found])
        lines = [{"text": t, "labels": [r, *["long"][:n]]} for t, r, n in found]
        (directory / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    write_csv(directory / "new.csv", [(row[0],) for row in examples(5, seed=3)], columns=("text",))
    return directory


@pytest.fixture(scope="module")
def flags(files):
    return [
        f"--bert_config_file={files / 'start' / 'bert_config.json'}",
        f"--vocab_file={files / 'start' / 'vocab.txt'}",
        *("--precision=fp32", "--max_seq_length=20", "--train_batch_size=16"),
        *("--num_train_epochs=3", "--learning_rate=3e-3", "--do_train", "--do_eval"),
    ]


@pytest.fixture(scope="module")
def trained(flags, files):
    """A run on CSV that predicts new texts."""
    given = [f"--{name}_file={files / file}.csv" for name, file in FILES.items()]
    output_dir = files / "model"
    balanced = ["--class_weights=balanced", "--label_smoothing=0.1", "--do_predict"]
    done = run(SCRIPT, *flags, *given, *balanced, f"--output_dir={output_dir}")
    return output_dir, done


FILES = {"train": "train", "eval": "dev", "predict": "new"}


@pytest.mark.slow
def test_results_and_predictions(trained, files):
    output_dir, done = trained
    assert {"eval_accuracy", "eval_macro_f1", "eval_loss"} < results_of(output_dir).keys()
    assert f"new.csv are in {output_dir}/predictions.csv" in done.stdout
    with open(output_dir / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == [text for text, *_ in examples(5, seed=3)]
    assert all(row["prediction"] in REGIONS for row in rows)
    assert all(1 / 3 < float(row["probability"]) <= 1 for row in rows)


@pytest.mark.slow
def test_the_classes_are_kept_with_every_copy_of_the_model(trained):
    output_dir, _ = trained
    for directory in (output_dir, output_dir / "best"):
        assert classes_in(directory).labels == REGIONS


@pytest.mark.slow
def test_the_report_names_classes_and_mistakes(trained):
    output_dir, done = trained
    assert f"the report is {output_dir}/report.html" in done.stdout
    page = (output_dir / "report.html").read_text()
    for words in ("Confusion matrix", "Calibration", "worst first", *REGIONS):
        assert words in page


@pytest.mark.slow
def test_a_trained_directory_alone_predicts(trained, files, tmp_path):
    output_dir, _ = trained
    done = run(
        SCRIPT,
        f"--init_checkpoint={output_dir}",
        f"--predict_file={files / 'new.csv'}",
        *("--do_predict", "--precision=fp32", "--max_seq_length=20"),
        f"--output_dir={tmp_path / 'out'}",
    )
    assert "predictions.csv" in done.stdout
    found, expected = (d / "predictions.csv" for d in (tmp_path / "out", output_dir))
    assert found.read_text() == expected.read_text()


@pytest.mark.exhaustive
def test_a_teacher_has_the_same_classes(trained, flags, tmp_path):
    """Its student has all of them, though its own file lacks one."""
    teacher = [f"--teacher_checkpoint={trained[0]}", "--num_train_steps=1"]
    flags = [flag for flag in flags if not flag.startswith(("--bert_config", "--vocab"))]
    fewer = [row[:2] for row in examples(30, seed=4) if row[1] != "north"]
    write_csv(tmp_path / "fewer.csv", fewer)
    given = [f"--{name}_file={tmp_path}/fewer.csv" for name in ("train", "eval")]
    run(SCRIPT, *flags, *given, *teacher, f"--output_dir={tmp_path / 'out'}")
    assert classes_in(tmp_path / "out").labels == REGIONS
    write_csv(tmp_path / "other.csv", [("a", "east"), ("b", "north")])
    given = [f"--{name}_file={tmp_path}/other.csv" for name in ("train", "eval")]
    done = run(SCRIPT, *flags, *given, *teacher, f"--output_dir={tmp_path / 'no'}", check=False)
    assert done.returncode == 2
    assert "has the classes north, south, west, and the student east, north; give" in done.stderr
    assert not (tmp_path / "no").exists()


@pytest.mark.slow
def test_several_labels_have_a_threshold_that_is_kept(flags, files, tmp_path):
    given = [f"--train_file={files}/train.jsonl", f"--eval_file={files}/dev.jsonl"]
    given += ["--multi_label", f"--predict_file={files}/dev.jsonl", "--do_predict"]
    run(SCRIPT, *flags, *given, f"--output_dir={tmp_path / 'out'}")
    results = results_of(tmp_path / "out")
    assert {"eval_micro_f1", "eval_macro_f1", "eval_exact_match"} < results.keys()
    classes = classes_in(tmp_path / "out")
    assert classes.labels == ("long", *REGIONS)
    assert set(classes.thresholds) == {results["eval_threshold"]}


@pytest.mark.exhaustive
def test_ratings_may_have_any_range(flags, files, tmp_path):
    """As an update changes a weight by the learning rate, a head must know the unit."""
    given = []
    for name, count, seed in (("train", 120, 1), ("eval", 30, 2)):
        rows = examples(count, seed=seed)
        path = tmp_path / f"{name}.csv"
        write_csv(path, [(text, 1000 * REGIONS.index(region)) for text, region, _ in rows])
        given.append(f"--{name}_file={path}")
    given += ["--regression", "--num_train_epochs=20", f"--output_dir={tmp_path / 'out'}"]
    run(SCRIPT, *flags, *given)
    found = results_of(tmp_path / "out")
    assert {"eval_spearman", "eval_pearson", "eval_loss"} < found.keys()
    assert found["eval_loss"] < 0.05 * 1000**2  # the variance is 0.67 * 1000**2


@pytest.mark.parallel
@requires_horovod
@pytest.mark.exhaustive
def test_ranks_share_windows(flags, files, tmp_path):
    """The same scores on one rank and on two, from texts in windows."""
    given = [f"--train_file={files}/train.csv", f"--eval_file={files}/dev.csv"]
    given += ["--long_texts=windows", "--doc_stride=4", "--max_seq_length=8"]
    given += ["--num_train_epochs=0.5"]
    run(SCRIPT, *flags, *given, f"--output_dir={tmp_path / 'one'}")
    more = ["--horovod", "--train_batch_size=8", f"--output_dir={tmp_path / 'two'}"]
    mpirun(2, SCRIPT, *flags, *given, *more)
    one, two = (results_of(tmp_path / name) for name in ("one", "two"))
    assert two["eval_loss"] == pytest.approx(one["eval_loss"], rel=1e-3)


WRONG = {
    "another label": ("text,label\na,east\n", "line 2 of .*label 'east', which the model does not"),
    "no label column": ("text\na\n", "which column of .* has the label"),
    "another number of columns": ("text,label\na,b,c\n", "line 2 of .* has 3 columns instead of 2"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_development_file_is_named(flags, files, tmp_path, case):
    content, said = WRONG[case]
    (tmp_path / "dev.csv").write_text(content)
    given = [f"--train_file={files}/train.csv", f"--eval_file={tmp_path}/dev.csv"]
    done = run(SCRIPT, *flags, *given, f"--output_dir={tmp_path / 'out'}", check=False)
    assert done.returncode
    assert re.search(said, done.stderr)
