"""What all parts share: sizes, made-up data, and trainings that several parts read."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu import made_up
from benchmarks.gpu.runs import (
    Deadline,
    Ended,
    Trained,
    read_training,
    require_success,
    run_json,
    run_program,
)
from benchmarks.speed.batches import masked_words
from benchmarks.speed.process import script_command
from benchmarks.speed.steps import DISTILLATION, PRETRAINING, SPANS
from benchmarks.speed.subjects import BERT_BASE
from bert_tf.durable.manifest import read_manifest
from bert_tf.model.config import BertConfig
from bert_tf.util.files import write_json

SCRIPTS = {
    PRETRAINING: "run_pretraining.py",
    SPANS: "run_squad.py",
    DISTILLATION: "run_distillation.py",
}

PRECISIONS = ("fp32", "bf16", "fp16")
USUAL_PRECISION = "bf16"
LENGTHS = ("max_seq_length", "max_predictions_per_seq")

_PEER = Path(__file__).with_name("peer.py")
# What another interpreter must not inherit: packages and libraries of this one.
_OF_THIS_PYTHON = ("PYTHONPATH", "LD_LIBRARY_PATH", "XLA_FLAGS")


@dataclasses.dataclass(frozen=True)
class Shape:
    """A batch of a task and a network.

    Attributes:
      network: a name in ``Sizes.networks``; in a distillation, the teacher's.
      batch: sequences per micro batch.
      length: tokens per sequence.
      task: ``PRETRAINING``, ``SPANS`` or ``DISTILLATION``.
    """

    network: str
    batch: int
    length: int
    task: str = PRETRAINING

    def __str__(self) -> str:
        """The network, the batch, and the task if it is not pre-training."""
        task = "" if self.task == PRETRAINING else f"{self.task}, "
        return f"{task}{self.network}, {self.batch} x {self.length}"


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How large everything is; see ``FULL`` and ``TINY``.

    Attributes:
      networks: architectures by name.
      speed: shapes whose speed is measured; the first is that of ``policy`` and ``starts``, too.
      small: the shape of parts in which only the results count.
      updates: updates of a run whose speed is measured.
      curve_updates: updates of a loss curve.
      curve_spacing: updates per point of a curve.
      saving: updates of the run that is killed, and updates between its checkpoints.
      memory: the network and the sequence length of the largest batches.
      memory_batches: batch sizes through which the line is drawn.
      memory_gib: the limit of a largest batch in GiB.
      most_batch: the largest batch that is tried.
      precisions: those of the largest batches.
      long: the shape whose speed is compared with Perseus'.
      records: sequences in a directory of made-up records.
      questions: sequences in a made-up SQuAD file.
    """

    networks: Mapping[str, BertConfig]
    speed: tuple[Shape, ...]
    small: Shape
    updates: int
    curve_updates: int
    curve_spacing: int
    saving: tuple[int, int]
    memory: tuple[str, int]
    memory_batches: tuple[int, int]
    memory_gib: float
    most_batch: int
    precisions: tuple[str, ...]
    long: Shape
    records: int
    questions: int


_LARGE = dataclasses.replace(
    BERT_BASE, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
    intermediate_size=4096,
)  # fmt: skip
_SMALL = dataclasses.replace(
    BERT_BASE, hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=1024
)
_TINY = BertConfig(
    vocab_size=120, hidden_size=64, num_hidden_layers=2, num_attention_heads=2,
    intermediate_size=128, max_position_embeddings=32, type_vocab_size=2,
)  # fmt: skip

FULL = Sizes(
    networks={"BERT-base": BERT_BASE, "BERT-large": _LARGE, "2 x 256": _SMALL},
    speed=(
        Shape("BERT-base", 256, 128),
        Shape("BERT-base", 64, 512),
        Shape("BERT-large", 32, 512),
        Shape("BERT-base", 48, 384, SPANS),
        Shape("BERT-base", 64, 128, DISTILLATION),
    ),
    small=Shape("2 x 256", 32, 128),
    updates=50,
    curve_updates=300,
    curve_spacing=10,
    saving=(400, 100),
    memory=("BERT-base", 256),
    memory_batches=(8, 24),
    memory_gib=16.0,
    most_batch=1024,
    precisions=PRECISIONS,
    long=Shape("BERT-base", 64, 512),
    records=2048,
    questions=512,
)
TINY = Sizes(
    networks={"2 x 64": _TINY},
    speed=(
        Shape("2 x 64", 8, 16),
        Shape("2 x 64", 4, 32, SPANS),
        Shape("2 x 64", 4, 16, DISTILLATION),
    ),
    small=Shape("2 x 64", 4, 16),
    updates=6,
    curve_updates=20,
    curve_spacing=5,
    saving=(200, 50),
    memory=("2 x 64", 16),
    memory_batches=(4, 256),
    memory_gib=1.0,
    most_batch=512,
    precisions=("bf16",),
    long=Shape("2 x 64", 4, 32),
    records=64,
    questions=16,
)
SIZES = {"full": FULL, "tiny": TINY}


@dataclasses.dataclass
class Lab:
    """Where parts work: directories, data and runs.

    Attributes:
      work: a temporary directory.
      sizes: how large everything is.
      peer_python: interpreter that has torch and transformers.
      environment: the variables of programs that are started.
      data: directory of pre-training records for the small network; None for made-up ones.
      deadline: the end of the current part.
      part: its name.
    """

    work: Path
    sizes: Sizes
    peer_python: str
    environment: Mapping[str, str]
    data: Path | None
    deadline: Deadline
    part: str = ""
    _kept: dict[str, Trained] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def seen(self) -> dict[str, Any]:
        """What ``device.py`` finds."""
        return run_json(
            [sys.executable, "-m", "benchmarks.gpu.device"],
            self.work / "device.txt",
            label=f"{self.part}: what TensorFlow sees",
            deadline=self.deadline,
            environment=self.environment,
        )

    @property
    def has_gpu(self) -> bool:
        """Whether TensorFlow sees a GPU."""
        return bool(self.seen["gpus"])

    def network(self, name: str) -> BertConfig:
        """A network; with records of one's own, the small one has their vocabulary's size."""
        network = self.sizes.networks[name]
        if self.data is not None and name == self.sizes.small.network:
            vocabulary = read_manifest(self.data).vocabulary
            if vocabulary is not None:
                return dataclasses.replace(network, vocab_size=vocabulary.size)
        return network

    def network_file(self, name: str, **changes: Any) -> Path:
        """The JSON file of a network, or of one that differs from it in the given sizes."""
        path = self.work / f"{name} {' '.join(map(str, changes.values()))}.json"
        write_json(path, dataclasses.replace(self.network(name), **changes).to_dict())
        return path

    def vocabulary_file(self, name: str) -> Path:
        """A vocabulary of the network's size."""
        path = self.work / f"{name}.txt"
        made_up.write_vocabulary(path, self.network(name).vocab_size)
        return path

    def flags(self, shape: Shape, **more: object) -> dict[str, object]:
        """The flags of a training, compiled and in bf16 unless ``more`` says otherwise."""
        return {
            "do_train": True,
            "bert_config_file": self.network_file(shape.network),
            "max_seq_length": shape.length,
            "train_batch_size": shape.batch,
            "num_train_steps": self.sizes.updates,
            "display_loss_steps": self.sizes.updates,
            "learning_rate": 1e-4,
            "seed": 1,
            "use_xla": True,
            "precision": USUAL_PRECISION,
            **self._data_flags(shape),
            **more,
        }

    def small_flags(self, **more: object) -> dict[str, object]:
        """The flags of a pre-training of the small network, on --data if it is given."""
        flags = self.flags(
            self.sizes.small,
            num_train_steps=self.sizes.curve_updates,
            display_loss_steps=self.sizes.curve_spacing,
            learning_rate=1e-3,
        )
        if self.data is not None:  # their lengths are found in the records
            flags["input_file"] = self.data
            for name in LENGTHS:
                del flags[name]
        return {**flags, **more}

    def run(
        self, script: str, flags: Mapping[str, object], label: str, environment: Mapping[str, str]
    ) -> Ended:
        """Runs an entry script with some variables changed; raises RunError or OutOfTimeError."""
        output = self.work / f"output of {label}.txt"
        ended = run_program(
            [sys.executable, *script_command(script, flags)],
            output,
            label=f"{self.part}: {label}",
            deadline=self.deadline,
            environment={**self.environment, **environment},
        )
        require_success(ended, output)
        return ended

    def train(
        self,
        name: str,
        flags: Mapping[str, object],
        *,
        task: str = PRETRAINING,
        environment: Mapping[str, str] | None = None,
        keep_weights: bool = False,
    ) -> Trained:
        """Runs a training, unless one of this name has ended before.

        Its checkpoints are removed unless ``keep_weights``. Raises RunError or OutOfTimeError.
        """
        if name in self._kept:
            return self._kept[name]
        directory = self.work / name
        shutil.rmtree(directory, ignore_errors=True)
        if flags["precision"] == "fp16" and not self.has_gpu:
            flags = {**flags, "allow_slow_fp16": True}
        given = {**flags, "output_dir": directory}
        ended = self.run(SCRIPTS[task], given, name, environment or {})
        if not keep_weights:
            for path in directory.glob("model.ckpt*"):
                path.unlink()
        found = self._kept[name] = read_training(directory, ended.peak_bytes)
        return found

    def train_shape(self, shape: Shape, **more: object) -> Trained:
        """The training of a shape for its speed; ``more`` are flags that differ from the usual."""
        values = {n: Path(v).stem if isinstance(v, Path) else v for n, v in more.items()}
        name = ", ".join([str(shape), *(f"{flag} {value}" for flag, value in values.items())])
        is_teacher = shape == self.sizes.speed[0] and not more
        if shape.task == DISTILLATION:
            more["teacher_checkpoint"] = self.train_shape(self.sizes.speed[0]).directory
        flags = self.flags(shape, **more)
        return self.train(name, flags, task=shape.task, keep_weights=is_teacher)

    def small_run(
        self, precision: str, *, use_xla: bool = True, seed: int = 1
    ) -> tuple[Trained, Path]:
        """A loss curve of the small network, and where XLA wrote its modules' text."""
        name = f"{precision}{'' if use_xla else ' without XLA'}, seed {seed}"
        dump = self.work / f"modules-{precision}-{use_xla}-{seed}"
        users = self.environment.get("XLA_FLAGS", "")
        environment = {
            "XLA_FLAGS": f"{users} --xla_dump_to={dump} --xla_dump_hlo_as_text".strip(),
            "XDG_CACHE_HOME": f"{dump}-cache",  # code that is kept would not be compiled again
        }
        flags = self.small_flags(precision=precision, use_xla=use_xla, seed=seed)
        is_evaluated = precision == "fp32" and use_xla
        return self.train(name, flags, environment=environment, keep_weights=is_evaluated), dump

    def peer(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """What transformers does with a job, as in ``peer.py``: compiled by torch on GPUs alone."""
        described = {**job, "compile": self.has_gpu, "started": time.monotonic()}
        return self.in_peer_python(str(_PEER), json.dumps(described))

    def in_peer_python(self, *arguments: str) -> dict[str, Any]:
        """The JSON object that the interpreter with torch prints last."""
        left_out = _OF_THIS_PYTHON if self.peer_python != sys.executable else ()
        kept = {name: v for name, v in self.environment.items() if name not in left_out}
        return run_json(
            [self.peer_python, *arguments],
            self.work / "peer.txt",
            label=f"{self.part}: transformers",
            deadline=self.deadline,
            environment={**kept, "USE_TF": "0"},
        )

    def _data_flags(self, shape: Shape) -> dict[str, object]:
        size, length = self.network(shape.network).vocab_size, shape.length
        if shape.task == SPANS:
            path = self.work / f"squad {length} {size}.json"
            made_up.write_squad(path, self.sizes.questions, vocab_size=size, length=length)
            return {
                "train_file": path,
                "vocab_file": self.vocabulary_file(shape.network),
                "doc_stride": min(128, length // 3),
                "max_query_length": min(64, length // 4),
            }
        records = self.work / f"records {length} {size}"
        if not records.exists():
            made_up.write_records(records, self.sizes.records, vocab_size=size, length=length)
        predictions = {"input_file": records, "max_predictions_per_seq": masked_words(length)}
        if shape.task != DISTILLATION:
            return predictions
        layers = max(1, self.network(shape.network).num_hidden_layers // 2)
        student = self.network_file(shape.network, num_hidden_layers=layers)
        return {**predictions, "bert_config_file": student}
