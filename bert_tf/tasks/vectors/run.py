"""Computes the vectors of a file's texts on all ranks, and writes them in the order of the texts.

Until the output is complete, finished pieces are kept in a directory next to it, from which a later
start resumes. Batches are made within pieces, and pieces do not depend on the number of ranks, so
the output has the same bytes on any number of ranks and after any number of starts.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.checkpoint.sentence_modules import TEXTS_NAME
from bert_tf.durable.resumable import (
    PART_NAMES,
    ArrayParts,
    differences,
    earlier_identity,
    resumable_map,
    settle_identity,
)
from bert_tf.durable.sealed_json import read_sealed_json, write_sealed_json
from bert_tf.inference.checkpoints import Checkpoint, find_checkpoints
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.tasks.vectors.chosen import ChosenVectors, choose_vectors
from bert_tf.tasks.vectors.encoder import TextEncoder
from bert_tf.tasks.vectors.forms import Form, form_of, tokens_file_of
from bert_tf.tasks.vectors.settings import TOKENS, FeatureSettings
from bert_tf.tasks.vectors.texts import Texts, read_texts
from bert_tf.text.tokenizer import Tokenizer
from bert_tf.text.unknown_share import CountingTokenizer
from bert_tf.train.run import Run, begin
from bert_tf.tuning.arithmetic import Arithmetic
from bert_tf.util.digest import DIGEST_KEY, digest_of_file
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open
from bert_tf.util.progress import Progress

_WHAT = "computation of vectors"
_SAMPLED_TEXTS = 10_000
# Tokens per piece, which a killed run loses: some seconds of a large network on a CPU.
PIECE_TOKENS = 1 << 14
# The numbers of a piece's tokens, which are in memory at once.
_PIECE_BYTES = 1 << 27


def run(settings: FeatureSettings) -> None:
    """Writes the output file and its description; raises UserError for bad input."""
    directory = settings.run.output_dir
    with begin(settings.run, settings.runtime) as begun:
        _make(settings, begun)
        is_chief = begun.ranks.is_chief
    if is_chief:
        shutil.rmtree(directory, ignore_errors=True)


def _require_known(path: Path, texts: Texts, tokenizer: Tokenizer) -> None:
    """Says an unusual share of unknown tokens in a sample of texts, before hours of computing.

    Raises UserError if most of them are unknown.
    """
    counting = CountingTokenizer(tokenizer)
    sample = np.linspace(0, len(texts) - 1, min(len(texts), _SAMPLED_TEXTS)).astype(np.int64)
    for number in sample.tolist():
        for text in texts.parts(number):
            counting.encode(text)
    found = counting.take()
    found.require_known(str(path))
    found.say(str(path))


def description_file(output_file: Path) -> Path:
    """The file next to an output that says how it was made."""
    return output_file.with_name(f"{output_file.name}.json")


def _make(settings: FeatureSettings, run: Run) -> None:
    model = find_model(
        init_checkpoint=settings.run.start.init_checkpoint,
        bert_config_file=settings.bert_config_file,
        tokenizer_files=settings.tokenizer_files,
    )
    for note in model.notes:
        run.message(note)
    texts = read_texts(settings.input_file, flag="input_file", keep_empty=settings.keep_empty_lines)
    _require_known(settings.input_file, texts, model.tokenizer)
    chosen = _choose(settings, run, model)
    [checkpoint] = find_checkpoints(model.checkpoint, every_one=False)
    check_same_on_all_ranks(
        run.ranks,
        {
            "the texts of --input_file": texts.digest,
            f"the weights of {checkpoint.name}": checkpoint.weights_digest,
        },
    )
    directory, output = settings.run.output_dir, settings.output_file
    # What is complete is described next to it, what is not in the directory.
    described = _description(output) if output.exists() else {}
    earlier = described.get("settings")
    if not output.exists():
        earlier = earlier_identity(directory, what=_WHAT)
    arithmetic = run.keep_arithmetic(model.config, earlier if run.keeps_files else None)
    plan = _plan(settings, model, checkpoint, texts, arithmetic, chosen)
    if run.ranks.broadcast(run.keeps_files and _is_complete(output, described, plan)):
        run.message(f"{output} was computed before; delete it to compute it again")
        return
    if run.keeps_files:
        found = directory.glob(PART_NAMES)
        settle_identity(directory, plan, what=_WHAT, results="pieces", found=found)
    width = chosen.width(model.config)
    work = _Work(
        settings,
        run,
        model,
        texts,
        chosen,
        arithmetic,
        form=form_of(settings, chosen, width, model.tokenizer),
        lines=_lines(texts, chosen, width),
    )
    _make_output(work, plan)


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
    if chosen.modules is not None:
        run.message(f"vectors: {chosen} ({chosen.modules.path})")
    for note in chosen.notes:
        run.message(note)
    if is_default and chosen.max_seq_length != length:
        reason = "the model's max_position_embeddings"
        if chosen.modules is not None and chosen.modules.max_seq_length == chosen.max_seq_length:
            reason = f"that of {TEXTS_NAME}"
        run.decide("max_seq_length", chosen.max_seq_length, reason)
    return chosen


def _description(output: Path) -> Mapping[str, Any]:
    """How a complete output was made: ``settings``, ``counts`` and ``files``; {} if unknown."""
    path = description_file(output)
    if not path.is_file():
        return {}
    advice = f"delete {output} and this file"
    return read_sealed_json(path, what="description of vectors", advice=advice)


def _digests(output: Path, vectors: Path) -> dict[str, Any]:
    """The size and digest of the ``vectors``, which become the output, and of their tokens."""
    paths = {"vectors": vectors, "tokens": tokens_file_of(output)}
    return {
        what: {"bytes": path.stat().st_size, DIGEST_KEY: digest_of_file(path)}
        for what, path in paths.items()
        if path.is_file()
    }


def _is_complete(output: Path, described: Mapping[str, Any], plan: Mapping[str, Any]) -> bool:
    """Whether the output exists; UserError if it is not the one that the plan asks for."""
    if not output.exists():
        return False
    changed = differences(described["settings"], plan) if "settings" in described else ""
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


def _plan(
    settings: FeatureSettings,
    model: CompleteModel,
    checkpoint: Checkpoint,
    texts: Texts,
    arithmetic: Arithmetic,
    chosen: ChosenVectors,
) -> dict[str, Any]:
    """All that the output depends on."""
    return {
        "format": settings.output_type if settings.writes_array else "JSON lines",
        "--pooling": ",".join(chosen.pooling),
        "--layers": list(chosen.layers),
        "--normalize": chosen.normalize,
        "--max_seq_length": chosen.max_seq_length,
        **chosen.described(),
        "--batch_size": settings.batch_size,
        "--do_lower_case": model.tokenizer.lower_case,
        "--strip_accents": model.tokenizer.strips_accents,
        **arithmetic.entries(),
        "sha256 of the texts": texts.digest,
        "sha256 of the vocabulary": model.tokenizer.vocab_digest,
        "sha256 of the weights": checkpoint.weights_digest,
        "network": model.config.to_dict(),
    }


def _lines(texts: Texts, chosen: ChosenVectors, width: int) -> list[range]:
    """The numbers of the lines of each piece, for vectors of ``width`` components."""
    most_tokens = PIECE_TOKENS
    if not chosen.is_pooled:
        most_tokens = min(most_tokens, _PIECE_BYTES // (4 * width * len(chosen.layers)))
    return texts.pieces(most_tokens=most_tokens, max_seq_length=chosen.max_seq_length)


@dataclasses.dataclass(frozen=True)
class _Work:
    """All that vectors are computed from; ``lines`` are the numbers of each piece's lines."""

    settings: FeatureSettings
    run: Run
    model: CompleteModel
    texts: Texts
    chosen: ChosenVectors
    arithmetic: Arithmetic
    form: Form
    lines: Sequence[range]

    def results(self, pieces: Sequence[int]) -> Iterator[Mapping[str, Any]]:
        """The fields of ``forms.Encoded`` of each piece, and the number of ``cut_texts``."""
        ranks = self.run.ranks
        encoder = TextEncoder(
            self.model,
            self.chosen,
            batch_size=self.settings.batch_size,
            options=self.arithmetic.options,
            threads=ranks.threads,
            gpu=self.arithmetic.session.gpu,
        )
        total = ranks.world_size * sum(len(self.lines[piece]) for piece in pieces)
        progress = Progress("vectors", total, "texts") if ranks.is_chief else None
        for piece in pieces:
            numbers = self.lines[piece]
            sequences = [encoder.maker.sequence(self.texts.parts(number)) for number in numbers]
            vectors = encoder.vectors(sequences)
            _check_finite(vectors, numbers, self.settings)
            encoded = self.form.encode(numbers.start, sequences, vectors)
            yield {**encoded._asdict(), "cut_texts": sum(s.is_cut for s in sequences)}
            if progress is not None:
                progress.advance(len(numbers) * ranks.world_size)
        encoder.close()


def _make_output(work: _Work, plan: Mapping[str, Any]) -> None:
    """Computes the missing pieces on all ranks; rank 0 joins them."""
    settings, run = work.settings, work.run
    parts = ArrayParts(settings.run.output_dir, len(work.lines), plan)
    missing = run.ranks.broadcast(parts.missing() if run.keeps_files else None)
    if len(missing) < len(parts):
        made = len(parts) - len(missing)
        run.message(f"resumes; {made} of {len(parts)} pieces were made before")
    resumable_map(missing, work.results, parts, run.ranks)
    if not run.keeps_files:
        return
    counts = {"texts": len(work.texts), "cut_texts": 0, "rows": 0}
    for part in parts.read_all():
        for name in ("cut_texts", "rows"):
            counts[name] += int(part[name])
    output, joined = settings.output_file, settings.run.output_dir / "joined"
    paths = {"content": joined, "tokens": work.form.tokens_file}
    for (kind, path), header in zip(paths.items(), work.form.headers(counts["rows"])):
        if path is not None:
            with atomic_open(path, "wb", durable=True) as file:
                file.write(header)
                file.writelines(part[kind] for part in parts.read_all())
    description = {"settings": plan, "counts": counts, "files": _digests(output, joined)}
    write_sealed_json(description_file(output), description)
    os.replace(joined, output)
    run.message(
        f"{counts['cut_texts']:,} of {counts['texts']:,} texts were longer than "
        f"--max_seq_length={work.chosen.max_seq_length} and were cut"
    )
    run.message(f"the vectors are in {output} ({output.stat().st_size:,} bytes)")


def _check_finite(vectors: list[np.ndarray], numbers: range, settings: FeatureSettings) -> None:
    """Raises UserError for vectors that are not finite."""
    for number, values in zip(numbers, vectors):
        if not np.isfinite(values).all():
            raise UserError(
                f"--init_checkpoint={settings.run.start.init_checkpoint} gives line {number + 1} a "
                "vector that is not finite: its training diverged, or its weights are damaged; try "
                "--precision=fp32 or another checkpoint."
            )
