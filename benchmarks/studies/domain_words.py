"""What continued pre-training gains with words of the domain, and with a mixture of general text.

    python -m benchmarks.studies.domain_words --general_text=general.txt --domain_text=domain.txt \\
        --ner_train_file=train.txt --ner_dev_file=dev.txt --output_dir=words --json=words.json

Trains an initial model on the general text (or takes --init_checkpoint), and from it, for each of
``--seeds`` and for equal numbers of updates: ``general`` (the control: more of the same text),
``domain``, ``mixture`` (a fraction of --domain_weight from the domain), and both of these with
--add words of the domain in the vocabulary (``words``, ``words-mixture``). All are evaluated by
run_evaluation.py on held-out text of the domain and of the general kind: the pseudo-perplexity per
word, all pieces of a word masked together, so that vocabularies compare. With --ner_train_file or
--squad_train_file they are then fine-tuned, with the same seed, for F1 on the domain's task.

Every step is a command of the project, run one at a time; when restarted, finished ones are kept.
docs/measurements/domain_adaptation.md has the results.
"""

from __future__ import annotations

import shlex
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import flags

from benchmarks.machine import machine_line
from benchmarks.results import Result, result
from benchmarks.script import REQUIRED, run_benchmark, shared_flags, whole_numbers
from benchmarks.speed.process import as_flag, run_script, script_command
from benchmarks.studies.large_batch import NETWORK
from benchmarks.trainings import Training, record_of, run_trainings
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir, read_json

GENERAL, DOMAIN = "general", "domain"
_AS_THERE = "As run_pretraining.py's."
_SHARED = {
    "max_seq_length": (64, _AS_THERE, 5),
    "max_predictions_per_seq": (10, _AS_THERE, 1),
}
_OF_TRAINING = {
    "precision": ("auto", _AS_THERE),
    "num_threads": (int, "Threads of each training (default: all cores)."),
}


class Variant(NamedTuple):
    """What continued pre-training starts from and reads.

    Attributes:
      name: its name in the table.
      has_words: whether the vocabulary has the domain's words.
      domain_weight: the fraction of its sequences from the domain.
    """

    name: str
    has_words: bool
    domain_weight: float

    @property
    def suffix(self) -> str:
        """The end of the names of directories with its vocabulary."""
        return "-words" if self.has_words else ""


class Task(NamedTuple):
    """A task of the domain, and how it is scored."""

    name: str
    script: str
    train_flag: str
    dev_flag: str
    metric: str
    given: Mapping[str, Any]


_TASKS = (
    Task("ner", "run_ner.py", "train_file", "eval_file", "eval_f1", {"do_eval": True}),
    Task("squad", "run_squad.py", "train_file", "predict_file", "f1", {"do_predict": True}),
)


class Study:
    """The directories of a study, made by commands that run once."""

    def __init__(self, root: Path, values: flags.FlagValues) -> None:
        self.root = root
        self.values = values

    def run(self, directory: str, script: str, given: Mapping[str, Any], *, made: str) -> Path:
        """Runs a command unless ``made`` is in its ``--output_dir``; returns that directory."""
        path = self.root / directory
        if (path / made).exists():
            return path
        given = {**given, "output_dir": path}
        words = [as_flag(name, value) for name, value in given.items()]
        command = (
            script_command(script, given) if script.endswith(".py") else ["-m", script, *words]
        )
        output = path.with_name(f"{path.name}.txt")
        output.parent.mkdir(parents=True, exist_ok=True)
        print(f"$ python {shlex.join(command)} > {output}", flush=True)
        if run_script(command, output):
            raise UserError(f"{script} failed; see {output}. Start again to resume.")
        return path

    def data(self, kind: str, model: Path | None, suffix: str = "") -> Path:
        """Records of a kind of text, with a model's vocabulary or a new one."""
        values = self.values
        vocabulary = {"init_checkpoint": model} if model else {"vocab_size": values.vocab_size}
        given = {
            **vocabulary,
            **{name: values[name].value for name in _SHARED},
            "input_file": values[f"{kind}_text"].value,
            "heldout_fraction": values.heldout_fraction,
            "masking": "dynamic",
            "dupe_factor": 1,
            "nsp": False,
        }
        made = "records/heldout/manifest.json"
        return self.run(f"data/{kind}{suffix}", "data_prep.pipeline", given, made=made)

    def training(
        self, variant: Variant, start: Mapping[str, Any], records: str, updates: int, seed: int
    ) -> Training:
        """A training on records, from weights or a configuration."""
        values = self.values
        others = {name: values[name].value for name in (*_SHARED, *_OF_TRAINING)}
        given = {
            **start,
            **{name: value for name, value in others.items() if value is not None},
            "input_file": records,
            "eval_file": str(self.records(GENERAL, variant) / "heldout"),
            "do_train": True,
            "do_eval": True,
            "nsp": False,
            "train_batch_size": values.batch_size,
            "learning_rate": values.learning_rate,
            "adam_bias_correction": True,
            "num_train_steps": updates,
            "num_warmup_steps": updates // 10,
            "keep_best": False,
            "keep_checkpoint_max": 1,
            "save_checkpoints_steps": min(updates, 200),
            "seed": seed,
        }
        directory = self.root / f"{variant.name}-seed{seed}"
        return Training(variant.name, seed, given, directory)

    def records(self, kind: str, variant: Variant) -> Path:
        """The directories of a kind of records, with the vocabulary of a variant."""
        return self.root / "data" / f"{kind}{variant.suffix}" / "records"

    def perplexity(self, model: Path, kind: str) -> float:
        """Per word, of held-out text of a kind."""
        text = self.root / "data" / kind / "shards" / "heldout-*.txt"
        given = {
            "init_checkpoint": model,
            "input_file": text,
            "text_unit": "document",
            "max_seq_length": self.values.max_seq_length,
            "metrics": "pseudo",
            "whole_words": True,
            "sample": self.values.sample,
        }
        name = f"perplexity/{model.name}-{kind}"
        path = self.run(name, "run_evaluation.py", given, made="perplexity.json")
        found = read_json(path / "perplexity.json", what="perplexities")
        return float(found["results"][0]["pseudo"]["per_word"])

    def score(self, model: Path, seed: int) -> float | None:
        """The F1 of the domain's task after fine-tuning, in percent; None without one."""
        values = self.values
        for task in _TASKS:
            train, dev = (values[f"{task.name}_{part}_file"].value for part in ("train", "dev"))
            if not train:
                continue
            given = {
                "init_checkpoint": model,
                task.train_flag: train,
                task.dev_flag: dev,
                "do_train": True,
                **task.given,
                "max_seq_length": values.max_seq_length,
                "train_batch_size": values.batch_size,
                "learning_rate": values.learning_rate,
                "num_train_epochs": values.task_epochs,
                "seed": seed,
            }
            path = self.run(f"task/{model.name}", task.script, given, made="eval_results.json")
            found = float(read_json(path / "eval_results.json", what="results")[task.metric])
            return 100 * found if found <= 1 else found
        return None


def measure(values: flags.FlagValues = flags.FLAGS) -> Iterator[Result]:
    """Runs the study given by its flags."""
    seeds = whole_numbers("seeds", least=0, values=values)
    study = Study(make_output_dir(values.output_dir, flag="output_dir"), values)
    print(machine_line(), flush=True)
    given = Path(values.init_checkpoint) if values.init_checkpoint else None
    general = study.data(GENERAL, given)
    initial = given or _initial_model(study, general)
    domain = study.data(DOMAIN, initial)
    extended = study.run(
        "with_words",
        "bert_tf.commands.extend_vocabulary",
        {
            "init_checkpoint": initial,
            "text": domain / "shards" / "train-*.txt",
            "add": values.add,
            "min_count": values.min_count,
        },
        made="vocab.txt",
    )
    for kind in (GENERAL, DOMAIN):
        study.data(kind, extended, "-words")
    weight = values.domain_weight
    variants = [
        Variant("general", False, 0.0),
        Variant("domain", False, 1.0),
        Variant("mixture", False, weight),
        Variant("domain-words", True, 1.0),
        Variant("mixture-words", True, weight),
    ]
    trained = {
        variant: [_continued(study, variant, seed) for seed in seeds] for variant in variants
    }
    run_trainings([training for of_seed in zip(*trained.values()) for training in of_seed])
    rows = {"initial": [_row(study, initial, seed) for seed in seeds]}
    for variant, trainings in trained.items():
        rows[variant.name] = [_row(study, t.directory, t.seed) for t in trainings]
    print("\n".join(table(rows)), flush=True)
    commit = record_of(trained[variants[0]][0]).get("git_commit")
    for name, of_seeds in rows.items():
        config = {"seeds": seeds, "git_commit": commit, "rows": [row._asdict() for row in of_seeds]}
        for what in Row._fields:
            found = [getattr(row, what) for row in of_seeds]
            if None not in found:
                unit = "%" if what == "f1" else "perplexity per word"
                yield result(f"{name}, {what}", statistics.fmean(found), unit, config)


class Row(NamedTuple):
    """What is measured of a model: perplexities per word, and the F1 of the domain's task in %."""

    domain: float
    general: float
    f1: float | None


def _row(study: Study, model: Path, seed: int) -> Row:
    return Row(
        study.perplexity(model, DOMAIN), study.perplexity(model, GENERAL), study.score(model, seed)
    )


def _initial_model(study: Study, general: Path) -> Path:
    config = {**NETWORK, "max_position_embeddings": study.values.max_seq_length}
    start = {**config, "hidden_size": 128, "intermediate_size": 512, "initializer_range": 0.09}
    variant, updates = Variant("initial", False, 0.0), study.values.initial_updates
    training = study.training(variant, start, str(general / "records" / "train"), updates, seed=1)
    run_trainings([training])
    return training.directory


def _continued(study: Study, variant: Variant, seed: int) -> Training:
    initial = study.values.init_checkpoint or study.root / "initial-seed1"
    start = study.root / "with_words" if variant.has_words else initial
    domain, general = (study.records(kind, variant) / "train" for kind in (DOMAIN, GENERAL))
    weight = variant.domain_weight
    source = str(domain if weight else general)
    if 0 < weight < 1:
        source = f"{domain}:{weight:g},{general}:{1 - weight:g}"
    start_flags = {"init_checkpoint": str(start)}
    return study.training(variant, start_flags, source, study.values.updates, seed)


def table(rows: Mapping[str, Sequence[Row]]) -> list[str]:
    """A line for each variant: means over seeds, the range of seeds, and ratios to the initial."""
    lines = ["", f"{'':16}{'domain, per word':>36}{'general, per word':>36}{'F1, %':>24}"]
    before = rows["initial"][0]
    for name, of_seeds in rows.items():
        cells = []
        for what in Row._fields:
            found = [getattr(row, what) for row in of_seeds]
            if None in found:
                continue
            ratio = ""
            if what != "f1":
                ratio = f" x{statistics.fmean(found) / getattr(before, what):.3g}"
            spread = f" ({min(found):.4g} to {max(found):.4g})"
            cells.append(f"{statistics.fmean(found):.4g}{spread}{ratio}")
        lines.append(f"{name:16}" + "".join(f"{cell:>36}" for cell in cells))
    return lines


FLAGS = {
    "general_text": (REQUIRED, "General text, as data_prep.pipeline's --input_file."),
    "domain_text": (REQUIRED, "Text of the domain, in the same form."),
    "output_dir": (REQUIRED, "Directory for records, trainings and evaluations."),
    "init_checkpoint": (str, "The initial model (default: one trained on the general text)."),
    "ner_train_file": (str, "Labelled words of the domain, as run_ner.py's --train_file."),
    "ner_dev_file": (str, "The same, to score."),
    "squad_train_file": (str, "Questions of the domain, as run_squad.py's --train_file."),
    "squad_dev_file": (str, "The same, to score."),
    "seeds": (["1", "2", "3"], "Seeds of continued pre-training and of fine-tuning."),
    "vocab_size": (8000, "Entries of the initial model's vocabulary.", 100),
    "heldout_fraction": (0.05, "Fraction of the documents that is held out."),
    "add": (500, "Words to add, as extend_vocabulary's.", 1),
    "min_count": (5, "Occurrences of an added word, as extend_vocabulary's.", 1),
    "domain_weight": (0.8, "Fraction of the domain in a mixture."),
    "sample": (1.0, "Fraction of the held-out documents to evaluate."),
    "batch_size": (32, "Sequences per update.", 1),
    "initial_updates": (3000, "Updates of the initial model.", 1),
    "updates": (1000, "Updates of continued pre-training.", 1),
    "learning_rate": (1e-3, "Of all trainings."),
    "task_epochs": (3.0, "Passes over the task's training file."),
    **_SHARED,
    **_OF_TRAINING,
    **shared_flags("json"),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
