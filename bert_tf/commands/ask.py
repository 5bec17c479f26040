"""Answers questions about a text file with a fine-tuned model.

    python -m bert_tf.commands.ask --model_dir=model --file=document.txt --question="Who wrote it?"

Without ``--question``, questions are read from the terminal or a pipe, one per line, until the end
of input (Ctrl-D). Those from a pipe are printed with their answers, and a blank line follows each.
``--json`` prints one JSON object per line instead of text.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from typing import TextIO

from absl import flags

from bert_tf.cli.flags import Number, flag_group, run_command
from bert_tf.config.declared import settings_of_model, with_settings_of_model
from bert_tf.inference.settings import (
    define_model_flags,
    define_native_flag,
    model_from_flags,
    options_from_flags,
)
from bert_tf.tasks.question_answering.answers import Answerer, FoundAnswer, kept_windows
from bert_tf.tasks.question_answering.settings import AnswerSettings
from bert_tf.util import environment
from bert_tf.util.console import say
from bert_tf.util.errors import UserError
from bert_tf.util.files import PathLike, require_file

# A sentence ends after its full stop and closing quotes or brackets, or at a blank line.
_SENTENCE_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s)|\n\s*\n|[。！？]")
_MOST_SENTENCE_CHARS = 300


def read_document(path: PathLike, *, flag: str) -> str:
    """The contents of a text file; raises UserError if it is missing, not UTF-8, or blank."""
    path = require_file(path, flag=flag)
    try:
        # utf-8-sig: some editors begin files with a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"--{flag}: {path} is not UTF-8 text (byte {error.start}); convert it first."
        ) from error
    if not text.strip():
        raise UserError(f"--{flag}: {path} contains only white space; give a file with text.")
    return text


def sentence_around(text: str, start: int, end: int) -> str:
    """The sentences around the characters [start, end), at most 300 characters long."""
    first, last = 0, len(text)
    for match in _SENTENCE_END.finditer(text):
        if match.end() <= start:
            first = match.end()
        elif match.end() >= end:
            last = match.end()
            break
    room = max(0, _MOST_SENTENCE_CHARS - (end - start)) // 2
    from_, to = max(first, start - room), min(last, end + room)
    shown = " ".join(text[from_:to].split())
    return f"{'... ' if from_ > first else ''}{shown}{' ...' if to < last else ''}"


def read_questions(stream: TextIO, *, prompt: TextIO | None = None) -> Iterator[str]:
    """Yields the non-blank lines of ``stream``; on a terminal, writes a prompt to ``prompt``."""
    while True:
        if prompt and stream.isatty():
            print("question> ", end="", file=prompt, flush=True)
        line = stream.readline()
        if not line:
            if prompt and stream.isatty():
                print(file=prompt)
            return
        if line.strip():
            yield line.strip()


@flag_group("Text, questions and answers")
def define_flags() -> None:
    """Defines the command's flags."""
    define_model_flags()
    define_native_flag()
    flags.DEFINE_string("file", None, "UTF-8 text to find answers in.", required=True)
    flags.DEFINE_string(
        "question", None, "A single question; if not given, questions are read line by line."
    )
    flags.DEFINE_bool("json", False, "Print one JSON object per line.")
    flags.DEFINE_integer("n_best_size", 1, "Number of answers to show.")
    flags.DEFINE_bool(
        "version_2_with_negative", None, 'Let the model say "no answer" (default: as trained).'
    )
    flags.DEFINE(
        Number(infinite=True),
        "null_score_diff_threshold",
        None,
        'Margin by which "no answer" must outscore the best answer (default: the model\'s).',
    )
    flags.DEFINE_integer(
        "max_answer_length", None, "Maximum number of tokens in an answer (default: as trained)."
    )


def main(_: object) -> None:
    """Prints the answers to the questions."""
    values = flags.FLAGS
    environment.prepare_environment(verbose=False)
    text = read_document(values.file, flag="file")
    if values.question is not None and not values.question.strip():
        raise UserError("--question is empty; give a question, or leave the flag out.")
    if values.n_best_size < 1:
        raise UserError(f"--n_best_size={values.n_best_size} must be at least 1.")
    model = model_from_flags(values).with_unknown_hint()
    for note in model.notes:
        say(note, stream=sys.stderr)

    given = {name: values[name].value for name in settings_of_model(AnswerSettings())}
    asked = {name: value for name, value in given.items() if value is not None}
    settings = with_settings_of_model(
        AnswerSettings(n_best_size=max(values.n_best_size, AnswerSettings.n_best_size)),
        {**model.kept, **asked},
    )
    windows = kept_windows(model)
    environment.quiet_tensorflow(verbose=False)
    options, warnings = options_from_flags(values, model, native_ops=values.native_ops)
    for warning in warnings:
        say(f"warning: {warning}", stream=sys.stderr)
    answerer = Answerer(model, windows=windows, settings=settings, options=options)
    if values.question is not None:
        questions = iter([values.question])
    else:
        questions = read_questions(sys.stdin, prompt=sys.stderr)
    is_piped = values.question is None and not sys.stdin.isatty()
    for question in questions:
        found = answerer.answer(question, text, shows_progress=True)[: values.n_best_size]
        if values.json:
            answers = [dataclasses.asdict(answer) for answer in found]
            print(json.dumps({"question": question, "answers": answers}), flush=True)
        else:
            if is_piped:
                print(f"question> {question}")
            _print_answers(found, text)
            if is_piped:
                print(flush=True)


def _print_answers(found: Sequence[FoundAnswer], text: str) -> None:
    for answer in found:
        in_one_line = " ".join(answer.text.split())
        print(f"{in_one_line or '(no answer)'}  ({answer.probability:.3f})", flush=True)
        if answer.start is not None and answer.end is not None:
            print(f"    {sentence_around(text, answer.start, answer.end)}", flush=True)


run = functools.partial(run_command, main, define_flags)


if __name__ == "__main__":
    run()
