"""Raw text to records of pre-training, and SQuAD files to features, here and elsewhere."""

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
from bert_tf.squad.examples import SquadFile, read_squad
from bert_tf.squad.features import build_features
from bert_tf.squad.windows import WindowSettings
from bert_tf.text.tokenizer_files import TokenizerFiles
from data_prep import create_pretraining_data

_LINES_AT_ONCE = 10_000  # for tokenizers
_TEXTS_AT_ONCE = 1000  # for transformers; what its datasets library hands over by default


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
        tokenizer_files=_tokenizer_files(request),
        **{name: request[name] for name in ("input_file", "max_seq_length", "dupe_factor")},
    )
    create_pretraining_data.run(settings)


def _google(request: Mapping[str, Any], directory: Path) -> None:
    """The main function of its script, on its one core."""
    from benchmarks.speed.google_bert import google_module

    program = google_module(Path(request["settings"]["google_bert_dir"]), "create_pretraining_data")
    names = ("input_file", "vocab_file", "max_seq_length", "dupe_factor", "do_lower_case")
    given = {name: request[name] for name in names}
    given["output_file"] = directory / "records.tfrecord"
    program.FLAGS(["create_pretraining_data", *(f"--{n}={v}" for n, v in given.items())])
    program.main(None)


def _tokenizer_files(request: Mapping[str, Any]) -> TokenizerFiles:
    return TokenizerFiles(Path(request["vocab_file"]), do_lower_case=request["do_lower_case"])


def _tokenizers(request: Mapping[str, Any], directory: Path) -> None:
    """Hugging Face's tokenizers over the lines: a part of the work, nothing is written."""
    del directory
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(request["vocab_file"], lowercase=request["do_lower_case"])
    with open(request["input_file"], encoding="utf-8") as file:
        while lines := list(itertools.islice(file, _LINES_AT_ONCE)):
            tokenizer.encode_batch(lines, add_special_tokens=False)


_PROGRAMS = {"ours": _ours, "google-bert": _google, "tokenizers": _tokenizers}


def make_features(request: Mapping[str, Any]) -> dict[str, Any]:
    """Makes training features of a SQuAD file once: ``features``, ``seconds``, foreign_share."""
    programs = {
        "ours": _our_features,
        "google-bert": _google_features,
        "transformers": _transformers_features,
    }
    load = ForeignLoad()
    count, seconds = programs[request["settings"]["program"]](request)
    return {"features": count, "seconds": seconds, "foreign_share": load.share()}


def _read(request: Mapping[str, Any]) -> SquadFile:
    return read_squad(
        request["data_file"],
        flag="data_file",
        version_2_with_negative=request["version_2_with_negative"],
        needs_answers=True,
    )


def _our_features(request: Mapping[str, Any]) -> tuple[int, float]:
    """The whole stage, in this process."""
    squad = _read(request)
    with tempfile.TemporaryDirectory() as directory, contextlib.redirect_stderr(io.StringIO()):
        start = time.perf_counter()
        features = build_features(
            squad,
            directory,
            tokenizer_files=_tokenizer_files(request),
            windows=WindowSettings(**request["windows"]),
            training=True,
            num_workers=1,
        )
        return len(features.lengths), time.perf_counter() - start


def _google_features(request: Mapping[str, Any]) -> tuple[int, float]:
    from benchmarks.speed.google_bert import google_module

    directory = Path(request["settings"]["google_bert_dir"])
    run_squad = google_module(directory, "run_squad")
    tokenization = google_module(directory, "tokenization")
    is_version_2 = str(request["version_2_with_negative"]).lower()
    run_squad.FLAGS(["run_squad", f"--version_2_with_negative={is_version_2}"])
    examples = run_squad.read_squad_examples(request["data_file"], is_training=True)
    tokenizer = tokenization.FullTokenizer(
        request["vocab_file"], do_lower_case=request["do_lower_case"]
    )
    made: list[object] = []
    start = time.perf_counter()
    run_squad.convert_examples_to_features(
        examples=examples,
        tokenizer=tokenizer,
        **request["windows"],
        is_training=True,
        output_fn=made.append,
    )
    return len(made), time.perf_counter() - start


def _transformers_features(request: Mapping[str, Any]) -> tuple[int, float]:
    """The fast tokenizer on questions with their contexts, as in the library's example."""
    from transformers import BertTokenizerFast

    examples, windows = _read(request).examples, request["windows"]
    tokenizer = BertTokenizerFast(request["vocab_file"], do_lower_case=request["do_lower_case"])
    made = 0
    start = time.perf_counter()
    for first in range(0, len(examples), _TEXTS_AT_ONCE):
        part = examples[first : first + _TEXTS_AT_ONCE]
        cut = tokenizer(
            [example.question.lstrip() for example in part],
            [example.context for example in part],
            truncation="only_second",
            max_length=windows["max_seq_length"],
            stride=windows["doc_stride"],
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            padding="max_length",
        )
        made += len(cut["input_ids"])
    return made, time.perf_counter() - start
