"""Who takes part: programs with the settings that make each of them a contestant of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bert_tf.config.bert_config import BertConfig
from bert_tf.errors import UserError

OURS = "benchmarks.speed.ours"
GOOGLE = "benchmarks.speed.google_bert"
TRANSFORMERS = "benchmarks.speed.huggingface"
LIMIT = "benchmarks.speed.products"
RECORDS = "benchmarks.speed.records"

BERT_BASE = BertConfig(vocab_size=30522, type_vocab_size=2)  # Devlin et al. 2018

# With these glibc keeps big blocks, and torch takes no page faults in every step. TensorFlow has
# an allocator of its own and gains nothing.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}

_ELSEWHERE = "-other-python"  # what a subject's name ends with in another environment
_FEATURES_OF_BFLOAT16 = {"avx512_bf16", "amx_bf16"}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program with its settings.

    Attributes:
      name: in tables and flags; what kind it is shows at its beginning: ``ours``, ``limit``,
        ``google-bert``, or another peer's name.
      module: what runs it, in a process of its own.
      settings: for that module.
      environment: further variables of its process.
      python: the interpreter of its process; None for that of the benchmark.
    """

    name: str
    module: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this project computes."""
        return self.name.startswith("ours")

    def is_compared_with(self, other: Subject) -> bool:
        """Whether how many times faster this one is than ``other`` is a result of its own.

        It is where this is ours, and the other is a peer or this one elsewhere.
        """
        if other.python is not None:
            return other.name == f"{self.name}{_ELSEWHERE}"
        return self.is_ours and self.python is None and not other.is_ours

    @property
    def is_limit(self) -> bool:
        """Whether it computes less than what is compared, so that nothing can be faster."""
        return self.name.startswith("limit")

    @property
    def is_google_bert(self) -> bool:
        """Whether it is the code of --google_bert_dir."""
        return self.name.startswith("google-bert")

    @property
    def reported_name(self) -> str:
        """The ``subject`` of its results; what limits it are is told by their names."""
        return "limit" if self.is_limit else self.name


# Name -> settings of benchmarks.speed.ours.Settings. A row more is a contestant more.
OUR_SETTINGS: dict[str, dict[str, Any]] = {
    "ours": {"precision": "auto"},
    "ours-tensorflow": {"precision": "auto", "native": False},
    "ours-xla": {"precision": "auto", "xla": True},
    "ours-amp": {"precision": "bf16", "amp": True},
    "ours-fp32": {"precision": "fp32"},
    "ours-fp32-xla": {"precision": "fp32", "xla": True},
    "ours-bf16": {"precision": "bf16"},
}


def _subjects() -> dict[str, Subject]:
    subjects = [Subject(name, OURS, settings) for name, settings in OUR_SETTINGS.items()]
    subjects.append(Subject("google-bert", GOOGLE, {"amp": False}))
    subjects.append(Subject("google-bert-amp", GOOGLE, {"amp": True, "precision": "bf16"}))
    for name, precision, compiled in (
        ("transformers-fp32", "fp32", False),
        ("transformers-bf16", "bf16", False),
        ("transformers-bf16-compile", "bf16", True),
    ):
        settings = {"precision": precision, "compile": compiled}
        subjects.append(Subject(name, TRANSFORMERS, settings))
        subjects.append(Subject(f"{name}-malloc", TRANSFORMERS, settings, MALLOC))
    for precision in ("fp32", "bf16"):
        subjects.append(Subject(f"limit-{precision}", LIMIT, {"precision": precision}))
    return {subject.name: subject for subject in subjects}


SUBJECTS = _subjects()

# Our served model has no session settings, and what bounds a batch's time is not products alone.
PREDICTING = {
    name: subject
    for name, subject in SUBJECTS.items()
    if not subject.is_limit
    and not (subject.is_ours and (subject.settings.get("xla") or subject.settings.get("amp")))
}

# Peers have their own way to compute activations again, or none.
_RECOMPUTING = {
    f"{name}-recompute": dataclasses.replace(
        SUBJECTS[name],
        name=f"{name}-recompute",
        settings={**SUBJECTS[name].settings, "recompute": True},
    )
    for name in ("ours-fp32", "ours-bf16", "transformers-fp32", "transformers-bf16")
}
_KEEPING = ("ours-fp32", "ours-bf16", "google-bert", "google-bert-amp", "transformers-fp32",
            "transformers-bf16")  # fmt: skip
IN_MEMORY = {**{name: SUBJECTS[name] for name in _KEEPING}, **_RECOMPUTING}

# With real sequences: ours when it pads all of them as the others do.
PADDED = Subject("ours-padded", OURS, {"precision": "auto", "by_length": False})
PREDICTING_REAL = {**PREDICTING, PADDED.name: PADDED}

MAKING_RECORDS = {
    subject.name: subject
    for subject in (
        Subject("ours", RECORDS, {"program": "ours", "num_workers": 0}),
        Subject("ours-1-worker", RECORDS, {"program": "ours", "num_workers": 1}),
        Subject("google-bert", RECORDS, {"program": "google-bert"}),
        Subject("tokenizers", RECORDS, {"program": "tokenizers"}),
        Subject(
            "tokenizers-1-thread",
            RECORDS,
            {"program": "tokenizers"},
            {"TOKENIZERS_PARALLELISM": "false"},
        ),
    )
}

# TensorFlow only lends google's code its names: the threads are those of Rust and of numpy.
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
MAKING_FEATURES = {
    name: Subject(name, RECORDS, {"program": program}, _ONE_THREAD)
    for name, program in (
        ("ours", "ours"),
        ("google-research/bert", "google-bert"),
        ("transformers", "transformers"),
    )
}


def with_other_python(subjects: Iterable[Subject], python: str) -> list[Subject]:
    """``subjects``, and each of ours once more in the environment of another interpreter."""
    subjects = list(subjects)
    return subjects + [
        dataclasses.replace(subject, name=f"{subject.name}{_ELSEWHERE}", python=python)
        for subject in subjects
        if subject.is_ours
    ]


def default_subjects(
    *,
    cpu_features: Iterable[str],
    has_google_bert: bool,
    subjects: Mapping[str, Subject] = SUBJECTS,
) -> list[Subject]:
    """All, but for bf16 on a CPU that only emulates it, and google-research/bert without its code.

    Args:
      cpu_features: as in benchmarks.machine.
      has_google_bert: whether --google_bert_dir is given.
      subjects: by name.
    """
    has_bfloat16 = bool(_FEATURES_OF_BFLOAT16 & set(cpu_features))
    return [
        subject
        for subject in subjects.values()
        if (has_bfloat16 or subject.settings.get("precision") != "bf16")
        and (has_google_bert or not subject.is_google_bert)
    ]


def chosen_subjects(
    names: Sequence[str], *, has_google_bert: bool, subjects: Mapping[str, Subject] = SUBJECTS
) -> list[Subject]:
    """The subjects of --subjects; raises UserError for a name that is none, or that cannot run."""
    chosen = []
    for name in dict.fromkeys(names):
        if name not in subjects:
            raise UserError(f"--subjects: {name!r} is none of {', '.join(subjects)}.")
        if subjects[name].is_google_bert and not has_google_bert:
            raise UserError(
                f"--subjects: {name} needs --google_bert_dir, a checkout of google-research/bert."
            )
        chosen.append(subjects[name])
    return chosen
