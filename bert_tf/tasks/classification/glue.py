"""Tasks with published files: GLUE (Wang et al. 2019), XNLI and ChemProt, and their reader."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from bert_tf.tasks.classification.text_task import OF_RATINGS, Part, Row, TextFile, TextTask
from bert_tf.util.errors import UserError, short_repr
from bert_tf.util.files import find_file, read_lines

TRAIN, DEV, TEST = "train", "dev", "test"
_TRAIN_FILE = "train_file"


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """What tab-separated files of a task look like.

    Attributes:
      without_header: the columns of files without a header, () if every file has one.
      optional: further columns that files without a header may have, all or none of them.
      other_names: what some files call a column -> its name in the task.
      other_labels: what some files call a label -> its name in the task.
      skips_short_lines: whether lines with too few columns are left out of files with labels.
    """

    without_header: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    other_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    other_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    skips_short_lines: bool = False


@dataclasses.dataclass(frozen=True)
class Sets:
    """The files of a task, in its directory.

    Attributes:
      train, dev, test: file names in order of preference; () if there is no such set.
        ``{part}`` stands for each of the parts; in ``train``, for ``train_part``.
      parts: parts of the development and the test set, which are scored apart.
      part_column: the column with a row's part, if one file has all parts.
      train_part: the part to train on.
      submissions: a test file's name -> the name under which GLUE takes its predictions;
        ``{task}`` stands for the name of the task.
    """

    train: tuple[str, ...] = ("train.tsv",)
    dev: tuple[str, ...] = ("dev.tsv",)
    test: tuple[str, ...] = ("test.tsv",)
    parts: tuple[str, ...] = ("",)
    part_column: str = ""
    train_part: str = ""
    submissions: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"test.tsv": "{task}.tsv"}
    )

    def names(self, split: str) -> list[list[str]]:
        """For each file of a split, its possible names in order of preference."""
        patterns = {TRAIN: self.train, DEV: self.dev, TEST: self.test}[split]
        parts = [self.train_part] if split == TRAIN else self.parts
        found = [tuple(name.format(part=part) for name in patterns) for part in parts]
        return [list(names) for names in dict.fromkeys(found) if names]


@dataclasses.dataclass(frozen=True)
class GlueTask(TextTask):
    """A task with published files.

    Tasks with the same ``head`` can predict with each other's models; "" stands for the task's own.
    """

    first: str = "sentence"
    second: str | None = None
    label: str | None = "label"
    metrics: tuple[str, ...] = ("accuracy",)
    stage: str = "glue_features"
    format: FileFormat = FileFormat()
    sets: Sets = Sets()
    head: str = ""

    def in_languages(self, languages: tuple[str, ...], train_language: str) -> GlueTask:
        """This task, which has a part for each language, in some of them."""
        sets = dataclasses.replace(self.sets, parts=languages, train_part=train_language)
        return dataclasses.replace(self, sets=sets)

    def numbered_as(self, labels: Sequence[str]) -> GlueTask:
        """This task with its classes in the order of a model's labels, if these are the same.

        Upper and lower case may differ, as in Hugging Face's models of MNLI.
        """
        own = {name.lower(): name for name in self.classes}
        names = tuple(own.get(label.lower(), "") for label in labels)
        if names == self.classes or sorted(names) != sorted(self.classes):
            return self
        parameters = {**self.parameters, "classes": list(names)}
        return dataclasses.replace(self, classes=names, parameters=parameters)

    def submission(self, file_name: str) -> str | None:
        """The name under which GLUE takes predictions of a file; None for other files."""
        found = self.sets.submissions.get(file_name)
        return found and found.format(task=self.name)

    @property
    def same_head(self) -> list[str]:
        """The names of the tasks whose models it can predict with."""
        rows = GLUE_TASKS.values()
        return [row.name for row in rows if row.name == self.name or row.head == self.head != ""]


_NLI = ("contradiction", "entailment", "neutral")
_TWO_WAY_NLI = ("entailment", "not_entailment")

GLUE_TASKS = {
    "cola": GlueTask(
        "CoLA",
        metrics=("matthews_correlation", "accuracy"),
        format=FileFormat(without_header=("source", "label", "original_judgement", "sentence")),
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
        format=FileFormat(skips_short_lines=True),
    ),
    "sts-b": GlueTask(
        "STS-B",
        "sentence1",
        "sentence2",
        label="score",
        classes=(),
        lowest=0.0,
        highest=5.0,
        metrics=OF_RATINGS,
        # For the files of the original STS benchmark, of which GLUE's files were made.
        format=FileFormat(
            without_header=(
                *("genre", "filename", "year", "old_index"),
                *("score", "sentence1", "sentence2"),
            ),
            optional=("source1", "source2"),
        ),
        sets=Sets(
            train=("train.tsv", "sts-train.csv"),
            dev=("dev.tsv", "sts-dev.csv"),
            test=("test.tsv", "sts-test.csv"),
        ),
    ),
    "mnli": GlueTask(
        "MNLI",
        "sentence1",
        "sentence2",
        label="gold_label",
        classes=_NLI,
        sets=Sets(
            dev=("dev_{part}.tsv",),
            test=("test_{part}.tsv",),
            parts=("matched", "mismatched"),
            submissions={
                "test_matched.tsv": "MNLI-m.tsv",
                "test_mismatched.tsv": "MNLI-mm.tsv",
            },
        ),
        head="NLI",
    ),
    "qnli": GlueTask("QNLI", "question", "sentence", classes=_TWO_WAY_NLI),
    "rte": GlueTask("RTE", "sentence1", "sentence2", classes=_TWO_WAY_NLI),
    "wnli": GlueTask("WNLI", "sentence1", "sentence2"),
    # GLUE's diagnostic set, to be predicted by a model of MNLI.
    "ax": GlueTask(
        "AX",
        "sentence1",
        "sentence2",
        classes=_NLI,
        metrics=("matthews_correlation", "accuracy"),
        format=FileFormat(
            other_names={"Premise": "sentence1", "Hypothesis": "sentence2", "Label": "label"}
        ),
        sets=Sets(
            train=(),
            dev=("diagnostic-full.tsv",),
            test=("diagnostic.tsv",),
            submissions={"diagnostic.tsv": "AX.tsv"},
        ),
        head="NLI",
    ),
    # Conneau et al. 2018; the places are those of google-research/bert, or of the archives.
    "xnli": GlueTask(
        "XNLI",
        "sentence1",
        "sentence2",
        label="gold_label",
        classes=_NLI,
        format=FileFormat(
            other_names={"premise": "sentence1", "hypo": "sentence2", "label": "gold_label"},
            other_labels={"contradictory": "contradiction"},
        ),
        sets=Sets(
            train=(
                "multinli/multinli.train.{part}.tsv",
                "XNLI-MT-1.0/multinli/multinli.train.{part}.tsv",
            ),
            dev=("xnli.dev.tsv", "XNLI-1.0/xnli.dev.tsv"),
            test=("xnli.test.tsv", "XNLI-1.0/xnli.test.tsv"),
            part_column="language",
            submissions={},
        ),
        head="NLI",
    ),
    # Relations of chemicals and proteins (BioCreative VI), in the files of NVIDIA's run_re.py.
    "chemprot": GlueTask(
        "ChemProt",
        classes=("CPR:3", "CPR:4", "CPR:5", "CPR:6", "CPR:9", "false"),
        negative="false",
        metrics=("micro_f1", "accuracy"),
        sets=Sets(submissions={}),
    ),
}


def find_task(name: str, *, flag: str) -> str:
    """Finds the key of a task in ``GLUE_TASKS``, ignoring case and hyphens in its name.

    Raises UserError for an unknown name.
    """
    for key in GLUE_TASKS:
        if _normalized(key) == _normalized(name):
            return key
    known = ", ".join(task.name for task in GLUE_TASKS.values())
    raise UserError(f"--{flag}={name} is not one of {known}.")


def _normalized(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


def find_split(task: GlueTask, data_dir: Path, split: str, *, flag: str) -> list[Path]:
    """The files of a split; raises UserError if the directory lacks one of them."""
    advice = f"give the directory of {task.name}'s files"
    if task.sets.part_column:
        advice += ", or another language"
    wanted = task.sets.names(split)
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

    ``paths`` are the file, or the file of each part. A file with the column ``sets.part_column``
    has several parts; rows of other parts than the task's are left out. Without ``needs_labels``
    all labels are None. Raises UserError, which names ``flag`` and the line, if a file cannot be
    read or has other columns, an invalid label or no rows.
    """
    paths = [paths] if isinstance(paths, Path) else paths
    if flag == _TRAIN_FILE:
        task = task.in_languages((task.sets.train_part,), task.sets.train_part)
    found = [_read_file(task, path, flag, needs_labels) for path in paths]
    if len(found) == 1 and "" not in found[0][0]:
        parameters = {**task.parameters, task.sets.part_column: list(task.sets.parts)}
        task = dataclasses.replace(task, parameters=parameters)
    parts: list[Part] = []
    rows: list[Row] = []
    for path, name, (by_part, _) in zip(paths, task.sets.parts, found):
        for own_name, its_rows in by_part.items():
            place = slice(len(rows), len(rows) + len(its_rows))
            parts.append(Part((own_name or name) if parts else "", path, place))
            rows += its_rows
    return TextFile(paths[0], task, rows, tuple(parts), sum(skipped for _, skipped in found))


def _read_file(
    task: GlueTask, path: Path, flag: str, needs_labels: bool
) -> tuple[dict[str, list[Row]], int]:
    """The rows by part, "" in a file without a column of parts, and the number of skipped lines."""
    lines = read_lines(path, flag=flag)
    needed = (*task.sentences, *((task.label,) if needs_labels and task.label else ()))
    names, counts, first_row = _header(task, lines, needed, f"--{flag}: line 1 of {path}")
    numbers = [names.index(name) for name in needed]
    column, other_parts = task.sets.part_column, set()
    part_number = names.index(column) if column in names else None
    rows: dict[str, list[Row]] = {
        part: [] for part in ([""] if part_number is None else task.sets.parts)
    }
    skipped = 0
    for number, line in enumerate(lines[first_row:], start=first_row + 1):
        cells = line.split("\t")
        if len(cells) not in counts:
            if task.format.skips_short_lines and needs_labels and len(cells) < counts[0]:
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
    for part, found in rows.items():
        if not found and not part:
            raise UserError(f"--{flag}: {path} has no examples.")
        if not found:
            others = f"; it has {', '.join(sorted(other_parts))}" if other_parts else ""
            named_by = f"train_{column}" if flag == _TRAIN_FILE else column
            raise UserError(f"--{named_by}={part}: {path} has no rows in this {column}{others}.")
    return rows, skipped


def _header(
    task: GlueTask, lines: list[str], needed: tuple[str, ...], where: str
) -> tuple[list[str], tuple[int, ...], int]:
    """A file's columns, how many of them lines may have, and the index of the first row.

    Raises UserError, beginning with ``where``, if it lacks a needed one.
    """
    form = task.format
    given = lines[0].split("\t") if lines else []
    names = [form.other_names.get(name, name) for name in given]
    counts: tuple[int, ...] = (len(names),)
    first_row = 1
    if form.without_header and not set(task.sentences) <= set(names):
        names, first_row = [*form.without_header, *form.optional], 0
        counts = tuple({len(form.without_header): None, len(names): None})
    missing = next((name for name in needed if name not in names), None)
    if missing is not None:
        others = [other for other, name in form.other_names.items() if name == missing]
        raise UserError(
            f"{where} has no column {' or '.join(map(repr, [missing, *others]))}; give a file of "
            f"{task.name}."
        )
    return names, counts, first_row


def _label(task: GlueTask, text: str, *, where: str) -> float:
    """A class number or a score; ``where`` begins the message of a UserError."""
    if not task.is_regression:
        name = task.format.other_labels.get(text, text)
        if name in task.classes:
            return float(task.classes.index(name))
        allowed = " or ".join(task.classes)
    else:
        try:
            score = float(text)
        except ValueError:
            score = math.nan
        if task.lowest <= score <= task.highest:
            return score
        allowed = f"a number from {task.lowest:g} to {task.highest:g}"
    raise UserError(
        f"{where} has the label {short_repr(text)}, which must be {allowed}; correct it."
    )
