"""Inspects and checks a set of record files before training starts.

Files may come with a ``manifest.json`` from data_prep.create_pretraining_data, or without one, as
written by google's and NVIDIA's scripts. One record of each file is decoded; layout and sizes must
be the same in all files, except for the names of two features.

Symbols: N records, S positions.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bert_tf.durable.manifest import (
    MANIFEST_NAME,
    SPECIAL_NAMES,
    Manifest,
    VocabularyEntry,
    describe_vocabulary,
    find_manifest,
)
from bert_tf.records.layouts import (
    ALTERNATIVE_NAMES,
    PREDICTIONS,
    PRETRAINING_MASKED,
    PRETRAINING_UNMASKED,
    SEQUENCE,
    RecordSpec,
    decode_example,
    with_standard_names,
)
from bert_tf.records.tfrecord import RecordFile, RecordSet
from bert_tf.util.digest import digest_of_file, digest_of_json
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike

STAGE = "create_pretraining_data"
CONVERSION_STAGE = "convert_records"  # its vocabulary may be unknown

PAIR_TASKS = NEXT_SENTENCE, NO_PAIRS, SENTENCE_ORDER = "next_sentence", "none", "sentence_order"

# Fractions beyond which padding and unknown tokens are unusual.
MOST_PADDING = 0.5
MOST_UNKNOWN = 0.05

_LEAST_OF_A_LABEL = 0.05  # fraction of the sentence pairs
_SAMPLED_RECORDS = 64  # checked for ids outside the vocabulary, and for one-sided labels


@dataclasses.dataclass(frozen=True)
class RecordVocabulary:
    """The vocabulary that records were made with.

    Attributes:
      manifest_file: the manifest that names it.
      file: a copy stored with the records; None if there is none.
    """

    manifest_file: Path
    entry: VocabularyEntry
    file: Path | None


@dataclasses.dataclass(frozen=True)
class RecordInfo:
    """A description of a set of record files.

    Attributes:
      masked: whether the records store their masks; otherwise masks are drawn at training time.
      max_predictions: number of masks for which a record has room; None if masks are not stored.
      names: a feature's names in the files, for features whose name differs from the spec.
      first_file: the file with which the others agree.
      highest_id: largest token id in a sample of the records.
      one_sided_labels: what is wrong with the sentence pair labels in this sample; None if nothing
        is, or if there are no pairs.
      vocabulary: the vocabulary of all files; None without a manifest.
      data_digest: one digest for all files, derived from the manifests' digests and the files'
        names, sizes and record counts, without reading their contents.
    """

    masked: bool
    seq_length: int
    max_predictions: int | None
    num_records: int
    names: Mapping[str, tuple[str, ...]]
    first_file: Path
    highest_id: int
    one_sided_labels: str | None
    manifests: tuple[Manifest, ...]
    vocabulary: RecordVocabulary | None
    data_digest: str

    @property
    def spec(self) -> RecordSpec:
        """The layout of the records."""
        return PRETRAINING_MASKED if self.masked else PRETRAINING_UNMASKED

    @property
    def lengths(self) -> dict[str, int]:
        """The lengths of the features, by length key."""
        lengths, most = {SEQUENCE: self.seq_length}, self.max_predictions
        return lengths if most is None else {**lengths, PREDICTIONS: most}

    @property
    def manifest(self) -> Manifest | None:
        """The first manifest; None if there is none."""
        return self.manifests[0] if self.manifests else None

    @property
    def pair_tasks(self) -> tuple[str, ...]:
        """The tasks of the records' sentence pairs, a subset of ``PAIR_TASKS``.

        Records without a manifest are next-sentence pairs, like those of other programs.
        """
        found = {_pair_task(manifest.parameters) for manifest in self.manifests}
        return tuple(sorted(found)) or (NEXT_SENTENCE,)

    @property
    def next_sentence(self) -> bool:
        """Whether all records are labelled pairs, for either task."""
        return NO_PAIRS not in self.pair_tasks

    @property
    def special_ids(self) -> Mapping[str, int] | None:
        """Ids of the special tokens; None without a manifest."""
        return self.vocabulary.entry.special_ids if self.vocabulary else None

    @property
    def vocab_size(self) -> int | None:
        """Size of the vocabulary with which the records were made; None without a manifest."""
        return self.vocabulary.entry.size if self.vocabulary else None


def inspect_records(files: Sequence[PathLike] | RecordSet) -> RecordInfo:
    """Opens record files and describes them.

    Raises UserError if a file is damaged, has no pre-training records, differs from its manifest or
    does not match the other files; or if there are no records at all.
    """
    record_set = files if isinstance(files, RecordSet) else RecordSet(files)
    filled = [file for file in record_set.files if len(file)]
    if not filled:
        names = ", ".join(str(file.path) for file in record_set.files[:3])
        raise UserError(
            f"{names or 'the list of record files'} contains no records; make them again."
        )
    manifests = _manifests(record_set.files)
    examples = {file: _first_example(file, record_set) for file in filled}
    spec, lengths = _layout_of(filled[0], examples[filled[0]])
    for file in filled[1:]:
        _require_same_layout(file, filled[0], examples[file], (spec, lengths))
    masked = spec is PRETRAINING_MASKED
    if not masked and None in manifests.values():
        path = next(path for path, manifest in manifests.items() if manifest is None)
        raise UserError(
            f"{path} has no stored masks, and there is no {STAGE} manifest in its directory to "
            "look up the special token ids; keep manifest.json with the records."
        )
    found = tuple({m.digest: m for m in manifests.values() if m is not None}.values())
    vocabularies = {p: m.vocabulary for p, m in manifests.items() if m and m.vocabulary}
    if len({entry.digest for entry in vocabularies.values()}) > 1:
        raise UserError(
            f"the records in {filled[0].path.parent} and {filled[-1].path.parent} were made with "
            "different vocabularies; train on one of them."
        )
    if not masked:
        _require_special_ids(filled[0].path, vocabularies[filled[0].path])
    sample = _sample(record_set, spec)
    is_paired = all(_pair_task(manifest.parameters) != NO_PAIRS for manifest in found)
    labels = [int(example["next_sentence_labels"][0]) for example in sample]
    return RecordInfo(
        masked=masked,
        seq_length=lengths[SEQUENCE],
        max_predictions=lengths.get(PREDICTIONS),
        num_records=len(record_set),
        names=_names_in(examples.values()),
        first_file=filled[0].path,
        highest_id=_highest_id(sample),
        one_sided_labels=one_sided_labels(sum(labels), len(labels)) if is_paired else None,
        manifests=found,
        vocabulary=_find_vocabulary(vocabularies),
        data_digest=_digest(record_set.files, manifests),
    )


def one_sided_labels(label_1: int, total: int) -> str | None:
    """What is wrong with the labels of sentence pairs, and what to do; None if nothing is.

    In half of the pairs, the second sentence is random (label 1; Devlin et al. 2018, appendix A.2).
    If documents have only one sentence, no sentence has a successor, and all of them are random.
    ``label_1`` of ``total`` pairs, all or those in a sample, have label 1.
    """
    if not total or min(label_1, total - label_1) >= _LEAST_OF_A_LABEL * total:
        return None
    label = int(2 * label_1 > total)
    number = max(label_1, total - label_1)
    return (
        f"{'all' if number == total else f'{number / total:.1%} of the'} sentence pairs have label "
        f"{label}, so next-sentence prediction has nothing to learn; make the records from text "
        "with several sentences in a document, each on a line of its own and a blank line only "
        "between documents, or make them and train with --nsp=false"
    )


def original_ids(batch: Mapping[str, np.ndarray]) -> np.ndarray:
    """int64 [N, S]: the ids before masking."""
    ids = batch["input_ids"].astype(np.int64)
    if "masked_lm_ids" in batch:
        rows, places = np.nonzero(batch["masked_lm_weights"])
        ids[rows, batch["masked_lm_positions"][rows, places]] = batch["masked_lm_ids"][rows, places]
    return ids


def text_positions(
    ids: np.ndarray, input_mask: np.ndarray, special_ids: Mapping[str, int]
) -> np.ndarray:
    """bool [N, S]: tokens other than [CLS], [SEP] and padding, as far as their ids are known."""
    others = [special_ids[name] for name in ("pad", "cls", "sep") if name in special_ids]
    return (input_mask != 0) & ~np.isin(ids, others)


def unusual_shares(*, padding: float, unknown: float) -> Iterator[str]:
    """Yields a sentence for each unusual fraction.

    Args:
      padding: the fraction of positions that are padding; 0 if computation leaves it out.
      unknown: the fraction of text tokens that are unknown to the vocabulary.
    """
    if padding > MOST_PADDING:
        yield (
            f"{padding:.1%} of all positions are padding, on which computation is wasted; make the "
            "records with a smaller --max_seq_length, or with --nsp=false --pack_documents"
        )
    if unknown > MOST_UNKNOWN:
        yield (
            f"{unknown:.1%} of the tokens are unknown to the vocabulary; use one that was made for "
            "this text, and check its casing and --markup"
        )


def lengths_of(infos: Iterable[RecordInfo]) -> dict[str, int]:
    """The lengths of all records' features, by length key; the first records take precedence."""
    return {key: length for info in reversed([*infos]) for key, length in info.lengths.items()}


def check_records(
    info: RecordInfo, *, max_seq_length: int, max_predictions_per_seq: int, vocab_size: int
) -> None:
    """Checks records against the flags and the model; raises UserError if they do not match."""
    if info.seq_length != max_seq_length:
        raise UserError(
            f"--max_seq_length={max_seq_length}, but the records in {info.first_file} have "
            f"{info.seq_length}; give --max_seq_length={info.seq_length} or make them again."
        )
    if info.masked and info.max_predictions != max_predictions_per_seq:
        raise UserError(
            f"--max_predictions_per_seq={max_predictions_per_seq}, but the records in "
            f"{info.first_file} have {info.max_predictions}; give "
            f"--max_predictions_per_seq={info.max_predictions} or make them again."
        )
    if info.vocab_size is not None and info.vocab_size > vocab_size:
        raise UserError(
            f"the model's vocab_size is {vocab_size}, but the records in {info.first_file} were "
            f"made with a vocabulary of {info.vocab_size} entries; make them with the model's "
            "vocabulary, or use another model."
        )
    if info.highest_id >= vocab_size:
        raise UserError(
            f"the model's vocab_size is {vocab_size}, but the records in {info.first_file} contain "
            f"the id {info.highest_id}; make them with the model's vocabulary, or use another "
            "model."
        )


def _manifests(files: Sequence[RecordFile]) -> dict[Path, Manifest | None]:
    """The manifest that describes each file; None if there is none."""
    directories = dict.fromkeys(file.path.parent for file in files)
    by_directory = {directory: find_manifest(directory) for directory in directories}
    found: dict[Path, Manifest | None] = {}
    for file in files:
        manifest = by_directory[file.path.parent]
        found[file.path] = None
        if manifest is None or manifest.stage not in (STAGE, CONVERSION_STAGE):
            continue
        if manifest.vocabulary is None:
            if manifest.stage == CONVERSION_STAGE:
                continue
            raise UserError(
                f"{file.path.parent / MANIFEST_NAME} does not name the vocabulary of its records; "
                "make the data again."
            )
        entry = {entry.name: entry for entry in manifest.outputs}.get(file.path.name)
        if entry and (entry.bytes, entry.count) != (file.path.stat().st_size, len(file)):
            raise UserError(
                f"{file.path} is not the file that the manifest in its directory describes; make "
                "or copy it again."
            )
        found[file.path] = manifest if entry else None
    return found


def _pair_task(parameters: Mapping[str, Any]) -> str:
    if not parameters.get("nsp", True):
        return NO_PAIRS
    return SENTENCE_ORDER if parameters.get("sentence_order") else NEXT_SENTENCE


def _find_vocabulary(entries: Mapping[Path, VocabularyEntry]) -> RecordVocabulary | None:
    """The vocabulary in the first manifest.

    Raises UserError if the copy stored with it is different or has other special ids.
    """
    if not entries:
        return None
    path, entry = next(iter(entries.items()))
    manifest_file, copy = path.with_name(MANIFEST_NAME), path.with_name(entry.file_name)
    if not copy.is_file():
        return RecordVocabulary(manifest_file, entry, None)
    if digest_of_file(copy) != entry.digest:
        raise UserError(
            f"{copy} is not the vocabulary that {manifest_file} names; copy it again, or delete it "
            "and give --vocab_file."
        )
    if describe_vocabulary(entry.tokenizer_files(copy).load()) != entry:
        raise UserError(
            f"{manifest_file} differs in size or special ids from {copy}, the vocabulary "
            "that it names; copy both again, or make the data again."
        )
    return RecordVocabulary(manifest_file, entry, copy)


def _require_special_ids(path: Path, vocabulary: VocabularyEntry) -> None:
    for name in SPECIAL_NAMES:
        if vocabulary.special_ids.get(name) not in range(vocabulary.size):
            raise UserError(
                f"{path.with_name(MANIFEST_NAME)} lacks a valid id for {name!r}, which is "
                "needed to draw masks; make the data again."
            )


def _first_example(file: RecordFile, record_set: RecordSet) -> dict[str, np.ndarray]:
    """Decodes the first record of a file."""
    with _naming_file(file):
        return decode_example(record_set.read([record_set.index_of(file)])[0])


def _layout_of(
    file: RecordFile, example: Mapping[str, np.ndarray]
) -> tuple[RecordSpec, dict[str, int]]:
    """Layout and lengths of a file's first record."""
    example = with_standard_names(example)
    unmasked = PRETRAINING_UNMASKED.matches(example)
    spec = PRETRAINING_UNMASKED if unmasked else PRETRAINING_MASKED
    with _naming_file(file):
        return spec, spec.lengths_of(example)


@contextlib.contextmanager
def _naming_file(file: RecordFile) -> Iterator[None]:
    """Converts a ValueError about a record to a UserError that names the file."""
    try:
        yield
    except ValueError as error:
        raise UserError(
            f"{file.path} does not hold pre-training records ({error}); give files made by "
            f"data_prep.{STAGE}."
        ) from error


def _names_in(examples: Iterable[Mapping[str, np.ndarray]]) -> dict[str, tuple[str, ...]]:
    """The names of features that differ from the spec; see :class:`RecordInfo`."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for example in examples:
        for name, alternative in ALTERNATIVE_NAMES.items():
            found[name].add(name if name in example else alternative)
    return {name: tuple(sorted(names)) for name, names in found.items() if names != {name}}


def _require_same_layout(
    file: RecordFile,
    first: RecordFile,
    example: Mapping[str, np.ndarray],
    expected: tuple[RecordSpec, dict[str, int]],
) -> None:
    spec, lengths = _layout_of(file, example)
    if spec is not expected[0]:
        layouts = {PRETRAINING_MASKED: "with stored masks", PRETRAINING_UNMASKED: "without masks"}
        raise UserError(
            f"{first.path} contains records {layouts[expected[0]]}, but {file.path} records "
            f"{layouts[spec]}; train on one kind."
        )
    for key, length in expected[1].items():
        if lengths[key] != length:
            raise UserError(
                f"the records in {first.path} have {key} {length}, but those in {file.path} "
                f"{lengths[key]}; train on one kind."
            )


def _sample(record_set: RecordSet, spec: RecordSpec) -> list[dict[str, np.ndarray]]:
    """Decodes a sample of evenly spaced records."""
    count = min(_SAMPLED_RECORDS, len(record_set))
    sample = np.linspace(0, len(record_set) - 1, count).astype(np.int64)
    examples = []
    for index, record in zip(sample, record_set.read(sample)):
        try:
            examples.append(spec.decode(record))
        except ValueError as error:
            file, number = record_set.locate(int(index))
            raise UserError(
                f"record {number} of {file.path} differs from the others ({error}); make the file "
                "again."
            ) from error
    return examples


def _highest_id(examples: Iterable[Mapping[str, np.ndarray]]) -> int:
    names = ("input_ids", "masked_lm_ids")
    return max(
        int(example[name].max()) for example in examples for name in names if name in example
    )


def _digest(files: Sequence[RecordFile], manifests: Mapping[Path, Manifest | None]) -> str:
    described = []
    for file in files:
        manifest = manifests[file.path]
        origin = manifest.digest if manifest else None
        described.append([file.path.name, file.path.stat().st_size, len(file), origin])
    return digest_of_json(described)
