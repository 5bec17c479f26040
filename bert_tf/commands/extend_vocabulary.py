"""Adds the words of a domain, which a vocabulary breaks into pieces, to a model.

    python -m bert_tf.commands.extend_vocabulary --init_checkpoint=bert-base-uncased \\
        --text=domain/*.txt --add=500 --output_dir=with_words

New words take the places of [unused] entries first. Each begins as the mean of its pieces, so
continue the model's pre-training on records that are made with the new vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from absl import flags

from bert_tf.checkpoint.formats import ORIGINS, Source, open_source
from bert_tf.checkpoint.names import DISCRIMINATOR, heads_of
from bert_tf.cli.flags import flag_group, run_command
from bert_tf.commands.convert import check_new_directory, convert, without_flags
from bert_tf.model.config import CONFIG_NAME
from bert_tf.model_directory.complete import CompleteModel, find_model
from bert_tf.model_directory.directory import require_checkpoint
from bert_tf.text.basic import BasicTokenizer
from bert_tf.text.new_words import (
    Extension,
    NewWord,
    broken_words,
    choose_words,
    count_tokens,
    count_words,
    extend,
    own_words,
)
from bert_tf.text.tokenizer import VOCAB_NAME
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.vocabulary import read_vocab_file, write_vocab_file
from bert_tf.text.wordpiece import WordPieceTokenizer
from bert_tf.util import environment
from bert_tf.util.errors import UserError
from bert_tf.util.files import (
    PathLike,
    atomic_open,
    expand_input_files,
    read_lines,
    write_json,
)
from bert_tf.util.temporary import TemporaryDirectory

WORDS_NAME = "added_words.tsv"

_SHOWN = 20


@dataclasses.dataclass(frozen=True)
class Choice:
    """Which words to add.

    Attributes:
      text: the domain's text: files, globs and directories, comma-separated; None for own words.
      words: a file of the user's own words, one per line; None without any.
      most: the most words to take from the text.
      min_count: how often such a word occurs at least.
      use_unused: whether words replace [unused] entries.
    """

    text: str | None
    words: str | None = None
    most: int = 500
    min_count: int = 5
    use_unused: bool = True

    def counts(self, basic: BasicTokenizer) -> dict[str, int]:
        """The words of the text, with their occurrences; empty without a text."""
        if not self.text:
            return {}
        files = expand_input_files(self.text, flag="text")
        counts = count_words(files, basic, flag="text")
        if not counts:
            raise UserError(f"--text={self.text} contains no words; give the domain's text.")
        return counts

    def nothing_found(self) -> list[str]:
        """Why no word comes from the text, if there is one."""
        if not self.text:
            return []
        if not self.most:
            return ["--add=0 takes none of --text"]
        return [f"no word of --text that occurs at least {self.min_count} times breaks into pieces"]


def extend_vocabulary(
    model: CompleteModel, output_dir: PathLike, choice: Choice, *, target: str | None = None
) -> list[str]:
    """Writes a model directory with new words; returns the lines of a report.

    The directory, new or empty, appears only when complete, and depends on nothing but the
    arguments. State of the optimizer is left out. ``target`` is a key of ``ORIGINS``; None for
    Hugging Face's if that can be read back, else ours.

    Raises UserError unless the vocabulary is WordPiece with BERT's own rules, if no word is to be
    added, or as ``convert``.
    """
    check_new_directory(output_dir)
    tokenizer = model.tokenizer
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise UserError(
            f"{model.checkpoint} has a vocabulary of the kind {tokenizer.kind}; words can be added "
            "to WordPiece vocabularies with BERT's own rules only (a SentencePiece model's pieces "
            "have probabilities, which new words lack)."
        )
    source = open_source(model.checkpoint)
    source = source.with_arrays(
        source.stored, config=model.config, tokenizer_files=model.tokenizer_files
    )
    counts = choice.counts(tokenizer.basic)
    own: list[NewWord] = []
    lines: list[str] = []
    if choice.words:
        own, refused = own_words(read_lines(choice.words, flag="words"), counts, tokenizer)
        lines += _left_out(refused, choice.words)
    candidates = broken_words(counts, tokenizer, min_count=choice.min_count)
    words = choose_words(candidates, counts, tokenizer, own=own, most=choice.most)
    if not words:
        reasons = [*lines, *choice.nothing_found()] or [f"--words={choice.words} is empty"]
        raise UserError(
            f"there is nothing to add ({'; '.join(reasons)}); name words in a file with --words, "
            "or give a --text and a lower --min_count."
        )
    extension = extend(tokenizer, words, use_unused=choice.use_unused)
    if choice.text and len(words) < choice.most + len(own):
        lines.append(
            f"only {len(words) - len(own)} words that occur at least {choice.min_count} times "
            "break into pieces; a lower --min_count finds more"
        )
    lines += _report(extension, counts, tokenizer)
    with TemporaryDirectory("vocabulary") as directory:
        vocab_file = Path(directory, VOCAB_NAME)
        write_vocab_file(vocab_file, extension.entries)
        tokenizer_files = TokenizerFiles(
            vocab_file, None, tokenizer.lower_case, tokenizer.strip_accents
        )
        return lines + _write(source, extension, tokenizer_files, output_dir, target)


def _write(
    source: Source,
    extension: Extension,
    tokenizer_files: TokenizerFiles,
    output_dir: PathLike,
    target: str | None,
) -> list[str]:
    """Writes the directory; returns the lines of a report on weights and files."""
    # Imported here, since these need TensorFlow and --help should not wait for it.
    from bert_tf.checkpoint.derived import extend_source, without_generator

    network, notes = without_generator(source)
    extended = extend_source(network, extension, tokenizer_files)
    if target is None:
        is_bert = DISCRIMINATOR not in heads_of(extended.stored) and extended.config.type_vocab_size
        target = "huggingface" if is_bert else "bert_tf"

    def add_files(directory: Path) -> None:
        if target == "huggingface":
            write_json(directory / CONFIG_NAME, extended.config.to_dict())
        _write_words(directory / WORDS_NAME, extension, source)

    lines = convert(extended, output_dir, target, card=False, add_files=add_files)
    return without_flags([*lines, *notes])


def _left_out(refused: Mapping[str, str], path: str) -> list[str]:
    lines = []
    for reason in dict.fromkeys(refused.values()):
        found = [word for word, why in refused.items() if why == reason]
        more = ", ..." if len(found) > _SHOWN else ""
        shown = ", ".join(word if len(word) <= 40 else f"{word[:37]}..." for word in found[:_SHOWN])
        lines.append(f"{len(found)} of {path} left out, {reason}: {shown}{more}")
    return lines


def _report(
    extension: Extension, counts: Mapping[str, int], tokenizer: WordPieceTokenizer
) -> Iterator[str]:
    """The first words, where they are, and the tokens of the text before and after."""
    words = list(extension.words.values())
    shown = sorted(words, key=lambda new: -new.saved)[:_SHOWN]
    width = max(len(f"{new.count:,}") for new in shown)
    yield f"{len(words)} words added; the first by saved tokens, with their counts and pieces:"
    for new in shown:
        pieces = " ".join(tokenizer.convert_ids_to_tokens(new.pieces))
        yield f"  {new.count:>{width},}  {new.word}  ({pieces})"
    replaced = len(words) - extension.num_appended
    yield (
        f"{replaced} of them replace [unused] entries and {extension.num_appended} are new rows: "
        f"the vocabulary has {len(extension.entries):,} entries"
    )
    if counts:
        before, unknown = count_tokens(counts, tokenizer)
        after, still_unknown = count_tokens(counts, extension.tokenizer(tokenizer))
        total = sum(counts.values())
        yield (
            f"the text has {total:,} words, {before:,} tokens before ({before / total:.3f} per "
            f"word) and {after:,} after ({after / total:.3f}), {1 - after / before:.1%} fewer"
        )
        if unknown:
            yield (
                f"{unknown:,} of its words are unknown to the vocabulary, {still_unknown:,} after; "
                "--words adds such words"
            )


def _write_words(path: Path, extension: Extension, source: Source) -> None:
    """A table of the new words, by id."""
    before = read_vocab_file(source.files.tokenizer_files.required_file)
    with atomic_open(path) as file:
        file.write("id\tword\tcount\tpieces\n")
        for index, new in sorted(extension.words.items()):
            pieces = " ".join(before[piece] for piece in new.pieces)
            file.write(f"{index}\t{new.word}\t{new.count}\t{pieces}\n")


@flag_group("Model")
def _define_model_flags() -> None:
    flags.DEFINE_string(
        "init_checkpoint", None, "Checkpoint of any format: directory or file.", required=True
    )
    flags.DEFINE_string("bert_config_file", None, "Architecture, if not stored with the weights.")
    flags.DEFINE_string("vocab_file", None, "WordPiece vocabulary, if not stored with the weights.")
    flags.DEFINE_bool("do_lower_case", None, "Whether the vocabulary is lower-cased.")
    flags.DEFINE_bool("strip_accents", None, "Whether it has no accents (default: as lower-cased).")
    flags.DEFINE_string("output_dir", None, "Directory to write; new or empty.", required=True)
    flags.DEFINE_enum(
        "format",
        None,
        list(ORIGINS),
        "Format to write (default: huggingface, which transformers loads too; bert_tf for ELECTRA "
        "and for networks without token types).",
    )


@flag_group("Words")
def _define_word_flags() -> None:
    flags.DEFINE_string(
        "text",
        None,
        "The domain's text, plain UTF-8: files, globs or directories, comma-separated.",
    )
    flags.DEFINE_integer("add", 500, "The most words to take from the text.", lower_bound=0)
    flags.DEFINE_integer(
        "min_count", 5, "How often a word of the text must occur at least.", lower_bound=1
    )
    flags.DEFINE_string("words", None, "A file of your own words to add too, one per line.")
    flags.DEFINE_bool(
        "use_unused", True, "Replace [unused] entries first; otherwise all words are new rows."
    )


def define_flags() -> None:
    """Defines the command's flags."""
    _define_model_flags()
    _define_word_flags()


def main(_: object) -> None:
    """Writes the directory and prints the report."""
    values = flags.FLAGS
    if not values.text and not values.words:
        raise UserError("give the domain's --text, or your own words in a file with --words.")
    environment.prepare_environment(verbose=False)
    require_checkpoint(values.init_checkpoint, flag="init_checkpoint")
    given = TokenizerFiles.from_flags(values)
    model = find_model(
        init_checkpoint=values.init_checkpoint,
        bert_config_file=values.bert_config_file,
        tokenizer_files=given,
    )
    choice = Choice(
        values.text, values.words, values.add, values.min_count, use_unused=values.use_unused
    )
    for line in extend_vocabulary(model, values.output_dir, choice, target=values.format):
        print(line)
    print(
        f"make records with it: python -m data_prep.pipeline --init_checkpoint={values.output_dir}"
    )


run = functools.partial(run_command, main, define_flags)


if __name__ == "__main__":
    run()
