"""Computes the vectors of a file's texts on all ranks, and writes them in the order of the texts.

Until the output is complete, finished pieces are kept in a directory next to it. Batches are made
within pieces.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bert_tf.checkpoint.sentence_modules import TEXTS_NAME
from bert_tf.durable.resumable import (
    PART_NAMES,
    ArrayParts,
    Identity,
    differences,
    earlier_identity,
    settle_identity,
)
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.model_directory.complete import CompleteModel
from bert_tf.tasks.vectors import forms
from bert_tf.tasks.vectors.encoder import ChosenVectors, TextEncoder, choose_vectors
from bert_tf.tasks.vectors.settings import TOKENS, FeatureSettings
from bert_tf.tasks.vectors.texts import Texts, TokenSequence, read_texts
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.train.inference import Inference, agreed, open_model
from bert_tf.train.run import Run, begin
from bert_tf.util.digest import DIGEST_KEY, digest_of_file
from bert_tf.util.errors import UserError

_WHAT = "computation of vectors"
_SAMPLED_TEXTS = 10_000
# Tokens per piece, which a killed run loses: some seconds of a large network on a CPU.
PIECE_TOKENS = 1 << 14
# The numbers of a piece's tokens, which are in memory at once.
_PIECE_BYTES = 1 << 27


def run(settings: FeatureSettings) -> None:
    """Writes the output file and its description; raises UserError for bad input."""
    with begin(settings.run, settings.runtime) as begun:
        _make(settings, begun)
    if begun.ranks.is_chief:
        shutil.rmtree(settings.run.output_dir, ignore_errors=True)


def description_file(output_file: Path) -> Path:
    """The file next to an output that says how it was made."""
    return output_file.with_name(f"{output_file.name}.json")


def _make(settings: FeatureSettings, run: Run) -> None:
    model = open_model(settings, run)
    texts = read_texts(settings.input_file, flag="input_file", keep_empty=settings.keep_empty_lines)
    _require_known(settings.input_file, texts, model.tokenizer)
    chosen = _choose(settings, run, model)
    directory, output = settings.run.output_dir, settings.output_file
    # What is complete is described next to it, what is not in the directory.
    described = _description(output)
    earlier = described.get("settings")
    if not output.exists():
        earlier = earlier_identity(directory, what=_WHAT)
    inference = agreed(run, model, texts.digest, earlier=earlier)
    identity = {
        **_own_identity(settings, model, chosen),
        **inference.identity(with_weights=True),
    }
    if run.ranks.broadcast(run.keeps_files and _is_complete(output, described, identity)):
        run.message(f"{output} was computed before; delete it to compute it again")
        return
    if run.keeps_files:
        made = directory.glob(PART_NAMES)
        settle_identity(directory, identity, what=_WHAT, results="pieces", found=made)
    work = _Vectors(settings, inference, texts, chosen)
    # Earlier versions kept pieces of other names.
    parts = inference.compute(work, directory, {**identity, "pieces": "by name"})
    if run.keeps_files:
        _write(work, parts, identity)


def _require_known(path: Path, texts: Texts, tokenizer: Tokenizer) -> None:
    """Says an unusual share of unknown tokens in a sample of texts, before hours of computing.

    Raises UserError if most of them are unknown.
    """
    counting = CountingTokenizer(tokenizer)
    sample = np.linspace(0, len(texts) - 1, min(len(texts), _SAMPLED_TEXTS)).astype(np.int64)
    for number in sample.tolist():
        for text in texts.parts(number):
            counting.encode(text)
    unknown = counting.take()
    unknown.require_known(str(path))
    unknown.say(str(path))


def _choose(settings: FeatureSettings, run: Run, model: CompleteModel) -> ChosenVectors:
    """Which vectors; says whatever the model's directory or the network decides."""
    length = settings.max_seq_length
    is_default = "max_seq_length" in run.settings.command.defaulted
    chosen = choose_vectors(
        model,
        settings.vectors,
        pooling=TOKENS,
        max_seq_length=None if is_default else length,
        usual_length=length,
    )
    modules, used = chosen.modules, chosen.maker.max_seq_length
    if modules is not None:
        run.message(f"vectors: {chosen} ({modules.path})")
    for note in chosen.notes:
        run.message(note)
    if is_default and used != length:
        is_said = modules is not None and modules.max_seq_length == used
        reason = f"that of {TEXTS_NAME}" if is_said else "the model's max_position_embeddings"
        run.decide("max_seq_length", used, reason)
    return chosen


def _own_identity(
    settings: FeatureSettings, model: CompleteModel, chosen: ChosenVectors
) -> dict[str, Any]:
    maker, task = chosen.maker, chosen.task
    # Entries of what is not used are left out, as by versions that did not have it.
    further: dict[str, Any] = {}
    if maker.prompt:
        further["prompt"] = maker.prompt
        further["pools the prompt"] = not task.not_pooled
    if maker.lower_case:
        further["lower-cased before"] = True
    if task.dense:
        further["sha256 of the dense layers"] = [layer.digest for layer in task.dense]
    return {
        "format": settings.output_type if settings.writes_array else "JSON lines",
        "--pooling": ",".join(task.pooling),
        "--layers": list(task.layers),
        "--normalize": task.normalize,
        "--max_seq_length": maker.max_seq_length,
        **further,
        "--batch_size": settings.batch_size,
        "--do_lower_case": model.tokenizer.lower_case,
        "--strip_accents": model.tokenizer.strips_accents,
    }


def _description(output: Path) -> Mapping[str, Any]:
    """How a complete output was made: ``settings``, ``counts`` and ``files``; {} if unknown."""
    path = description_file(output)
    if not output.exists() or not path.is_file():
        return {}
    advice = f"delete {output} and this file"
    return read_sealed_json(path, what="description of vectors", advice=advice)


def _digests(output: Path, vectors: Path) -> dict[str, Any]:
    """The size and digest of the ``vectors``, which become the output, and of their tokens."""
    paths = {"vectors": vectors, "tokens": forms.tokens_file_of(output)}
    return {
        what: {"bytes": path.stat().st_size, DIGEST_KEY: digest_of_file(path)}
        for what, path in paths.items()
        if path.is_file()
    }


def _is_complete(output: Path, described: Mapping[str, Any], identity: Identity) -> bool:
    """Whether the output exists; UserError if it is not the one of this identity."""
    if not output.exists():
        return False
    changed = differences(described["settings"], identity) if "settings" in described else ""
    # Earlier versions described no files.
    written = described.get("files")
    if changed:
        reason = f" and was made otherwise ({changed})"
    elif not described:
        reason = ""
    elif written in (None, _digests(output, output)):
        return True
    else:
        reason = ", but is not the file that was written: it was cut, changed or replaced"
    raise UserError(f"--output_file: {output} exists{reason}; delete it, or choose another name.")


@dataclasses.dataclass(frozen=True)
class _Vectors:
    """The vectors of all texts; see ``train.inference.Computation``."""

    settings: FeatureSettings
    inference: Inference
    texts: Texts
    chosen: ChosenVectors

    name: ClassVar = "vectors"
    unit: ClassVar = "texts"

    @functools.cached_property
    def pieces(self) -> list[range]:
        """The numbers of the texts of each piece."""
        task, most_tokens = self.chosen.task, PIECE_TOKENS
        if not task.is_pooled:
            most_tokens = min(most_tokens, _PIECE_BYTES // (4 * task.width * len(task.layers)))
        length = self.chosen.maker.max_seq_length
        return self.texts.pieces(most_tokens=most_tokens, max_seq_length=length)

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of texts of each piece."""
        return list(map(len, self.pieces))

    def resumed(self, missing: Sequence[int]) -> str:
        """How many pieces were made before."""
        count = len(self.pieces)
        return f"resumes; {count - len(missing)} of {count} pieces were made before"

    def results(self, parts: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """Yields each piece in the form of the output, and the number of its ``cut_texts``."""
        how = {"batch_size": self.settings.batch_size, **self.inference.predicting}
        encoder = TextEncoder(self.inference.model, self.chosen, **how)
        with contextlib.closing(encoder):
            for part in parts:
                numbers = self.pieces[part]
                sequences = [encoder.maker.sequence(self.texts.parts(n)) for n in numbers]
                vectors = encoder.vectors(sequences)
                self._check_finite(vectors, numbers)
                yield {
                    **self._formed(numbers.start, sequences, vectors),
                    "rows": sum(map(len, vectors)) if self.has_tokens else len(vectors),
                    "cut_texts": sum(sequence.is_cut for sequence in sequences),
                }

    @property
    def has_tokens(self) -> bool:
        """Whether a row of the output is a token's."""
        return self.settings.writes_array and not self.chosen.task.is_pooled

    def _formed(
        self, first: int, sequences: Sequence[TokenSequence], vectors: Sequence[np.ndarray]
    ) -> dict[str, np.ndarray]:
        if self.settings.writes_array:
            return forms.as_arrays(first, sequences, vectors, dtype=self.settings.output_type)
        layers, tokenizer = self.chosen.task.layers, self.inference.model.tokenizer
        return forms.as_lines(first, sequences, vectors, layers=layers, tokenizer=tokenizer)

    def _check_finite(self, vectors: Sequence[np.ndarray], numbers: range) -> None:
        for number, values in zip(numbers, vectors):
            if not np.isfinite(values).all():
                raise UserError(
                    f"--init_checkpoint={self.settings.run.start.init_checkpoint} gives line "
                    f"{number + 1} a vector that is not finite: its training diverged, or its "
                    "weights are damaged; try --precision=fp32 or another checkpoint."
                )


def _write(work: _Vectors, parts: ArrayParts, identity: Identity) -> None:
    """Writes the output of all pieces, and its description."""
    settings, run, counts = work.settings, work.inference.run, {"texts": len(work.texts)}
    output, joined = settings.output_file, settings.run.output_dir / "joined"
    counted = [(int(part["cut_texts"]), int(part["rows"])) for part in parts.read_all()]
    counts["cut_texts"], counts["rows"] = map(sum, zip(*counted))
    paths = {forms.LINES: joined}
    if settings.writes_array:
        paths = {forms.VECTORS: joined}
        if work.has_tokens:
            paths[forms.TOKENS_OF_ROWS] = forms.tokens_file_of(output)
    forms.join(parts, paths, rows=counts["rows"])
    description = {"settings": identity, "counts": counts, "files": _digests(output, joined)}
    write_sealed_json(description_file(output), description)
    os.replace(joined, output)
    run.message(
        f"{counts['cut_texts']:,} of {counts['texts']:,} texts were longer than "
        f"--max_seq_length={work.chosen.maker.max_seq_length} and were cut"
    )
    run.message(f"the vectors are in {output} ({output.stat().st_size:,} bytes)")
