"""The readers of files that come from elsewhere, and what any content of a file may do to them.

A reader returns, or raises UserError with one short sentence. ``unit/test_foreign_readers.py``
gives each of them a few hundred damaged files; ``fuzz.py`` searches for worse ones.
"""

from __future__ import annotations

import bz2
import collections
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

from bert_tf.checkpoint.formats import open_source
from bert_tf.checkpoint.pytorch_files import PytorchFile, SafetensorsFile
from bert_tf.checkpoint.tensorflow_file import (
    TensorflowCheckpoint,
    resolve_checkpoint,
    write_checkpoint,
)
from bert_tf.compat import deepspeed
from bert_tf.config.policy_file import read_policy_file
from bert_tf.durable.manifest import FileEntry, Manifest, read_manifest
from bert_tf.model_directory.classes import classes_in_labels_file
from bert_tf.model_directory.directory import ModelDirectory
from bert_tf.records.framing import offsets_path
from bert_tf.records.info import inspect_records
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.lengths import keep_lengths, lengths_path, read_lengths
from bert_tf.records.tfrecord import RecordSet, TFRecordWriter
from bert_tf.tasks.classification.glue import GLUE_TASKS, read_glue
from bert_tf.tasks.question_answering.examples import read_squad
from bert_tf.tasks.question_answering.metrics import read_answers, read_null_odds
from bert_tf.tasks.tagging.files import read_tagged
from bert_tf.util.errors import UserError
from bert_tf.util.files import read_json_object
from data_prep.conversion import record_inputs
from data_prep.sources import source_formats
from data_prep.sources.containers import open_sources
from data_prep.sources.source_text import encode
from data_prep.text.documents import Decoder
from tests.helpers.archives import parquet_of, tar_of, zip_of
from tests.helpers.mediawiki import dump, page
from tests.helpers.small_vocabulary import load_tokenizer

_LONGEST_MESSAGE = 2000
_VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcde", "##a", "##b"]


class Reader(NamedTuple):
    """A reader of one kind of file.

    Attributes:
      name: of the file.
      seeds: good contents; writes what is needed beside the file to a directory.
      read: reads the file.
    """

    name: str
    seeds: Callable[[Path], list[bytes]]
    read: Callable[[Path], object]


def check(reader: Reader, path: Path, content: bytes) -> str | None:
    """Lets a reader read content; returns its message, or None.

    Raises AssertionError for a long message, and all other errors.
    """
    path.write_bytes(content)
    try:
        reader.read(path)
    except UserError as error:
        message = str(error).replace(str(path.parent), "")
        assert len(message) < _LONGEST_MESSAGE, f"{len(message)} characters: {message[:500]}"
        return message
    return None


def _pytorch_files(directory: Path) -> list[bytes]:
    values = {"a": torch.arange(12.0).reshape(3, 4), "b": torch.ones(5, dtype=torch.bfloat16)}
    found = []
    for zipped in (True, False):
        torch.save(values, directory / "saved", _use_new_zipfile_serialization=zipped)
        found.append((directory / "saved").read_bytes())
    return found


def _pickles(directory: Path) -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(_pytorch_files(directory)[0])) as archive:
        name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
        return [archive.read(name)]


def _read_arrays(file) -> None:
    for name in file.entries:
        file.read_float32(name)


def _read_pickle(path: Path) -> None:
    file = path.with_name("pytorch_model.bin")
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/data.pkl", path.read_bytes())
        archive.writestr("archive/data/0", bytes(48))
        archive.writestr("archive/data/1", bytes(10))
    _read_arrays(PytorchFile(file))


def _safetensors(directory: Path) -> list[bytes]:
    save_file({"a": torch.ones(3, 2), "b": torch.ones(2).half()}, directory / "saved")
    return [(directory / "saved").read_bytes()]


def _weight_index(directory: Path) -> list[bytes]:
    save_file({"pooler.dense.bias": torch.ones(2)}, directory / "model-1.safetensors")
    index = {"metadata": {"total_size": 8}, "weight_map": {}}
    index["weight_map"] = {"pooler.dense.bias": "model-1.safetensors"}
    return [json.dumps(index).encode()]


def _checkpoint_index(directory: Path) -> list[bytes]:
    values = {"bert/a": np.ones((3, 2), np.float32), "bert/b": np.ones(2, np.int64)}
    write_checkpoint(str(directory / "model.ckpt"), values)
    return [(directory / "model.ckpt.index").read_bytes()]


def _checkpoint_data(directory: Path) -> list[bytes]:
    _checkpoint_index(directory)
    return [(directory / "model.ckpt.data-00000-of-00001").read_bytes()]


def _read_checkpoint(path: Path) -> None:
    file = TensorflowCheckpoint(resolve_checkpoint(path))
    file.check_size()
    _read_arrays(file)


def _example() -> dict[str, np.ndarray]:
    return {
        "input_ids": np.array([2, 5, 3, 6, 3, 0, 0, 0]),
        "input_mask": np.array([1, 1, 1, 1, 1, 0, 0, 0]),
        "segment_ids": np.array([0, 0, 0, 1, 1, 0, 0, 0]),
        "masked_lm_positions": np.array([1, 0]),
        "masked_lm_ids": np.array([6, 0]),
        "masked_lm_weights": np.array([1.0, 0.0], np.float32),
        "next_sentence_labels": np.array([1]),
    }


def _write_records(path: Path, compression: str = "none") -> bytes:
    with TFRecordWriter(path, compression=compression) as writer:
        for _ in range(3):
            writer.write(PRETRAINING_MASKED.encode(_example()))
    return path.read_bytes()


def _records(directory: Path) -> list[bytes]:
    plain = _write_records(directory / "plain")
    return [
        plain,
        _write_records(directory / "blocks", "gzip"),
        gzip.compress(plain, mtime=0) + gzip.compress(plain, mtime=0),
    ]


def _read_records(path: Path) -> None:
    record_set = RecordSet([path], keep_offsets=False)
    record_set.read(range(len(record_set)))
    inspect_records(record_set)


def _offsets(directory: Path) -> list[bytes]:
    _write_records(directory / "a.tfrecord")
    return [offsets_path(directory / "a.tfrecord").read_bytes()]


def _lengths(directory: Path) -> list[bytes]:
    record_set = RecordSet([_plain_records(directory)])
    keep_lengths(record_set, record_set.files[0], np.array([5, 5, 5]))
    return [lengths_path(directory / "a.tfrecord").read_bytes()]


def _plain_records(directory: Path) -> Path:
    _write_records(directory / "a.tfrecord")
    return directory / "a.tfrecord"


def _read_lengths(path: Path) -> None:
    record_set = RecordSet([path.with_name("a.tfrecord")], keep_offsets=False)
    read_lengths(record_set, record_set.files[0])


_MANIFEST = Manifest(
    stage="shards",
    parameters={"seed": 1},
    inputs=(FileEntry("a.txt", 3, "0" * 64, None),),
    outputs=(FileEntry("b.txt", 3, "0" * 64, 1),),
    counts={"documents": 1},
)


def _read_convertible(path: Path) -> None:
    """As data_prep.convert_records does."""
    kind = record_inputs.kind_of([path])
    layout, _ = record_inputs.layout_of([path], kind, record_inputs.Sizes(16, 4))
    tokenizer = load_tokenizer(vocab_file=path.with_name("vocab.txt"))
    reader = record_inputs.BatchReader(kind, layout, tokenizer)
    for batch in record_inputs.read_batches([path], kind, layout):
        reader(batch)


def _convertible(directory: Path) -> list[bytes]:
    (directory / "vocab.txt").write_text("\n".join(_VOCABULARY))
    row = {name: value.tolist() for name, value in _example().items()}
    rows = "".join(json.dumps(row) + "\n" for _ in range(3)).encode()
    columns = {"A": ["a b", "c ##a"], "B": ["d", "e ##b a"], "is_random_next": [True, False]}
    places = io.BytesIO()
    np.save(places, np.array([1, 2], np.uint16))
    masks = {"masked_lm_positions": [places.getvalue()] * 2, "masked_lm_labels": ["a b"] * 2}
    found = [rows]
    for table in ({name: [value] * 2 for name, value in row.items()}, columns, columns | masks):
        parquet_of(directory / "made", table, use_dictionary=False, compression="none")
        found.append((directory / "made").read_bytes())
    return found


def _sources(*contents: bytes) -> Callable[[Path], list[bytes]]:
    return lambda _: list(contents)


def _extract(format: str) -> Callable[[Path], None]:
    def read(path: Path) -> None:
        """As data_prep.extract does."""
        reading = source_formats.Reading(format)
        counts: collections.Counter[str] = collections.Counter()
        for source in open_sources(path, counts):
            found = source_formats.recognise(source, reading, is_nested=False)
            opened = source_formats.Opened(source, path, reading, counts)
            for piece in source_formats.read_pieces(opened, found):
                encode(list(piece.documents(Decoder("error"))), counts)

    return read


def _parquet(directory: Path) -> list[bytes]:
    found = []
    for texts in (["One.\n\nTwo.", None], [["One.", "Two."], []]):
        parquet_of(directory / "made", {"text": texts}, compression="none")
        found.append((directory / "made").read_bytes())
    return found


_TEXT = "One sentence. Another ünïcode one.\n\nA second document.\n".encode()
_LINES = (
    b'{"id": 1, "text": "One.\\n\\nTwo \\u00e4."}\n{"text": ["Three.", "Four."]}\n{"text": null}\n'
)
_DUMP = dump(
    page(
        "A", "'''A''' is [[B|b]] {{c|d=[[e]]}} <ref>f</ref>.\n\n== G ==\n* h\n{| class=i\n| j\n|}"
    ),
    page("K", "#REDIRECT [[A]]", redirect=True),
    page("L", "talk &nbsp; <!-- m -->", namespace=1),
)
_WIKIEXTRACTOR = b'<doc id="1" url="u" title="T">\nT\n\nOne.\nTwo.\n\n</doc>\n'
_WARC = b"".join(
    b"WARC/1.0\r\nWARC-Type: %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n%b\r\n\r\n"
    % (kind, media, len(body), body)
    for kind, media, body in (
        (b"warcinfo", b"application/warc-fields", b"software: a"),
        (b"conversion", b"text/plain", "Ünïcode.\nTwo.".encode()),
        (
            *(b"response", b"application/http; msgtype=response"),
            b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; charset=utf-16\r\nTransfer-Encoding: "
            b"chunked\r\nContent-Encoding: gzip\r\n\r\n2a\r\n"
            + gzip.compress("One ä.\n\nTwo.".encode("utf-16"), mtime=0).ljust(42, b"\0")
            + b"\r\n0\r\n\r\n",
        ),
    )
)
_ARCHIVES = (
    bz2.compress(_TEXT) + bz2.compress(_LINES),
    gzip.compress(_TEXT, mtime=0) + gzip.compress(_LINES, mtime=0),
    lzma.compress(_TEXT) + bytes(4) + lzma.compress(_LINES),
    tar_of({"a.txt": _TEXT, "b.jsonl.xz": lzma.compress(_LINES), ".c": b"d"}),
    tar_of({"a.txt": _TEXT}, "w:gz"),
    zip_of({"a.txt": _TEXT, "b.jsonl": _LINES}),
)

_SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "T",
            "paragraphs": [
                {
                    "context": "Anna lives in Rome.",
                    "qas": [
                        {
                            "id": "1",
                            "question": "Who?",
                            "answers": [{"text": "Anna", "answer_start": 0}],
                            "is_impossible": False,
                        },
                        {"id": "2", "question": "Why?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}
_CONFIGS = (
    {"vocab_size": 30, "hidden_size": 8, "num_attention_heads": 2, "hidden_act": "gelu"},
    {
        "model_type": "bert",
        "architectures": ["BertForTokenClassification"],
        "vocab_size": 30,
        "hidden_size": 8,
        "num_attention_heads": 2,
        "intermediate_size": 9,
        "layer_norm_eps": 1e-12,
        "id2label": {"0": "O", "1": "B-X"},
        "position_embedding_type": "absolute",
    },
    {"model_type": "distilbert", "vocab_size": 30, "dim": 8, "n_heads": 2, "n_layers": 1},
)
_DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "Lamb", "params": {"lr": 0.01, "weight_decay": 0.01, "max_coeff": 0.3}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
    "gradient_clipping": 1.0,
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
    "bert_model_config": {"hidden_size": 128, "num_hidden_layers": 2},
    "training": {"learning_rate": 0.01, "warmup_proportion": 0.1, "total_training_steps": 100},
    "mixed_seq_training": {"128": {"num_epochs": 1, "learning_rate": 0.02}},
    "curriculum_learning": {
        "enabled": True,
        "curriculum_type": "seqlen",
        "min_difficulty": 8,
        "max_difficulty": 512,
        "schedule_type": "fixed_linear",
        "schedule_config": {"total_curriculum_step": 50, "difficulty_step": 8},
    },
}


def _read_deepspeed(path: Path) -> None:
    run = deepspeed.Conversion()
    run.add(read_json_object(path, what="--config"))
    deepspeed.convert(run).text()


def _json(*values: object) -> Callable[[Path], list[bytes]]:
    return lambda _: [json.dumps(value).encode() for value in values]


def _lines(*values: str) -> Callable[[Path], list[bytes]]:
    return lambda _: [value.encode() for value in values]


def _glue(task: str) -> Callable[[Path], object]:
    return lambda path: read_glue(GLUE_TASKS[task], path, flag="data_dir", needs_labels=True)


READERS = {
    "pytorch": Reader("a.bin", _pytorch_files, lambda path: _read_arrays(PytorchFile(path))),
    "pickle": Reader("data.pkl", _pickles, _read_pickle),
    "safetensors": Reader(
        "a.safetensors", _safetensors, lambda path: _read_arrays(SafetensorsFile(path))
    ),
    "weight_index": Reader("model.safetensors.index.json", _weight_index, open_source),
    "checkpoint_index": Reader("model.ckpt.index", _checkpoint_index, _read_checkpoint),
    "checkpoint_data": Reader("model.ckpt.data-00000-of-00001", _checkpoint_data, _read_checkpoint),
    "config": Reader("config.json", _json(*_CONFIGS), ModelDirectory.of),
    "tokenizer_config": Reader(
        "tokenizer_config.json",
        _json({"do_lower_case": True, "vocabulary_sha256": "0" * 64}),
        ModelDirectory.of,
    ),
    "labels": Reader(
        "labels.txt",
        _lines("O\nB-X\nI-X\n"),
        lambda path: classes_in_labels_file(path.parent),
    ),
    "vocabulary": Reader(
        "vocab.txt",
        _lines("\n".join(_VOCABULARY) + "\n"),
        lambda path: load_tokenizer(vocab_file=path).encode("ab c d"),
    ),
    "policy": Reader("policy.json", _json({"attention": "fp16", "loss": "fp32"}), read_policy_file),
    "deepspeed": Reader("deepspeed.json", _json(_DEEPSPEED), _read_deepspeed),
    "records": Reader("a.tfrecord", _records, _read_records),
    "offsets": Reader(
        "a.tfrecord.offsets", _offsets, lambda path: _read_records(path.with_suffix(""))
    ),
    "lengths": Reader("a.tfrecord.lengths", _lengths, _read_lengths),
    "manifest": Reader(
        "manifest.json", _json(_MANIFEST.to_dict()), lambda path: read_manifest(path.parent)
    ),
    "convertible": Reader("rows.jsonl", _convertible, _read_convertible),
    "squad": Reader(
        "squad.json",
        _json(_SQUAD),
        lambda path: read_squad(
            path, flag="train_file", version_2_with_negative=True, needs_answers=True
        ),
    ),
    "answers": Reader(
        "predictions.json", _json({"1": "a"}), lambda path: read_answers(str(path), flag="answers")
    ),
    "null_odds": Reader(
        "null_odds.json", _json({"1": 0.5}), lambda path: read_null_odds(str(path), flag="odds")
    ),
    "cola": Reader("train.tsv", _lines("a\t1\t\tOne.\nb\t0\t*\tTwo.\n"), _glue("cola")),
    "stsb": Reader(
        "train.tsv",
        _lines("index\tsentence1\tsentence2\tscore\n0\tOne.\tTwo.\t3.5\n"),
        _glue("sts-b"),
    ),
    "conll": Reader(
        "train.txt",
        _lines(
            "-DOCSTART- -X- -X- O\n\nAnna NNP B-NP B-PER\nsat VBD B-VP O\n",
            "Rome\tB-LOC\nsleeps\tO\n\nSo\tO\n",
        ),
        lambda path: read_tagged(path, flag="data_dir", needs_labels=True),
    ),
    "mediawiki": Reader("dump.xml", _sources(_DUMP), _extract("mediawiki")),
    "jsonl": Reader("a.jsonl", _sources(_LINES), _extract("jsonl")),
    "json": Reader(
        "a.json", _json([{"text": "One."}, {"text": ["Two."]}], {"text": "a"}), _extract("json")
    ),
    "text": Reader("a.txt", _sources(_TEXT, _TEXT.decode().encode("utf-16")), _extract("text")),
    "wikiextractor": Reader("wiki_00", _sources(_WIKIEXTRACTOR), _extract("wikiextractor")),
    "archives": Reader("archive", _sources(*_ARCHIVES), _extract("documents")),
    "any_source": Reader(
        "source",
        _sources(_DUMP, _LINES, _TEXT, _WIKIEXTRACTOR, _WARC, *_ARCHIVES[:3]),
        _extract("auto"),
    ),
    "parquet": Reader("a.parquet", _parquet, _extract("parquet")),
    "warc": Reader("a.warc", _sources(_WARC, gzip.compress(_WARC, mtime=0)), _extract("warc")),
}

_INSERTED = (
    *(b"\0", b"\xff", b"\n", b"\t", b'"', b"{", b"}", b"[", b"]", b",", b"<", b">", b"&"),
    *(b"[" * 5000, b'{"a":' * 5000, b"9" * 5000, b"1e999", b"-1", b"NaN", b"null", b"true"),
    *(
        b"\xed\xa0\x80",
        b'"\\ud800"',
        b"\x7f\xff\xff\xff",
        b"\xff" * 8,
        b"{{" * 999,
        b"\xe2\x80\xa8",
    ),
)


def mutations(seeds: Sequence[bytes], random: np.random.Generator) -> Iterator[bytes]:
    """Damaged files without end: bytes changed, left out, repeated, moved or put in."""
    while True:
        content = bytearray(seeds[random.integers(len(seeds))])
        for _ in range(random.choice([1, 1, 2, 8])):
            start, end = sorted(random.integers(len(content) + 1, size=2).tolist())
            end = min(end, start + int(2 ** random.integers(12)))
            kind = random.integers(6)
            if kind == 0 and start < len(content):
                content[start] = random.integers(256)
            elif kind == 1 and start < len(content):
                content[start] ^= 1 << random.integers(8)
            elif kind == 2:
                del content[start:end]
            elif kind == 3:
                content[start:start] = content[start:end]
            elif kind == 4:
                content[start:start] = _INSERTED[random.integers(len(_INSERTED))]
            else:
                del content[start if random.integers(4) == 0 else len(content) :]
        yield bytes(content)
