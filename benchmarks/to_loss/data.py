"""The same text in the form that each program expects: records of each kind, and lines."""

from __future__ import annotations

import dataclasses
import glob
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed.process import as_flag, run_in_process
from benchmarks.speed.subjects import Subject
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json_object, write_json

GOOGLE_RECORDS, LINES = "google_records", "lines"
_SECONDS, _SETTINGS = "seconds.json", "text.json"


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """The settings from which all data are made.

    Attributes:
      input_file: like data_prep.pipeline's.
      vocab_size: size of the vocabulary made from the training text.
      heldout_fraction: fraction of the documents to hold out.
      seq_length: tokens per sequence.
      dupe_factor: passes over the text, for records of every kind.
      google_bert_dir: checkout of google-research/bert; None to skip its records.
    """

    input_file: str
    vocab_size: int
    heldout_fraction: float
    seq_length: int
    dupe_factor: int
    google_bert_dir: str | None

    @property
    def predictions(self) -> int:
        """Maximum number of masked tokens per sequence: 15 %, rounded up, as in 20 of 128."""
        return math.ceil(self.seq_length * 0.15)


# Kind of our records -> flags.
KINDS = {
    "pairs_static": {"masking": "static"},
    "pairs": {"masking": "dynamic"},
    "segments": {"masking": "dynamic", "nsp": False},
    "packed": {"masking": "dynamic", "nsp": False, "pack_documents": True},
}


def prepare(settings: TextSettings, directory: Path, kinds: Sequence[str]) -> dict[str, str]:
    """Makes what is missing; returns the paths by name.

    ``directory/seconds.json`` contains the time of each part, on all cores of this process. Raises
    UserError if the directory contains data made with other settings.
    """
    _check_same_settings(settings, directory)
    root = directory / "data"
    seconds = _read_seconds(directory)

    def timed(name: str, *command: str) -> None:
        start = time.monotonic()
        _run(*command)
        seconds.setdefault(name, time.monotonic() - start)

    common = {
        "max_seq_length": settings.seq_length,
        "dupe_factor": settings.dupe_factor,
        "num_output_files": 1,
    }
    flags = {**common, **KINDS["segments"], "input_file": settings.input_file}
    flags.update(vocab_size=settings.vocab_size, heldout_fraction=settings.heldout_fraction)
    timed("segments", "-m", "data_prep.pipeline", *_flags(flags, output_dir=root))
    paths = {
        "segments": str(root / "records" / "train"),
        "heldout": str(root / "records" / "heldout"),
        "vocab_file": str(root / "vocabulary" / "vocab.txt"),
    }
    shards = str(root / "shards" / "train-*.txt")
    for kind in kinds:
        if kind == "segments":
            continue
        paths[kind] = str(directory / kind)
        flags = {**common, **KINDS[kind], "vocab_file": paths["vocab_file"]}
        if KINDS[kind]["masking"] == "static":
            flags["max_predictions_per_seq"] = settings.predictions
        program = ["-m", "data_prep.create_pretraining_data"]
        timed(kind, *program, *_flags(flags, input_file=shards, output_dir=paths[kind]))
    paths[LINES] = str(directory / "lines.txt")
    write_lines(sorted(glob.glob(shards)), Path(paths[LINES]))
    if settings.google_bert_dir:
        paths[GOOGLE_RECORDS] = str(directory / "google.tfrecord")
        if not Path(paths[GOOGLE_RECORDS]).is_file():
            made = _google_records(settings, shards, paths)
            seconds[GOOGLE_RECORDS] = made["seconds"]
    write_json(directory / _SECONDS, seconds)
    return paths


def _google_records(settings: TextSettings, text: str, paths: dict[str, str]) -> dict[str, float]:
    """Runs google-research/bert's own program."""
    subject = Subject(
        "google-bert",
        "benchmarks.to_loss.google",
        {"google_bert_dir": settings.google_bert_dir},
    )
    partial = f"{paths[GOOGLE_RECORDS]}.partial"
    flags = {
        "input_file": text,
        "output_file": partial,
        "vocab_file": paths["vocab_file"],
        "max_seq_length": settings.seq_length,
        "max_predictions_per_seq": settings.predictions,
        "dupe_factor": settings.dupe_factor,
        "do_lower_case": True,
    }
    made = run_in_process(subject, {"flags": flags}, "make_records")
    os.replace(partial, paths[GOOGLE_RECORDS])
    return made


def _check_same_settings(settings: TextSettings, directory: Path) -> None:
    path, made_from = directory / _SETTINGS, dataclasses.asdict(settings)
    del made_from["google_bert_dir"]
    if not path.is_file():
        write_json(path, made_from)
        return
    kept = read_json_object(path, what="settings of data")
    for name, value in made_from.items():
        if kept.get(name) != value:
            raise UserError(
                f"--output_dir: {directory} has data of --{name}={kept.get(name)}, not {value}; "
                "choose another directory."
            )


def write_lines(shards: Sequence[str], path: Path) -> None:
    """One document per line, so that run_mlm's groups have no separators inside documents."""
    documents: list[list[str]] = [[]]
    for shard in shards:
        for line in Path(shard).read_text(encoding="utf-8").splitlines():
            if line.strip():
                documents[-1].append(line.strip())
            elif documents[-1]:
                documents.append([])
        documents.append([])
    lines = [" ".join(document) for document in documents if document]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _flags(flags: dict[str, object], **more: object) -> list[str]:
    return [as_flag(name, value) for name, value in {**flags, **more}.items()]


def _run(*command: str) -> None:
    done = subprocess.run([sys.executable, *command], check=False)
    if done.returncode:
        raise UserError(f"python {' '.join(command)} ended with status {done.returncode}.")


def _read_seconds(directory: Path) -> dict[str, float]:
    path = directory / _SECONDS
    return dict(read_json_object(path, what="seconds")) if path.is_file() else {}
