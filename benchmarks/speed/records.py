"""Converts raw text to pre-training records, here and elsewhere, and upper bounds for the speed."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.load import ForeignLoad
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.files import expand_input_files
from data_prep.stages import create_pretraining_data, sentences

_LINES_AT_ONCE = 10_000  # for tokenizers


def make(request: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the program in the settings once.

    Returns ``seconds``, ``megabytes`` (10**6 bytes of text) and ``foreign_share``.
    """
    program: Callable[[Mapping[str, Any], Path], None] = _PROGRAMS[request["settings"]["program"]]
    with tempfile.TemporaryDirectory() as directory:
        if program in (_our_sentences, _splitter):
            request = {**request, "input_file": _without_line_ends(request, Path(directory))}
        megabytes = sum(path.stat().st_size for path in _texts(request)) / 1e6
        start, load = time.perf_counter(), ForeignLoad()
        with contextlib.redirect_stderr(io.StringIO()):
            program(request, Path(directory))
        seconds = time.perf_counter() - start
    return {"seconds": seconds, "megabytes": megabytes, "foreign_share": load.share()}


def _texts(request: Mapping[str, Any]) -> list[Path]:
    return expand_input_files(request["input_file"], flag="input_file")


def _lines(request: Mapping[str, Any]) -> Iterator[str]:
    for path in _texts(request):
        with open(path, encoding="utf-8") as file:
            yield from file


def _ours(request: Mapping[str, Any], directory: Path) -> None:
    """The stage with checksums and manifest, with one core per process."""
    num_workers = request["settings"]["num_workers"] or request["threads"]
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:num_workers])
    settings = create_pretraining_data.Settings(
        output_dir=str(directory / "records"),
        num_workers=num_workers,
        tokenizer_files=_tokenizer_files(request),
        **{name: request[name] for name in ("input_file", "max_seq_length", "dupe_factor")},
    )
    create_pretraining_data.run(settings)


def _tokenizer_files(request: Mapping[str, Any]) -> TokenizerFiles:
    return TokenizerFiles(Path(request["vocab_file"]), do_lower_case=request["do_lower_case"])


def _our_tokenizer(request: Mapping[str, Any], directory: Path) -> None:
    """Our tokenizer over the lines, on one core: a part of the work, without output."""
    del directory
    encode = _tokenizer_files(request).load().encode
    for line in _lines(request):
        encode(line)


def _our_sentences(request: Mapping[str, Any], directory: Path) -> None:
    """The stage that splits sentences, on one core."""
    sentences.run(
        sentences.Settings(request["input_file"], str(directory / "sentences"), num_workers=1)
    )


def _splitter(request: Mapping[str, Any], directory: Path) -> None:
    """The library that splits sentences, over the paragraphs on one core, without output."""
    del directory
    import sentencex

    for line in _lines(request):
        sentencex.segment("en", line)


def _without_line_ends(request: Mapping[str, Any], directory: Path) -> str:
    """A copy of the text in which each document is one paragraph."""
    path = directory / "paragraphs.txt"
    text = "".join(_lines(request))
    paragraphs = (" ".join(document.split("\n")) for document in text.split("\n\n"))
    path.write_text("\n\n".join(paragraphs), encoding="utf-8")
    return str(path)


def _google(request: Mapping[str, Any], directory: Path) -> None:
    """google's script with its defaults."""
    names = ("input_file", "vocab_file", "max_seq_length", "dupe_factor", "do_lower_case")
    given = {name: request[name] for name in names}
    run_google(request["settings"], {**given, "output_file": directory / "records.tfrecord"})


def run_google(settings: Mapping[str, Any], flags: Mapping[str, object]) -> None:
    """The main function of google-research/bert's create_pretraining_data, which uses one core."""
    from benchmarks.speed.google_bert import google_module

    program = google_module(Path(settings["google_bert_dir"]), "create_pretraining_data")
    program.FLAGS(["create_pretraining_data", *(f"--{n}={v}" for n, v in flags.items())])
    program.main(None)


def _tokenizers(request: Mapping[str, Any], directory: Path) -> None:
    """Hugging Face's tokenizers over the lines: a part of the work, without output."""
    del directory
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(request["vocab_file"], lowercase=request["do_lower_case"])
    all_lines = _lines(request)
    while lines := list(itertools.islice(all_lines, _LINES_AT_ONCE)):
        tokenizer.encode_batch(lines, add_special_tokens=False)


_PROGRAMS = {
    "ours": _ours,
    "our tokenizer": _our_tokenizer,
    "our sentences": _our_sentences,
    "splitter": _splitter,
    "google-bert": _google,
    "tokenizers": _tokenizers,
}
