"""Tasks with published files: GLUE (Wang et al. 2019), XNLI and ChemProt, and their reader."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_tf.model_directory.classes import REGRESSION, SINGLE_LABEL, Classes
from bert_tf.tasks.classification.texts import OF_RATINGS, Part, Row, TextFile, TextTask
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

TRAIN, DEV, TEST = "train", "dev", "test"
_TRAIN_FILE = "train_file"


@dataclasses.dataclass(frozen=True)
class GlueTask(TextTask):
    """A task with published files, which are tab-separated.

    Attributes:
      head: tasks with the same one can predict with each other's models; "" for the task's own.
      train, dev, test: file names in order of preference; () if there is no such set.
        ``{part}`` stands for each of the parts; in ``train``, for ``train_part``.
      parts: parts of the development and the test set, which are scored apart.
      part_column: the column with a row's part, if one file has all parts.
      train_part: the part to train on.
      submissions: a test file's name -> the name under which GLUE takes its predictions;
        ``{task}`` stands for the name of the task.
      without_header: the columns of files without a header, () if every file has one.
      optional: further columns that files without a header may have, all or none of them.
      other_names: what some files call a column -> its name in the task.
      other_labels: what some files call a label -> its name in the task.
      skips_short_lines: whether lines with too few columns are left out of files with labels.
    """

    first: str = "sentence"
    second: str | None = None
    label: str | None = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    stage: str = "glue_features"
    head: str = ""
    train: tuple[str, ...] = ("train.tsv",)
    dev: tuple[str, ...] = ("dev.tsv",)
    test: tuple[str, ...] = ("test.tsv",)
    parts: tuple[str, ...] = ("",)
    part_column: str = ""
    train_part: str = ""
    submissions: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"test.tsv": "{task}.tsv"}
    )
    without_header: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    other_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    other_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skips_short_lines: bool = False

    def in_languages(self, languages: tuple[str, ...], train_language: str) -> GlueTask:
        """This task, which has a part for each language, in some of them."""
        return dataclasses.replace(self, parts=languages, train_part=train_language)

    def numbered_as(self, labels: Sequence[str]) -> GlueTask:
        """This task with its classes in the order of a model's labels, if these are the same.

        Upper and lower case may differ, as in Hugging Face's models of MNLI.
        """
        own = {name.lower(): name for name in self.classes.labels}
        names = tuple(own.get(label.lower(), "") for label in labels)
        if names == self.classes.labels or sorted(names) != sorted(self.classes.labels):
            return self
        parameters = {**self.parameters, "classes": list(names)}
        classes = Classes(self.classes.kind, names)
        return dataclasses.replace(self, classes=classes, parameters=parameters)

    def submission(self, file_name: str) -> str | None:
        """The name under which GLUE takes predictions of a file; None for other files."""
        name = self.submissions.get(file_name)
        return name and name.format(task=self.name)

    def file_names(self, split: str) -> list[list[str]]:
        """For each file of a split, its possible names in order of preference."""
        patterns = {TRAIN: self.train, DEV: self.dev, TEST: self.test}[split]
        parts = [self.train_part] if split == TRAIN else self.parts
        names = [tuple(name.format(part=part) for name in patterns) for part in parts]
        return [list(of_file) for of_file in dict.fromkeys(names) if of_file]

    @property
    def same_head(self) -> list[str]:
        """The names of the tasks whose models it can predict with."""
        rows = GLUE_TASKS.values()
        return [row.name for row in rows if row.name == self.name or row.head == self.head != ""]


_NLI = Classes(SINGLE_LABEL, ("contradiction", "entailment", "neutral"))
_TWO_WAY_NLI = Classes(SINGLE_LABEL, ("entailment", "not_entailment"))

GLUE_TASKS = {
    "cola": GlueTask(
        "CoLA",
        metrics=("matthews_correlation", "accuracy"),
        without_header=("source", "label", "original_judgement", "sentence"),
    ),
    "sst-2": GlueTask("SST-2"),
    "mrpc": GlueTask("MRPC", "#1 String", "#2 String", "Quality", ("accuracy", "f1")),
    "qqp": GlueTask(
        "QQP",
        "question1",
        "question2",
        "is_duplicate",
        ("accuracy", "f1"),
        # GLUE's train.tsv has questions with line ends in them, which break their lines.
        skips_short_lines=True,
    ),
    "sts-b": GlueTask(
        "STS-B",
        "sentence1",
        "sentence2",
        "score",
        OF_RATINGS,
        Classes(REGRESSION),
        lowest=0.0,
        highest=5.0,
        # The files of the original STS benchmark, of which GLUE's files were made, have no header.
        train=("train.tsv", "sts-train.csv"),
        dev=("dev.tsv", "sts-dev.csv"),
        test=("test.tsv", "sts-test.csv"),
        without_header=(
            *("genre", "filename", "year", "old_index"),
            *("score", "sentence1", "sentence2"),
        ),
        optional=("source1", "source2"),
    ),
    "mnli": GlueTask(
        "MNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        classes=_NLI,
        head="NLI",
        dev=("dev_{part}.tsv",),
        test=("test_{part}.tsv",),
        parts=("matched", "mismatched"),
        submissions={"test_matched.tsv": "MNLI-m.tsv", "test_mismatched.tsv": "MNLI-mm.tsv"},
    ),
    "qnli": GlueTask("QNLI", "question", "sentence", classes=_TWO_WAY_NLI),
    "rte": GlueTask("RTE", "sentence1", "sentence2", classes=_TWO_WAY_NLI),
    "wnli": GlueTask("WNLI", "sentence1", "sentence2"),
    # GLUE's diagnostic set, to be predicted by a model of MNLI.
    "ax": GlueTask(
        "AX",
        "sentence1",
        "sentence2",
        metrics=("matthews_correlation", "accuracy"),
        classes=_NLI,
        head="NLI",
        train=(),
        dev=("diagnostic-full.tsv",),
        test=("diagnostic.tsv",),
        submissions={"diagnostic.tsv": "AX.tsv"},
        other_names={"Premise": "sentence1", "Hypothesis": "sentence2", "Label": "label"},
    ),
    # Conneau et al. 2018; the places are those of google-research/bert, or of the archives.
    "xnli": GlueTask(
        "XNLI",
        "sentence1",
        "sentence2",
        "gold_label",
        classes=_NLI,
        head="NLI",
        train=(
            "multinli/multinli.train.{part}.tsv",
            "XNLI-MT-1.0/multinli/multinli.train.{part}.tsv",
        ),
        dev=("xnli.dev.tsv", "XNLI-1.0/xnli.dev.tsv"),
        test=("xnli.test.tsv", "XNLI-1.0/xnli.test.tsv"),
        part_column="language",
        submissions={},
        other_names={"premise": "sentence1", "hypo": "sentence2", "label": "gold_label"},
        other_labels={"contradictory": "contradiction"},
    ),
    # Relations of chemicals and proteins (BioCreative VI), in the files of NVIDIA's run_re.py.
    "chemprot": GlueTask(
        "ChemProt",
        metrics=("micro_f1", "accuracy"),
        classes=Classes(SINGLE_LABEL, ("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9", "false")),
        negative="false",
        submissions={},
    ),
}


def find_task(name: str, *, flag: str) -> str:
    """Finds the key of a task in ``GLUE_TASKS``, ignoring case and hyphens in its name.

    Raises UserError for an unknown name.
    """
    for key in GLUE_TASKS:
        if _normalized(key) == _normalized(name):
            return key
    names = ", ".join(task.name for task in GLUE_TASKS.values())
    raise UserError(f"--{flag}={name} is not one of {names}.")


def _normalized(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_split(task: GlueTask, data_dir: Path, split: str, *, flag: str) -> list[Path]:
    """The files of a split; raises UserError if the directory lacks one of them."""
    advice = f"give the directory of {task.name}'s files"
    if task.part_column:
        advice += ", or another language"
    wanted = task.file_names(split)
    if not wanted:
        other = next(name for name in task.same_head if name != task.name)
        raise UserError(
            f"--{flag}: {task.name} has no {split} set; train a model with --task_name={other} for "
            "it."
        )
    return [find_file(data_dir, names, flag=flag, advice=advice) for names in wanted]


def read_glue(
    task: GlueTask, paths: Path | Sequence[Path], *, flag: str, needs_labels: bool
) -> TextFile:
    """Reads tab-separated files in UTF-8; quotation marks have no special meaning.

    ``paths`` are the file, or the file of each part. A file with the column ``part_column`` has
    several parts; rows of other parts than the task's are left out. Without ``needs_labels`` all
    labels are None. Raises UserError, which names ``flag`` and the line, if a file cannot be read
    or has other columns, an invalid label or no rows.
    """
    paths = [paths] if isinstance(paths, Path) else paths
    if flag == _TRAIN_FILE:
        task = task.in_languages((task.train_part,), task.train_part)
    contents = [_read_file(task, path, flag, needs_labels) for path in paths]
    if len(contents) == 1 and "" not in contents[0][0]:
        parameters = {**task.parameters, task.part_column: list(task.parts)}
        task = dataclasses.replace(task, parameters=parameters)
    parts: list[Part] = []
    rows: list[Row] = []
    for path, name, (by_part, _) in zip(paths, task.parts, contents):
        for own_name, its_rows in by_part.items():
            place = slice(len(rows), len(rows) + len(its_rows))
            parts.append(Part((own_name or name) if parts else "", path, place))
            rows += its_rows
    skipped = sum(of_file for _, of_file in contents)
    return TextFile(paths[0], task, rows, tuple(parts), skipped)


def _read_file(
    task: GlueTask, path: Path, flag: str, needs_labels: bool
) -> tuple[dict[str, list[Row]], int]:
    """The rows by part, "" in a file without a column of parts, and the number of skipped lines."""
    lines = read_lines(path, flag=flag)
    needed = (*task.sentences, *((task.label,) if needs_labels and task.label else ()))
    names, counts, first_row = _header(task, lines, needed, f"--{flag}: line 1 of {path}")
    numbers = [names.index(name) for name in needed]
    part_number = names.index(task.part_column) if task.part_column in names else None
    rows: dict[str, list[Row]] = {
        part: [] for part in ([""] if part_number is None else task.parts)
    }
    skipped, other_parts = 0, set()
    for number, line in enumerate(lines[first_row:], start=first_row + 1):
        cells = line.split("\t")
        if len(cells) not in counts:
            if task.skips_short_lines and needs_labels and len(cells) < counts[0]:
                skipped += 1
                continue
            columns = "1 column" if len(cells) == 1 else f"{len(cells)} columns"
            raise UserError(
                f"--{flag}: line {number} of {path} has {columns} instead of "
                f"{' or '.join(map(str, counts))}; correct it, or give a file of "
                f"{task.name}."
            )
        part = "" if part_number is None else cells[part_number]
        if part not in rows:
            other_parts.add(part)
            continue
        values = [cells[n] for n in numbers]
        label = None
        if needs_labels:
            label = _label(task, values.pop(), where=f"--{flag}: line {number} of {path}")
        rows[part].append(Row(values[0], values[1] if task.second else None, label))
    for part, of_part in rows.items():
        if not of_part and not part:
            raise UserError(f"--{flag}: {path} has no examples.")
        if not of_part:
            others = f"; it has {', '.join(sorted(other_parts))}" if other_parts else ""
            column = task.part_column
            named_by = f"train_{column}" if flag == _TRAIN_FILE else column
            raise UserError(f"--{named_by}={part}: {path} has no rows in this {column}{others}.")
    return rows, skipped


def _header(
    task: GlueTask, lines: list[str], needed: tuple[str, ...], where: str
) -> tuple[list[str], tuple[int, ...], int]:
    """A file's columns, how many of them lines may have, and the index of the first row.

    Raises UserError, beginning with ``where``, if it lacks a needed one.
    """
    given = lines[0].split("\t") if lines else []
    names = [task.other_names.get(name, name) for name in given]
    counts: tuple[int, ...] = (len(names),)
    first_row = 1
    if task.without_header and not set(task.sentences) <= set(names):
        names, first_row = [*task.without_header, *task.optional], 0
        counts = tuple({len(task.without_header): None, len(names): None})
    missing = next((name for name in needed if name not in names), None)
    if missing is not None:
        others = [other for other, name in task.other_names.items() if name == missing]
        raise UserError(
            f"{where} has no column {' or '.join(map(repr, [missing, *others]))}; give a file of "
            f"{task.name}."
        )
    return names, counts, first_row


def _label(task: GlueTask, text: str, *, where: str) -> float:
    """A class number or a score; ``where`` begins the message of a UserError."""
    if task.is_regression:
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if task.lowest <= score <= task.highest:
            return score
        allowed = f"a number from {task.lowest:g} to {task.highest:g}"
    else:
        name = task.other_labels.get(text, text)
        if name in task.classes.labels:
            return float(task.classes.labels.index(name))
        allowed = " or ".join(task.classes.labels)
    raise UserError(
        f"{where} has the label {short_repr(text)}, which must be {allowed}; correct it."
    )
