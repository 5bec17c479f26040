"""The subjects of comparisons: programs, each with its settings and environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from bert_tf.model.config import BertConfig

OURS = "benchmarks.speed.ours"
CACHED_TEACHER = "benchmarks.speed.cached_teacher"
GOOGLE = "benchmarks.speed.google_bert"
TRANSFORMERS = "benchmarks.speed.huggingface"
LIMIT = "benchmarks.speed.products"
RECORDS = "benchmarks.speed.records"

BERT_BASE = BertConfig(vocab_size=30522, type_vocab_size=2)  # Devlin et al. 2018

# With these, glibc keeps large blocks, and torch has no page faults in every step. TensorFlow has
# its own allocator and gains nothing.
MALLOC = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(16 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
}

_ELSEWHERE = "-other-python"  # suffix of a subject's name in another environment
_FEATURES_OF_BFLOAT16 = {"avx512_bf16", "amx_bf16"}


@dataclasses.dataclass(frozen=True)
class Subject:
    """A program with its settings.

    Attributes:
      name: for tables and flags; its beginning shows the kind: ``ours``, ``limit``,
        ``google-bert``, or another peer's name.
      module: the module that runs it, in a separate process.
      settings: settings for that module.
      environment: additional environment variables of its process.
      python: the interpreter of its process; None for the benchmark's.
    """

    name: str
    module: str
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    python: str | None = None

    @property
    def is_ours(self) -> bool:
        """Whether this project does the computation."""
        return self.name.startswith("ours")

    def is_compared_with(self, other: Subject) -> bool:
        """Whether to report the ratio of this subject's speed to that of ``other``.

        This must be ours, and the other one a peer, ours without batches by length, or this one
        with another interpreter.
        """
        if other.python is not None:
            return other.name == f"{self.name}{_ELSEWHERE}"
        is_ours = self.is_ours and self.python is None and self != PADDED
        return is_ours and (not other.is_ours or other == PADDED)

    @property
    def is_google_bert(self) -> bool:
        """Whether this is the code in --google_bert_dir."""
        return self.name.startswith("google-bert")


def by_name(*subjects: Subject) -> dict[str, Subject]:
    """A table of subjects by name."""
    return {subject.name: subject for subject in subjects}


def _peers(precision: str, *, ending: str = "", **settings: object) -> tuple[Subject, Subject]:
    """transformers with the C library's default allocator, and with one that keeps large blocks."""
    name, settings = f"transformers-{precision}{ending}", {"precision": precision, **settings}
    as_it_is = Subject(name, TRANSFORMERS, settings)
    return as_it_is, dataclasses.replace(as_it_is, name=f"{name}-malloc", environment=MALLOC)


# Settings of our subjects are those of benchmarks.speed.ours.Settings.
SUBJECTS = by_name(
    Subject("ours", OURS, {"precision": "auto"}),
    Subject("ours-tensorflow", OURS, {"precision": "auto", "native": False}),
    Subject("ours-xla", OURS, {"precision": "auto", "xla": True}),
    Subject("ours-fp32", OURS, {"precision": "fp32"}),
    Subject("ours-fp32-xla", OURS, {"precision": "fp32", "xla": True}),
    Subject("ours-bf16", OURS, {"precision": "bf16"}),
    Subject("google-bert", GOOGLE, {"amp": False}),
    Subject("google-bert-amp", GOOGLE, {"amp": True, "precision": "bf16"}),
    *_peers("fp32"),
    *_peers("bf16"),
    *_peers("bf16", ending="-compile", compile=True),
    Subject("limit-fp32", LIMIT, {"precision": "fp32"}),
    Subject("limit-bf16", LIMIT, {"precision": "bf16"}),
    Subject("limit-bf16-packed", LIMIT, {"precision": "bf16", "packed": True}),
)

# With real sequences, ours can also pad all of them, like the others.
PADDED = Subject("ours-padded", OURS, {"precision": "auto", "by_length": False})
# Our served model has no session settings, and products alone do not bound a batch's time.
_NOT_PREDICTING = ("ours-xla", "ours-fp32-xla")
PREDICTING = {
    name: s for name, s in SUBJECTS.items() if name not in _NOT_PREDICTING and s.module != LIMIT
}

# Without google-research/bert, which has no distillation.
DISTILLING = by_name(
    *(s for s in SUBJECTS.values() if s.module != GOOGLE),
    *(
        Subject(f"ours-{precision}-cached-teacher", CACHED_TEACHER, {"precision": precision})
        for precision in ("fp32", "bf16")
    ),
)

# google-research/bert cannot recompute activations.
IN_MEMORY = by_name(
    *(
        dataclasses.replace(
            SUBJECTS[name],
            name=f"{name}{ending}",
            settings={**SUBJECTS[name].settings, "recompute": bool(ending)},
        )
        for name in ("ours-fp32", "ours-bf16", "transformers-fp32", "transformers-bf16")
        for ending in ("", "-recompute")
    ),
    *(SUBJECTS[name] for name in ("google-bert", "google-bert-amp")),
)

_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
MAKING_RECORDS = by_name(
    Subject("ours", RECORDS, {"program": "ours", "num_workers": 0}),
    Subject("ours-1-worker", RECORDS, {"program": "ours", "num_workers": 1}),
    Subject("limit-tokenizer", RECORDS, {"program": "our tokenizer"}),
    Subject("ours-sentences-1-worker", RECORDS, {"program": "our sentences"}),
    Subject("limit-splitter", RECORDS, {"program": "splitter"}),
    Subject("google-bert", RECORDS, {"program": "google-bert"}),
    Subject("tokenizers", RECORDS, {"program": "tokenizers"}),
    Subject("tokenizers-1-thread", RECORDS, {"program": "tokenizers"}, _ONE_THREAD),
)


def with_other_python(subjects: Iterable[Subject], python: str) -> list[Subject]:
    """``subjects``, and each of ours again with another environment's interpreter."""
    subjects = list(subjects)
    return subjects + [
        dataclasses.replace(subject, name=f"{subject.name}{_ELSEWHERE}", python=python)
        for subject in subjects
        if subject.is_ours
    ]


def default_subjects(
    subjects: Mapping[str, Subject], *, cpu_features: Iterable[str], has_google_bert: bool
) -> list[Subject]:
    """All subjects, except bf16 on a CPU that only emulates it and those whose code is missing.

    Args:
      subjects: by name.
      cpu_features: as in benchmarks.machine.
      has_google_bert: whether --google_bert_dir is given.
    """
    has_bfloat16 = bool(_FEATURES_OF_BFLOAT16 & set(cpu_features))
    return [
        subject
        for subject in subjects.values()
        if (has_bfloat16 or subject.settings.get("precision") != "bf16")
        and (has_google_bert or not subject.is_google_bert)
    ]
