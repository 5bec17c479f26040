"""What every task that is fine-tuned keeps, from its script to its predictor and its export."""

import abc
import functools
import json
import tempfile

import numpy as np
import pytest
import tensorflow as tf2  # the loader of SavedModels that users have
from absl import flags as absl_flags

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.convert import convert
from bert_tf.commands.doctor import TRAINING_SCRIPTS
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.records.layouts import WORD_STARTS
from bert_tf.serving.export import export_saved_model
from bert_tf.serving.load import load_model
from bert_tf.serving.settings import ExportSettings
from bert_tf.serving.trained import TASKS, open_trained
from bert_tf.tasks.classification.glue import GLUE_TASKS, read_glue
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.tagging.files import read_tagged
from tests.end_to_end.finetuning_runs import assert_same_plan
from tests.helpers import choice_files, glue_files, squad_files, tagging_files
from tests.helpers.files import content_of
from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.tensors import variables_of

STEPS = 24
READ = {"flag": "predict_file", "needs_labels": True}


class Case(abc.ABC):
    """A small job of a task.

    Attributes:
      flags: what its runs are given; ``{data}`` is its directory of files.
      scored: the flags that evaluate and predict its development file.
      said: what a dry run tells of its files.
      metric: a result of each evaluation.
      architecture: the class of transformers that loads its models.
      exported: name of an exported output -> name of the same output of the predictor's network.
    """

    flags: tuple[str, ...]
    scored: tuple[str, ...]
    said: tuple[str, ...]
    metric: str
    architecture: str
    exported: dict[str, str]

    @abc.abstractmethod
    def write(self, data):
        """Writes the files."""

    @abc.abstractmethod
    def inputs(self, data):
        """What the development file asks of a predictor."""

    @abc.abstractmethod
    def written(self, directory):
        """What the script wrote for the development file, one prediction per input."""

    @abc.abstractmethod
    def predicted(self, prediction):
        """A predictor's prediction in the same form."""


class Classification(Case):
    flags = ("--task_name=SST-2", "--data_dir={data}", *glue_files.LENGTHS)
    scored = ("--do_eval", "--do_predict", "--predict_file={data}/dev.tsv")
    said = ("train.tsv: 160 ex", "dev.tsv: 30 ex")
    metric = "eval_accuracy"
    architecture = "BertForSequenceClassification"
    exported = {"logits": "logits"}  # noqa: RUF012

    def write(self, data):
        glue_files.write_data(data)

    def inputs(self, data):
        rows = read_glue(GLUE_TASKS["sst-2"], data / "dev.tsv", **READ).rows
        return [row.first for row in rows]

    def written(self, directory):
        _, *rows = (directory / "predictions.tsv").read_text().splitlines()
        return [row.split("\t")[1] for row in rows]

    def predicted(self, prediction):
        return prediction.label


class Tagging(Case):
    flags = ("--data_dir={data}", *tagging_files.LENGTHS)
    scored = ("--do_eval", "--do_predict", "--predict_file={data}/dev.txt")
    said = ("train.txt: 160 sentences", "dev.txt: 30 sentences")
    metric = "eval_f1"
    architecture = "BertForTokenClassification"
    exported = {"label_ids": "labels"}  # noqa: RUF012

    def write(self, data):
        tagging_files.write_data(data)

    def inputs(self, data):
        sentences = [list(s.words) for s in read_tagged(data / "dev.txt", **READ).sentences]
        assert max(map(len, sentences)) > 14, "one sentence at least is longer than a sequence"
        return sentences

    def written(self, directory):
        text = (directory / "predictions.txt").read_text().strip()
        sentences = [[line.split(" ")[-1] for line in s.splitlines()] for s in text.split("\n\n")]
        return [tuple(labels) for labels in sentences]

    def predicted(self, prediction):
        return prediction.labels


class MultipleChoice(Case):
    flags = ("--data_dir={data}", *choice_files.LENGTHS)
    scored = ("--do_eval", "--do_predict", "--predict_file={data}/dev.jsonl")
    said = ("train.jsonl: 160 questions", "dev.jsonl: 30 questions")
    metric = "eval_accuracy"
    architecture = "BertForMultipleChoice"
    exported = {"scores": "scores"}  # noqa: RUF012

    def write(self, data):
        choice_files.write_data(data)

    def inputs(self, data):
        return [json.loads(line) for line in (data / "dev.jsonl").read_text().splitlines()]

    def written(self, directory):
        lines = (directory / "predictions.jsonl").read_text().splitlines()
        return [json.loads(line)["label"] for line in lines]

    def predicted(self, prediction):
        return prediction.number


class QuestionAnswering(Case):
    flags = ("--train_file={data}/train.json", *squad_files.LENGTHS)
    scored = ("--do_predict", "--predict_file={data}/dev.json")
    said = (" 48 questions, ", " 18 questions, ")
    metric = "f1"
    architecture = "BertForQuestionAnswering"
    exported = {  # noqa: RUF012
        f"top_{name}": name for name in ("start_indices", "end_indices", "start_logits")
    }

    def write(self, data):
        data.mkdir()
        squad_files.write_squad(data / "train.json", 16, seed=1)
        squad_files.write_squad(data / "dev.json", 6, seed=2)

    def inputs(self, data):
        file = read_squad(
            data / "dev.json", flag="f", version_2_with_negative=False, needs_answers=True
        )
        return [(example.question, example.context) for example in file.examples]

    def written(self, directory):
        return list(json.loads((directory / "predictions.json").read_text()).values())

    def predicted(self, prediction):
        return prediction[0].text


CASES = {
    "classification": Classification(),
    "tagging": Tagging(),
    "multiple_choice": MultipleChoice(),
    "question_answering": QuestionAnswering(),
}


def test_every_task_that_has_a_script_has_a_case():
    assert CASES.keys() == {name for name, task in TASKS.items() if task.script}


def test_every_task_is_described():
    assert all(f"* ``{name}``: " in load_model.__doc__ for name in TASKS)


class Job:
    """The runs of a case, all with the same files and records."""

    def __init__(self, name, directory):
        self.name, self.case, self.directory = name, CASES[name], directory
        self.data = directory / "data"
        squad_files.write_model(directory / "start")
        self.case.write(self.data)

    def flags(self, output_dir, *given):
        """The flags of a run; ``given`` ones win."""
        usual = [
            f"--bert_config_file={self.directory}/start/bert_config.json",
            f"--vocab_file={self.directory}/start/vocab.txt",
            f"--features_dir={self.directory}/features",
            "--precision=fp32",
            "--train_batch_size=16",
            "--learning_rate=4e-3",
            f"--num_train_steps={STEPS}",
            f"--save_checkpoints_steps={STEPS // 2}",
            f"--output_dir={output_dir}",
            *self.case.flags,
            *given,
        ]
        return [flag.format(data=self.data) for flag in usual]

    def run(self, output_dir, *given):
        """Runs the script in this process."""
        script, values = TRAINING_SCRIPTS[TASKS[self.name].script], absl_flags.FlagValues()
        script.define(values)
        values([script.file, *self.flags(output_dir, *given)])
        script.start(script.settings(values))
        return output_dir

    @functools.cached_property
    def trained(self):
        """The directory of a run that was not interrupted."""
        return self.run(self.directory / "model", "--do_train", *self.case.scored)


@pytest.fixture(scope="module", name="job", params=CASES)
def job_of_a_task(request, tmp_path_factory):
    return Job(request.param, tmp_path_factory.mktemp(request.param))


def results_of(directory):
    return json.loads((directory / "eval_results.json").read_text())


def test_a_dry_run_says_what_it_reads_and_writes_nothing(job, tmp_path, monkeypatch, capsys):
    before = content_of(job.directory)
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    features = f"--features_dir={tmp_path}/features"
    job.run(tmp_path / "out", "--do_train", *job.case.scored, "--dry_run", features)
    assert content_of(job.directory) == before
    assert list(tmp_path.rglob("*")) == [tmp_path / "scratch"]
    out = capsys.readouterr().out
    for words in (*job.case.said, f"train_steps={STEPS}", "nothing was trained or written"):
        assert words in out


def test_results_and_the_report_are_written(job):
    assert 0 <= results_of(job.trained)[job.case.metric] <= 100
    assert "</html>" in (job.trained / "report.html").read_text()


@pytest.mark.slow
def test_a_run_that_resumes_ends_in_the_same_bits(job, tmp_path):
    directory = job.run(tmp_path / "model", "--do_train", f"--stop_after_steps={STEPS // 2}")
    assert (directory / f"model.ckpt-{STEPS // 2}.index").exists()
    assert not (directory / f"model.ckpt-{STEPS}.index").exists()
    job.run(directory, "--do_train")
    expected, found = (variables_of(path) for path in (job.trained, directory))
    assert expected["global_step"] == STEPS
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.exhaustive
@requires_horovod
@pytest.mark.parallel
def test_two_ranks_learn_and_predict_as_one(job, tmp_path):
    """Up to the order in which float32 is added up."""
    given = ["--horovod", "--scale_steps_by_ranks=false", "--train_batch_size=8"]
    given += ["--do_train", *job.case.scored]
    done = mpirun(2, TASKS[job.name].script, *job.flags(tmp_path, *given))
    assert done.stdout.count("the report is") == 1, "rank 0 alone prints"
    assert_same_plan(job.trained, tmp_path)
    found, expected = (job.case.written(directory) for directory in (tmp_path, job.trained))
    assert np.mean([one == other for one, other in zip(found, expected)]) > 0.9
    metrics = [results_of(directory)[job.case.metric] for directory in (tmp_path, job.trained)]
    assert metrics[0] == pytest.approx(metrics[1], rel=0.05)


@pytest.mark.slow
def test_each_seed_has_its_results(job, tmp_path):
    evaluates = [flag for flag in job.case.scored if flag.startswith("--do_")]
    files = [flag for flag in job.case.scored if flag not in evaluates]
    job.run(tmp_path, "--do_train", evaluates[0], *files, "--seeds=1,2", "--num_train_steps=2")
    summary = json.loads((tmp_path / "seeds.json").read_text())[job.case.metric]
    values = [results_of(tmp_path / f"seed_{seed}")[job.case.metric] for seed in (1, 2)]
    assert summary["by_seed"] == {"1": values[0], "2": values[1]}
    assert summary["mean"] == pytest.approx(np.mean(values))
    assert summary["std"] == pytest.approx(np.std(values, ddof=1))
    first, second = (variables_of(tmp_path / f"seed_{seed}") for seed in (1, 2))
    assert any(not np.array_equal(value, second[name]) for name, value in first.items())


def test_a_loaded_model_predicts_what_the_script_writes(job):
    written = job.case.written(job.trained)
    assert len(set(written)) > 1, "the test would not notice a difference"
    found = load_model(job.trained).predict(job.case.inputs(job.data))
    assert [job.case.predicted(one) for one in found] == written


@pytest.mark.slow
def test_batches_change_no_prediction(job, tmp_path):
    given = [flag for flag in job.case.scored if flag != "--do_eval"]
    given += [f"--init_checkpoint={job.trained}", "--predict_batch_size=5"]
    job.run(tmp_path / "out", *given)
    assert job.case.written(tmp_path / "out") == job.case.written(job.trained)


@pytest.mark.slow
def test_a_copy_for_transformers_predicts_the_same(job, tmp_path):
    """And so does one that is made of that copy."""
    convert(open_source(job.trained), tmp_path / "theirs", "huggingface")
    config = json.loads((tmp_path / "theirs" / "config.json").read_text())
    assert config["architectures"] == [job.case.architecture]
    given = [flag for flag in job.case.scored if flag != "--do_eval"]
    job.run(tmp_path / "out", *given, f"--init_checkpoint={tmp_path / 'theirs'}")
    assert job.case.written(tmp_path / "out") == job.case.written(job.trained)
    convert(open_source(tmp_path / "theirs"), tmp_path / "back", "bert_tf")
    assert ModelDirectory.of(tmp_path / "back").classes == ModelDirectory.of(job.trained).classes
    expected, found = (variables_of(path) for path in (job.trained, tmp_path / "back"))
    for name, value in found.items():
        if name != "global_step":
            np.testing.assert_array_equal(value, expected[name], err_msg=name)


@pytest.mark.slow
def test_an_export_computes_what_a_loaded_model_does(job, tmp_path):
    found = open_trained(job.trained)
    directory = export_saved_model(found, ExportSettings(), tmp_path).path
    loaded = tf2.saved_model.load(str(directory))
    rng = np.random.RandomState(1)
    ids = rng.randint(5, found.model.config.vocab_size, [3, 12]).astype(np.int32)
    segments = np.zeros_like(ids)
    segments[:, 5:] = 1
    features = {"input_ids": ids, "input_mask": np.ones_like(ids), "segment_ids": segments}
    given = {name: tf2.constant(value) for name, value in features.items()}
    outputs = loaded.signatures["serving_default"](**given)
    expected = load_model(job.trained).run({**features, WORD_STARTS: features["input_mask"]})
    for name, own in job.case.exported.items():
        finite = np.nan_to_num(expected[own], neginf=np.finfo(np.float32).min)  # as in JSON
        np.testing.assert_allclose(outputs[name], finite, atol=1e-4, err_msg=name)
