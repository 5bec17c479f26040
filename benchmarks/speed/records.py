"""Raw text to records of pre-training, here and elsewhere."""

from __future__ import annotations

import contextlib
import io
import itertools
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.speed.load import ForeignLoad
from bert_tf.text.tokenizer_files import TokenizerFiles
from data_prep import create_pretraining_data

_LINES_AT_ONCE = 10_000  # for tokenizers


def make(request: Mapping[str, Any]) -> dict[str, Any]:
    """Runs the program of the settings once.

    Returns ``seconds``, ``megabytes`` (10**6 bytes of text) and ``foreign_share``.
    """
    program: Callable[[Mapping[str, Any], Path], None] = _PROGRAMS[request["settings"]["program"]]
    with tempfile.TemporaryDirectory() as directory:
        start, load = time.perf_counter(), ForeignLoad()
        with contextlib.redirect_stderr(io.StringIO()):
            program(request, Path(directory))
        seconds = time.perf_counter() - start
    megabytes = Path(request["input_file"]).stat().st_size / 1e6
    return {"seconds": seconds, "megabytes": megabytes, "foreign_share": load.share()}


def _ours(request: Mapping[str, Any], directory: Path) -> None:
    """The stage with its checksums and manifest."""
    settings = create_pretraining_data.Settings(
        output_dir=str(directory / "records"),
        num_output_files=1,
        num_workers=request["settings"]["num_workers"] or request["threads"],
        tokenizer_files=TokenizerFiles(
            Path(request["vocab_file"]), do_lower_case=request["do_lower_case"]
        ),
        **{name: request[name] for name in ("input_file", "max_seq_length", "dupe_factor")},
    )
    create_pretraining_data.run(settings)


def _google(request: Mapping[str, Any], directory: Path) -> None:
    """Its script with its defaults."""
    names = ("input_file", "vocab_file", "max_seq_length", "dupe_factor", "do_lower_case")
    given = {name: request[name] for name in names}
    run_google(request["settings"], {**given, "output_file": directory / "records.tfrecord"})


def run_google(settings: Mapping[str, Any], flags: Mapping[str, object]) -> None:
    """The main function of google-research/bert's create_pretraining_data, on its one core."""
    from benchmarks.speed.google_bert import google_module

    program = google_module(Path(settings["google_bert_dir"]), "create_pretraining_data")
    program.FLAGS(["create_pretraining_data", *(f"--{n}={v}" for n, v in flags.items())])
    program.main(None)


def _tokenizers(request: Mapping[str, Any], directory: Path) -> None:
    """Hugging Face's tokenizers over the lines: a part of the work, nothing is written."""
    del directory
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(request["vocab_file"], lowercase=request["do_lower_case"])
    with open(request["input_file"], encoding="utf-8") as file:
        while lines := list(itertools.islice(file, _LINES_AT_ONCE)):
            tokenizer.encode_batch(lines, add_special_tokens=False)


_PROGRAMS = {"ours": _ours, "google-bert": _google, "tokenizers": _tokenizers}
