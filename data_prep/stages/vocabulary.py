"""The stage that trains a vocabulary."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import itertools
import re
import zlib
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from absl import flags

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import AT_LEAST_ONE, setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.tokenizer import TOKENIZER_CONFIG_NAME
from bert_tf.text.vocabulary import SPECIAL_TOKENS, write_vocab_file
from bert_tf.text.wordpiece import MAX_CHARS_PER_WORD
from bert_tf.util.console import report
from bert_tf.util.errors import UserError
from bert_tf.util.files import atomic_open, write_json
from bert_tf.util.options import Interval
from bert_tf.util.progress import Progress
from bert_tf.util.versions import UNICODE, maker
from data_prep.stages.settings import (
    CallSettings,
    FileSettings,
    LanguageSettings,
    output_parameters,
)
from data_prep.stages.stage import define_settings, find_text_files
from data_prep.text.documents import (
    Decoder,
    Part,
    cut_long_sentences,
    cut_position,
    read_parts,
    require_few_nulls,
)
from data_prep.text.languages import accents_tell_words_apart, validate_language
from data_prep.text.wikitext_corpus import WIKITEXT, MarkupSettings, without_unknown_words

STAGE = "vocabulary"
VERSION = 2  # goes up when the output of equal input changes
TOKENIZERS = ("wordpiece", "sentencepiece")
FILE_NAMES = {"wordpiece": "vocab.txt", "sentencepiece": "spm.model"}

_WORDS_AT_A_TIME = 10_000  # passed to the trainer
_SENTENCEPIECE_THREADS = 16  # fixed: its sums, and so its pieces, depend on this number
_SENTENCEPIECE_LINE_BYTES = 1 << 14  # longer lines are cut: the trainer leaves them out
_SHOWN_BYTES = 32


@dataclasses.dataclass(frozen=True)
class VocabularyRules(declared.Settings):
    """What the vocabulary is made of."""

    heading: ClassVar[str] = "Vocabulary"
    vocab_size: int = setting(
        ...,
        "Number of entries of the vocabulary to train, special ones and characters included.",
        kind=int,
        bounds=Interval(len(SPECIAL_TOKENS) + 1),
        advice=f"{len(SPECIAL_TOKENS)} are the special entries",
    )
    tokenizer: str = setting("wordpiece", "Kind of vocabulary to train.", choices=TOKENIZERS)
    do_lower_case: bool = setting(True, "Lower-case the text.")
    strip_accents: bool | None = setting(
        None,
        "WordPiece: strip the text's accents, all combining marks of any script. By default only "
        "if it is lower-cased and in a --language whose accents tell no words apart, such as en.",
        kind=bool,
    )
    character_coverage: float = setting(
        0.9999,
        "Share of the text whose characters become entries, the most frequent ones first; words "
        "with other characters are unknown.",
        bounds=Interval(0, 1, open_low=True),
    )
    min_frequency: int = setting(
        2,
        "WordPiece: minimum number of occurrences for a pair to become an entry.",
        bounds=AT_LEAST_ONE,
    )
    vocab_sample_megabytes: float = setting(
        100.0,
        "Maximum amount of text to train on, in 10^6 bytes; of a larger corpus, lines are sampled "
        "by hash.",
        bounds=Interval(0, open_low=True),
    )


@dataclasses.dataclass(frozen=True)
class Settings(CallSettings, LanguageSettings, MarkupSettings, VocabularyRules, FileSettings):
    """Settings of the stage; the text has one sentence per line."""

    def contradictions(self) -> Iterator[str]:
        """Raises UserError for what is not the code of a language."""
        if self.language is not None:
            validate_language(self.language)
        if self.strip_accents and self.tokenizer == "sentencepiece":
            yield "--strip_accents is for WordPiece; SentencePiece has rules of its own"
        yield from super().contradictions()

    @property
    def casing(self) -> dict[str, bool]:
        """What tokenizer_config.json says: by default, accents go exactly when lower-casing."""
        stripped = self.strip_accents
        if stripped is None:
            stripped = self.do_lower_case and not accents_tell_words_apart(self.language)
        is_usual = stripped == self.do_lower_case or self.tokenizer == "sentencepiece"
        others = {} if is_usual else {"strip_accents": stripped}
        return {"do_lower_case": self.do_lower_case, **others}


class SampleRule(NamedTuple):
    """Lines with a CRC-32 below ``threshold``, at most ``max_bytes`` in all."""

    threshold: int
    max_bytes: int

    def lines(self, content: bytes) -> list[bytes]:
        """The lines of a chunk that are in the sample."""
        lines = [
            line for line in content.split(b"\n") if line and zlib.crc32(line) < self.threshold
        ]
        ends = itertools.accumulate(len(line) + 1 for line in lines)
        return [line for line, end in zip(lines, ends) if end <= self.max_bytes]


class Sample(NamedTuple):
    """A worker's result for a chunk: words with their counts, or lines."""

    content: dict[str, int] | list[str]
    num_bytes: int
    num_input_bytes: int


def run(settings: Settings) -> Path:
    """Trains the vocabulary; returns the path of its file."""
    files = find_text_files(settings.input_file)
    parameters = output_parameters(settings, "markup", "language", "strip_accents")
    parameters |= settings.markup_parameters | settings.casing
    directory = run_stage(
        STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=files,
        made_by=_versions(settings),
        other_versions=settings.other_versions,
        build=functools.partial(_build, settings, files),
    )
    return directory / FILE_NAMES[settings.tokenizer]


def _versions(settings: Settings) -> dict[str, str]:
    if settings.tokenizer == "wordpiece":
        return maker(VERSION, UNICODE, "tokenizers")
    return maker(VERSION, "sentencepiece")


def _build(settings: Settings, files: list[Path], directory: Path) -> Built:
    total_bytes = sum(path.stat().st_size for path in files)
    max_bytes = int(settings.vocab_sample_megabytes * 1e6)
    # Aims slightly below the limit, so that the end of the corpus is rarely cut off.
    share = 1.0 if total_bytes <= max_bytes else 0.98 * max_bytes / total_bytes
    rule = SampleRule(int(share * (1 << 32)), max_bytes)
    kind = WordCounter if settings.tokenizer == "wordpiece" else LineSampler
    worker = functools.partial(kind, rule, settings.markup, **settings.casing)
    chunks = (chunk for path in files for chunk in read_lines(path))
    samples = settings.executor.map(worker, chunks, what=STAGE)
    counts = {"sample_bytes": 0}
    taken = _until_limit(samples, max_bytes, total_bytes, counts)
    path = directory / FILE_NAMES[settings.tokenizer]
    if settings.tokenizer == "wordpiece":
        words: collections.Counter[str] = collections.Counter()
        for sample in taken:
            words.update(sample.content)
        write_vocab_file(path, train_wordpiece(words, settings))
    else:
        lines = (line for sample in taken for line in sample.content)
        model = train_sentencepiece(lines, settings)
        with atomic_open(path, "wb") as file:
            file.write(model)
    write_json(directory / TOKENIZER_CONFIG_NAME, settings.casing)
    counts["entries"] = settings.vocab_size
    return Built({path.name: settings.vocab_size, TOKENIZER_CONFIG_NAME: None}, counts)


def _until_limit(
    samples: Generator[Sample, None, None], max_bytes: int, total_bytes: int, counts: dict[str, int]
) -> Iterator[Sample]:
    """Yields samples until the limit is reached; fills ``counts``."""
    progress = Progress(f"{STAGE}, reading", total_bytes / 1e6, "MB")
    for sample in samples:
        if counts["sample_bytes"] + sample.num_bytes > max_bytes:
            samples.close()
            break
        counts["sample_bytes"] += sample.num_bytes
        progress.advance(sample.num_input_bytes / 1e6)
        yield sample
    progress.finish()
    report(f"{STAGE}: training on {counts['sample_bytes'] / 1e6:,.1f} MB")


def read_lines(path: Path) -> Iterator[Part]:
    """A file in parts that end at line ends; a line of more than 2 MiB is cut after a word."""
    with open(path, "rb") as file:
        yield from read_parts(
            file, path, border=lambda content: content.rfind(b"\n") + 1, cut=cut_position
        )


class WordCounter:
    """Counts the words in the sample of a chunk."""

    def __init__(
        self,
        rule: SampleRule,
        markup: str,
        *,
        do_lower_case: bool,
        strip_accents: bool | None = None,
    ):
        self._rule = rule
        self._markup = markup
        self._basic = BasicTokenizer(lower_case=do_lower_case, strip_accents=strip_accents)

    def __call__(self, chunk: Part) -> Sample:
        """Counts words, in the order in which they first appear."""
        content = b"\n".join(self._rule.lines(chunk.content))
        words = self._basic.words(_text_of(content, chunk.name, self._markup))
        return Sample(dict(collections.Counter(words)), len(content), len(chunk.content))


class LineSampler:
    """Extracts the sampled lines of a chunk."""

    def __init__(self, rule: SampleRule, markup: str, *, do_lower_case: bool):
        self._rule = rule
        self._markup = markup
        self._do_lower_case = do_lower_case

    def __call__(self, chunk: Part) -> Sample:
        """Returns the lines that are in the sample; the trainer would leave out longer ones."""
        content = b"\n".join(self._rule.lines(chunk.content))
        text = _text_of(content, chunk.name, self._markup).replace("\0", "")
        if self._do_lower_case:
            text = text.lower()
        lines = [line for line in text.split("\n") if line.strip()]
        lines, _ = cut_long_sentences(lines, _SENTENCEPIECE_LINE_BYTES)
        return Sample(lines, len(content), len(chunk.content))


def _text_of(content: bytes, name: str, markup: str) -> str:
    require_few_nulls(content, name)

    def where(position: int) -> str:
        line = content[content.rfind(b"\n", 0, position) + 1 : position + 1]
        return f"a line of {name} with the bytes {line[-_SHOWN_BYTES:]!a}"

    text = Decoder()(content, where)
    return without_unknown_words(text) if markup == WIKITEXT else text


def train_wordpiece(words: dict[str, int], settings: Settings) -> list[str]:
    """The entries of a vocabulary of exactly ``settings.vocab_size``, the same in every run."""
    import tokenizers  # only this function needs it

    words = {word: count for word, count in words.items() if len(word) <= MAX_CHARS_PER_WORD}
    if not words:
        raise UserError(f"--input_file: {settings.input_file!r} has no words to train on.")
    alphabet = choose_alphabet(words, settings.character_coverage)
    known = set(alphabet)
    words = {word: count for word, count in words.items() if known.issuperset(word)}
    inner = sorted({char for word in words for char in word[1:]}, key=alphabet.index)
    fixed = [*SPECIAL_TOKENS, *alphabet, *(f"##{char}" for char in inner)]
    if len(fixed) > settings.vocab_size:
        raise UserError(
            f"--vocab_size={settings.vocab_size}: the special entries and the characters alone "
            f"take {len(fixed)} entries; give a larger size or a smaller --character_coverage."
        )
    # The trainer numbers characters in the order of a hash table that differs from run to run, and
    # breaks ties by number. With all characters given first, there is nothing left to number.
    trainer = tokenizers.trainers.WordPieceTrainer(
        vocab_size=settings.vocab_size,
        min_frequency=settings.min_frequency,
        special_tokens=fixed,
        show_progress=False,
    )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token="[UNK]"))
    tokenizer.train_from_iterator(_repeated(words), trainer)
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    entries = sorted(vocabulary, key=vocabulary.__getitem__)
    if len(entries) != settings.vocab_size:
        raise UserError(
            f"--vocab_size={settings.vocab_size}: the text is too small and yields only "
            f"{len(entries)} entries; give more text or a --vocab_size of at most {len(entries)}."
        )
    return entries


def choose_alphabet(words: dict[str, int], coverage: float) -> list[str]:
    """The most frequent characters that make up ``coverage`` of the text, in code point order."""
    counts: collections.Counter[str] = collections.Counter()
    for word, count in words.items():
        for char in word:
            counts[char] += count
    wanted = coverage * sum(counts.values())
    alphabet, covered = [], 0
    for char, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= wanted:
            break
        alphabet.append(char)
        covered += count
    return sorted(alphabet)


def _repeated(words: dict[str, int]) -> Iterator[list[str]]:
    """Repeats each word by its count, since the trainer takes text, not counts."""
    for word, count in words.items():
        for start in range(0, count, _WORDS_AT_A_TIME):
            yield [word] * min(_WORDS_AT_A_TIME, count - start)


def train_sentencepiece(lines: Iterable[str], settings: Settings) -> bytes:
    """A serialized unigram model of exactly ``settings.vocab_size`` pieces."""
    import sentencepiece  # only this function needs it

    lines = iter(lines)
    first = next(lines, None)
    if first is None:
        raise UserError(f"--input_file: {settings.input_file!r} has no words to train on.")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain([first], lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=settings.vocab_size,
            character_coverage=settings.character_coverage,
            max_sentence_length=_SENTENCEPIECE_LINE_BYTES,
            num_threads=_SENTENCEPIECE_THREADS,
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            minloglevel=2,
        )
    except RuntimeError as error:
        raise UserError(_explain_sentencepiece(str(error), settings.vocab_size)) from error
    return model.getvalue()


def _explain_sentencepiece(message: str, vocab_size: int) -> str:
    """A message for SentencePiece's error about a size that does not fit the text."""
    too_high = re.search(r"too high \(\d+\)\. Please set it to a value <= (\d+)", message)
    if too_high:
        return (
            f"--vocab_size={vocab_size}: the text is too small; give more text or a --vocab_size "
            f"of at most {too_high[1]}."
        )
    too_low = re.search(r"smaller than required_chars\D*\d+ vs (\d+)", message)
    if too_low:
        return (
            f"--vocab_size={vocab_size}: the special pieces and the characters alone take "
            f"{too_low[1]} entries; give a larger size or a smaller --character_coverage."
        )
    return f"SentencePiece could not train on this text: {message}"


def define_flags(values: flags.FlagValues | None = None) -> None:
    """Defines the flags of ``python -m data_prep.vocabulary``."""
    define_settings(
        Settings,
        values=values,
        input_file="Text, one sentence per line: comma-separated files, globs and directories.",
        output_dir="Directory for vocab.txt or spm.model.",
    )


def run_from_flags(values: flags.FlagValues) -> None:
    """Runs the stage with the settings that the flags give."""
    run(from_flags(Settings, values))
