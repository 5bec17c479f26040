"""The stage that distributes documents over shards, some of them held out."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import heapq
import math
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import NOT_NEGATIVE, setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker
from data_prep.stages.settings import FileSettings, VersionSettings
from data_prep.stages.stage import define_settings, find_text_files
from data_prep.text.documents import read_documents

STAGE = "shards"
VERSION = 1  # goes up when the output of equal input changes

MAX_DOCUMENT_BYTES = 4 << 20  # larger ones, not from data_prep.sentences, are split at a line end
BUFFER_BYTES = 32 << 20
_HASH_RANGE = 1 << 64


@dataclasses.dataclass(frozen=True)
class ShardRules(declared.Settings):
    """How documents are distributed.

    The number of held-out shards follows from their share of the text and is at least one.
    """

    heading: ClassVar[str] = "Shards"
    heldout_fraction: float = setting(
        0.03,
        "Expected fraction of documents that are held out for evaluation, 0 for none.",
        bounds=Interval(0, 0.5),
    )
    num_shards: int = setting(
        0,
        "Number of training shards; 0 derives it from --shard_megabytes.",
        bounds=NOT_NEGATIVE,
        advice="0 derives it from --shard_megabytes",
    )
    shard_megabytes: float = setting(
        16.0, "Approximate size of a shard, in 10^6 bytes.", bounds=Interval(0, open_low=True)
    )


@dataclasses.dataclass(frozen=True)
class Settings(VersionSettings, ShardRules, FileSettings):
    """Settings of the stage."""


def run(settings: Settings) -> Path:
    """Splits the documents of the input files; returns the output directory."""
    files = find_text_files(settings.input_file)
    parameters = {
        "heldout_fraction": settings.heldout_fraction,
        "num_shards": settings.num_shards,
        "shard_megabytes": None if settings.num_shards else settings.shard_megabytes,
    }
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=files,
        made_by=maker(VERSION),
        other_versions=settings.other_versions,
        build=functools.partial(_build, settings, files),
    )


def _build(settings: Settings, files: list[Path], directory: Path) -> Built:
    threshold = int(settings.heldout_fraction * _HASH_RANGE)
    train, heldout, cuts = _split(settings, files, directory, threshold)
    if not (train.num_documents or heldout.num_documents):
        raise UserError(f"--input_file: {settings.input_file!r} contains only white space.")
    if settings.heldout_fraction and not (train.num_documents and heldout.num_documents):
        filled = train if train.num_documents else heldout
        if filled.lowest_hash == filled.highest_hash:
            raise UserError(
                f"--heldout_fraction={settings.heldout_fraction}: {settings.input_file!r} does not "
                "have two different documents to split; put blank lines between documents, or give "
                "--heldout_fraction=0."
            )
        threshold = filled.highest_hash if filled is heldout else filled.lowest_hash + 1
        report(
            f"{STAGE}: one side of the split would be empty, so it gets the document with the "
            "nearest hash"
        )
        train, heldout, cuts = _split(settings, files, directory, threshold)
    if settings.num_shards > train.num_documents:
        raise UserError(
            f"--num_shards={settings.num_shards}: there are only {train.num_documents} training "
            "documents; give no more shards than that."
        )
    counts = {
        "train_documents": train.num_documents,
        "train_bytes": train.num_bytes,
        "heldout_documents": heldout.num_documents,
        "heldout_bytes": heldout.num_bytes,
    }
    return Built({**train.close(), **heldout.close()}, {**counts, **cuts})


def _split(
    settings: Settings, files: list[Path], directory: Path, threshold: int
) -> tuple[_ShardWriter, _ShardWriter, collections.Counter[str]]:
    """Writes all documents, with those whose hash is below the threshold held out; counts cuts."""
    total_bytes = sum(path.stat().st_size for path in files)
    share = settings.heldout_fraction
    num_train = settings.num_shards
    if not num_train:
        num_train = math.ceil(total_bytes * (1 - share) / (settings.shard_megabytes * 1e6))
    train = _ShardWriter(directory, "train", num_train)
    heldout = _ShardWriter(directory, "heldout", max(1, round(num_train * share / (1 - share))))
    progress = Progress(STAGE, total_bytes / 1e6, "MB")
    cuts: collections.Counter[str] = collections.Counter()
    for path in files:
        for document in read_normalized(path, cuts):
            digest = hash_of_document(document)
            (heldout if digest < threshold else train).write(document, digest)
            progress.advance(len(document) / 1e6)
    progress.finish()
    return train, heldout, cuts


def read_normalized(path: Path, cuts: collections.Counter[str]) -> Iterator[bytes]:
    """The documents of a file, with stripped lines that each end in a line feed; counts cuts."""
    for document in read_documents(path, max_bytes=MAX_DOCUMENT_BYTES, cuts=cuts):
        lines = document.text.split(b"\n")
        yield b"".join(line.strip() + b"\n" for line in lines if line)


def hash_of_document(document: bytes) -> int:
    """A number below 2^64 that depends only on the document."""
    return int.from_bytes(hashlib.blake2b(document, digest_size=8).digest(), "big")


class _ShardWriter:
    """Distributes documents over the shards of one kind.

    Shards are opened only to append buffered documents, so there may be any number of them.
    """

    def __init__(self, directory: Path, kind: str, num_shards: int):
        self._paths = [directory / f"{kind}-{index:05d}.txt" for index in range(num_shards)]
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._documents = [0] * num_shards
        self._sizes = [(0, index) for index in range(num_shards)]  # a heap
        self._buffers: list[list[bytes]] = [[] for _ in range(num_shards)]
        self._buffered_bytes = 0
        self.num_documents = 0
        self.num_bytes = 0
        self.lowest_hash = _HASH_RANGE
        self.highest_hash = -1

    def write(self, document: bytes, digest: int) -> None:
        """Adds a document to the smallest shard."""
        size, index = self._sizes[0]
        heapq.heapreplace(self._sizes, (size + len(document) + 1, index))
        self._buffers[index] += [document, b"\n"]
        self._documents[index] += 1
        self._buffered_bytes += len(document) + 1
        self.num_documents += 1
        self.num_bytes += len(document) + 1
        self.lowest_hash = min(self.lowest_hash, digest)
        self.highest_hash = max(self.highest_hash, digest)
        if self._buffered_bytes >= BUFFER_BYTES:
            self._flush()

    def close(self) -> dict[str, int]:
        """Writes the buffers; returns the number of documents of each non-empty shard."""
        self._flush()
        counts = {path.name: count for path, count in zip(self._paths, self._documents)}
        return {name: count for name, count in counts.items() if count}

    def _flush(self) -> None:
        for path, buffer in zip(self._paths, self._buffers):
            if buffer:
                with open(path, "ab") as file:
                    file.writelines(buffer)
                buffer.clear()
        self._buffered_bytes = 0


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.shards``."""
    define_settings(
        Settings,
        values=values,
        input_file="Text, one sentence per line: comma-separated files, globs and directories.",
        output_dir="Directory for the shards.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(from_flags(Settings, values))
