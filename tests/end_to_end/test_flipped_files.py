"""A flipped bit in a file that a script reads back never changes a result unnoticed.

Each job is stopped in the middle of its work. Then one bit of one of its files is flipped, and the
command runs again: it must end in the results of an undamaged run, refuse the file in a sentence,
or warn of what it does instead. The number of flips of each job is that of the environment variable
FLIPS; they take turns in all kinds of files, and TABLE names a file for a line on each.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bert_tf.tasks.pretraining.phase_runs import PLANNED, read_plan, write_plan
from tests.helpers.programs import run
from tests.helpers.small_pretraining import GEOMETRY, VOCAB_SIZE
from tests.helpers.squad_files import write_model
from tests.helpers.tagging_files import write_data
from tests.helpers.tensors import variables_of

FLIPS = int(os.environ.get("FLIPS", "2"))

SHORT = ["--do_train", "--deterministic", "--num_train_steps=4", "--save_checkpoints_steps=2"]
STUDENT = ["--restrict_ce_to_mask", "--alpha_cos=0", "--top_k_targets=5"]

# The files that make a model directory, and those that a run writes beside them.
MODEL = (
    *("checkpoint", "run.json", "model.json"),
    *("bert_config.json", "vocab.txt", "tokenizer_config.json"),
)
RECORDS = ("*.tfrecord", "*.offsets", "*.vocab")
WEIGHTS = ("model.ckpt-*.index", "model.ckpt-*.data-*")


@dataclasses.dataclass(frozen=True)
class Job:
    """Work that was stopped.

    Attributes:
      stopped: a copy of all its files.
      place: where they were, and have to be.
      command: continues the work.
      results: what the work is for.
      kinds: globs of the files to damage, below ``place``.
      expected: the results without damage.
    """

    stopped: Path
    place: Path
    command: list[str]
    results: Callable[[Path], object]
    kinds: tuple[str, ...]
    expected: object

    @classmethod
    def stopped_at(cls, place, command, results, kinds):
        """The job whose files are in ``place``."""
        stopped = place.with_name(f"{place.name}-stopped")
        shutil.copytree(place, stopped)
        run(*command)
        return cls(stopped, place, command, results, kinds, results(place))

    def run_with_flip(self, number):
        """The kind of file and what happened: ``equal``, ``refused`` or ``warned``."""
        rng = random.Random(number)
        shutil.rmtree(self.place)
        shutil.copytree(self.stopped, self.place)
        kind = self.kinds[number % len(self.kinds)]
        path = rng.choice(sorted(self.place.glob(kind)))
        content = bytearray(path.read_bytes())
        bit = rng.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        done = run(*self.command, check=False)
        what = f"bit {bit} of {path} ({done.returncode})\n{done.stdout}\n{done.stderr}"
        if "Traceback" in done.stderr:
            return kind, "trace", what
        if done.returncode == 2 and re.search(r"^error: .", done.stderr, re.MULTILINE):
            return kind, "refused", what
        if done.returncode:
            return kind, f"status {done.returncode}", what
        if self.results(self.place) == self.expected:
            return kind, "equal", what
        warned = re.search(rf"^warning: .*{re.escape(path.name)}", done.stdout, re.MULTILINE)
        return kind, "warned" if warned else "silent", what


def weights_of(*directories):
    """Results of training: the weights of the newest checkpoint of each directory, as bytes."""

    def read(place):
        return [
            {name: value.tobytes() for name, value in variables_of(place / name_of).items()}
            for name_of in directories
        ]

    return read


@pytest.fixture(scope="module")
def distillation(flags, data, tmp_path_factory):
    """Stopped after two updates, with kept targets."""
    place = tmp_path_factory.mktemp("distillation") / "work"
    shutil.copytree(data / "records", place / "records")
    kept = [flag for flag in flags if not flag.startswith(("--bert", "--input_file", "--eval"))]
    network = [flag for flag in flags if flag.startswith("--bert")]
    teacher, student = place / "teacher", place / "student"
    common = [*kept, f"--input_file={place / 'records' / 'train'}", *SHORT]
    run("run_pretraining.py", *common, *network, "--nsp=false", f"--output_dir={teacher}")
    command = ["run_distillation.py", *common, *STUDENT, f"--teacher_checkpoint={teacher}",
               f"--cache_teacher={place / 'targets'}", f"--output_dir={student}"]  # fmt: skip
    run(*command, "--num_train_steps=2")
    kinds = ["targets/*.tfrecord", "targets/manifest.json", *(f"student/{name}" for name in MODEL)]
    kinds += [f"student/{name}" for name in WEIGHTS]
    kinds += [f"records/train/{name}" for name in ("manifest.json", *RECORDS)]
    kinds += ["teacher/bert_config.json", "teacher/checkpoint"]
    return Job.stopped_at(place, command, weights_of("student"), tuple(kinds))


@pytest.fixture(scope="module")
def pretraining(bert_config, text_file, tmp_path_factory):
    """Stopped after its second update, on records of which masks are drawn in training."""
    place = tmp_path_factory.mktemp("pretraining") / "work"
    run(
        "-m", "data_prep.pipeline", f"--input_file={text_file}", f"--output_dir={place / 'data'}",
        f"--vocab_size={VOCAB_SIZE}", "--masking=dynamic", *GEOMETRY,
    )  # fmt: skip
    records, model = place / "data" / "records" / "train", place / "model"
    command = ["run_pretraining.py", f"--bert_config_file={bert_config}",
               f"--input_file={records}", *GEOMETRY, "--precision=fp32", "--train_batch_size=4",
               "--length_buckets", "--num_warmup_steps=1", *SHORT,
               f"--output_dir={model}"]  # fmt: skip
    run(*command, "--num_train_steps=2")
    kinds = ["data/records/train/*.lengths", "model/checkpoint",
             "data/records/train/manifest.json", *(f"model/{name}" for name in MODEL)]  # fmt: skip
    return Job.stopped_at(place, command, weights_of("model"), tuple(kinds))


@pytest.fixture(scope="module")
def plan(flags, tmp_path_factory):
    """Stopped after the first of two phases."""
    place = tmp_path_factory.mktemp("plan") / "work"
    place.mkdir()
    steps = ["--num_train_steps=2\n", "--num_train_steps=4\n--resume_from=previous\n"]
    for number, content in enumerate(steps):
        (place / f"{number}.flags").write_text(f"--num_warmup_steps=1\n{content}")
    files = ",".join(str(place / f"{number}.flags") for number in range(2))
    given = [flag for flag in flags if not re.match("--(num|save|display|eval)", flag)]
    command = ["run_pretraining.py", *given, "--do_train", "--deterministic"]
    command += [f"--phases={files}", f"--output_dir={place / 'model'}"]
    run(*command)
    shutil.rmtree(place / "model" / "phase_2")
    first, second = read_plan(place / "model").values()
    write_plan(place / "model", [first, dataclasses.replace(second, state=PLANNED)])
    kinds = ["model/plan.json", *(f"model/phase_1/{name}" for name in MODEL)]
    return Job.stopped_at(place, command, weights_of("model/phase_2"), tuple(kinds))


@pytest.fixture(scope="module")
def tagging(tmp_path_factory):
    """Stopped after it had found its best weights so far, and before it predicts."""
    place = tmp_path_factory.mktemp("tagging") / "work"
    start, model = write_model(place / "start"), place / "model"
    write_data(place / "data")
    command = ["run_ner.py", f"--bert_config_file={start / 'bert_config.json'}",
               f"--vocab_file={start / 'vocab.txt'}", f"--features_dir={place / 'features'}",
               f"--data_dir={place / 'data'}", "--precision=fp32", "--max_seq_length=16",
               "--train_batch_size=16", "--learning_rate=2e-3", *SHORT, "--do_eval",
               "--do_predict", "--eval_every_steps=2", "--early_stopping_evaluations=2",
               f"--predict_file={place / 'data' / 'dev.txt'}",
               f"--output_dir={model}"]  # fmt: skip
    run(*command, "--num_train_steps=2")
    kinds = ["features/*/lengths.npy", "features/*/manifest.json", "features/*/*.tfrecord",
             "features/*/*.offsets", "model/best/eval_results.json", "model/eval_log.jsonl",
             *(f"model/{name}" for name in MODEL)]  # fmt: skip

    def results(place):
        best = json.loads((place / "model" / "best" / "eval_results.json").read_text())
        named = [(place / "model" / name).read_text() for name in ("predictions.txt", "model.json")]
        return [weights_of("model", "model/best")(place), best, named]

    return Job.stopped_at(place, command, results, tuple(kinds))


# Ends an evaluation before the result of its second checkpoint.
STOPS = """
import runpy, sys
from bert_tf.durable import sealed_json
write = sealed_json.write_sealed_json
def stop(path, content):
    if path.name == "result.json" and content["step"] == 4: sys.exit(3)
    write(path, content)
sealed_json.write_sealed_json = stop
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.fixture(scope="module")
def evaluation(flags, tmp_path_factory):
    """Has evaluated one of two checkpoints, and computed scores of the second."""
    place = tmp_path_factory.mktemp("evaluation") / "work"
    model = place / "model"
    run("run_pretraining.py", *flags, *SHORT, f"--output_dir={model}")
    (place / "texts.txt").write_text("returns the name of a file\nraises an error\n" * 9)
    command = ["run_evaluation.py", f"--init_checkpoint={model}", "--all_checkpoints",
               f"--input_file={place / 'texts.txt'}", "--max_seq_length=16", "--precision=fp32",
               "--batch_tokens=100", f"--output_dir={place / 'scores'}"]  # fmt: skip
    (place / "stops.py").write_text(STOPS)
    assert run(place / "stops.py", *command, check=False).returncode == 3
    scores = "scores/scores"
    kinds = [f"{scores}/plan.json", f"{scores}/*/result.json",
             f"{scores}/*/part-*.npz", "model/bert_config.json", "model/vocab.txt",
             "model/tokenizer_config.json", "model/run.json"]  # fmt: skip

    def results(place):
        return json.loads((place / "scores" / "perplexity.json").read_text())

    return Job.stopped_at(place, command, results, tuple(kinds))


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", range(FLIPS))
@pytest.mark.parametrize("job", ["distillation", "pretraining", "plan", "tagging", "evaluation"])
def test_a_flipped_bit_changes_no_result_unnoticed(job, number, request):
    kind, end, what = request.getfixturevalue(job).run_with_flip(number)
    if "TABLE" in os.environ:
        with open(os.environ["TABLE"], "a", encoding="utf-8") as file:
            file.write(f"{job}\t{kind}\t{end}\n")
    print(end, what)
    assert end in ("equal", "refused", "warned")
