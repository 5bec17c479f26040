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

from absl import flags

from bert_tf.cli.flags import Number, flag_group
from bert_tf.stages.stage import REMAKE, Built, run_stage
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker
from data_prep.stages.stage import (
    Sizes,
    define_common_flags,
    find_text_files,
    settings_from_flags,
)
from data_prep.text.blocks import read_documents

STAGE = "shards"
VERSION = 1  # goes up when the output of equal input changes
DEFAULT_HELDOUT_FRACTION = 0.03
DEFAULT_SHARD_MEGABYTES = 16.0

MAX_DOCUMENT_BYTES = 4 << 20  # larger ones, not from data_prep.sentences, are split at a line end
_SIZES = Sizes(block=32 << 20)
_HASH_RANGE = 1 << 64


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the stage.

    Attributes:
      input_file: comma-separated files, globs and directories.
      output_dir: output directory for the shards.
      heldout_fraction: expected fraction of documents that are held out, at most 0.5.
      num_shards: number of training shards; 0 derives it from shard_megabytes. The number of
        held-out shards follows from their share of the text and is at least one.
      shard_megabytes: approximate size of a shard, 10^6 bytes.
      other_versions: "remake" or "keep", what becomes of output that other versions made.
    """

    input_file: str
    output_dir: str
    heldout_fraction: float = DEFAULT_HELDOUT_FRACTION
    num_shards: int = 0
    shard_megabytes: float = DEFAULT_SHARD_MEGABYTES
    other_versions: str = REMAKE


def validate(settings: Settings) -> None:
    """Raises UserError for values that cannot be."""
    if not 0 <= settings.heldout_fraction <= 0.5:
        raise UserError(
            f"--heldout_fraction={settings.heldout_fraction}: give a share from 0 to 0.5."
        )
    if settings.num_shards < 0:
        raise UserError(f"--num_shards={settings.num_shards}: give a positive number, or 0.")
    if not settings.shard_megabytes > 0:
        raise UserError(f"--shard_megabytes={settings.shard_megabytes}: give a positive size.")


def run(settings: Settings, *, sizes: Sizes = _SIZES) -> Path:
    """Splits the documents of the input files; returns the output directory.

    A block of documents is collected before they are appended to their shards.
    """
    validate(settings)
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
        build=functools.partial(_build, settings, files, sizes),
    )


def _build(settings: Settings, files: list[Path], sizes: Sizes, directory: Path) -> Built:
    threshold = int(settings.heldout_fraction * _HASH_RANGE)
    split = functools.partial(_split, settings, files, sizes, directory)
    train, heldout, cuts = split(threshold)
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
        train, heldout, cuts = split(threshold)
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
    settings: Settings, files: list[Path], sizes: Sizes, directory: Path, threshold: int
) -> tuple[_ShardWriter, _ShardWriter, collections.Counter[str]]:
    """Writes all documents, with those whose hash is below the threshold held out; counts cuts."""
    total_bytes = sum(path.stat().st_size for path in files)
    share = settings.heldout_fraction
    num_train = settings.num_shards
    if not num_train:
        num_train = math.ceil(total_bytes * (1 - share) / (settings.shard_megabytes * 1e6))
    num_heldout = max(1, round(num_train * share / (1 - share)))
    train = _ShardWriter(directory, "train", num_train, sizes.block)
    heldout = _ShardWriter(directory, "heldout", num_heldout, sizes.block)
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

    def __init__(self, directory: Path, kind: str, num_shards: int, most_buffered: int):
        self._paths = [directory / f"{kind}-{index:05d}.txt" for index in range(num_shards)]
        for path in self._paths:
            path.unlink(missing_ok=True)
        self._documents = [0] * num_shards
        self._sizes = [(0, index) for index in range(num_shards)]  # a heap
        self._buffers: list[list[bytes]] = [[] for _ in range(num_shards)]
        self._buffered_bytes = 0
        self._most_buffered = most_buffered
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
        if self._buffered_bytes >= self._most_buffered:
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


@flag_group("Shards")
def define_parameter_flags() -> None:
    """Defines the flags of this stage only."""
    flags.DEFINE(
        Number(),
        "heldout_fraction",
        DEFAULT_HELDOUT_FRACTION,
        "Fraction of documents that are held out for evaluation, 0 for none.",
    )
    flags.DEFINE_integer(
        "num_shards", 0, "Number of training shards; 0 derives it from --shard_megabytes."
    )
    flags.DEFINE(
        Number(), "shard_megabytes", DEFAULT_SHARD_MEGABYTES, "Approximate size of a shard."
    )


@flag_group("Input and output")
def define_flags() -> None:
    """Defines the flags of ``python -m data_prep.shards``."""
    define_common_flags(
        input_help="Text, one sentence per line: comma-separated files, globs and directories.",
        output_help="Directory for the shards.",
    )
    define_parameter_flags()


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(settings_from_flags(Settings, values))
