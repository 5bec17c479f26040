"""Generates questions about installed documentation: a smoke test for users without a SQuAD file.

    python -m tools.demo.questions --output_dir=questions --num_questions=5000

Takes the docstrings of the packages whose text :mod:`tools.demo.corpus` gathers (or those of
the Python files given by ``--input_file``) and asks for what they state: what a function returns,
the type or the default of a parameter, the exception that is raised. Writes ``train.json`` and
``dev.json`` in SQuAD's format, 1.1, or 2.0 with ``--unanswerable_fraction``. No module is in both
files, and no documentation occurs twice. The same installation and seed give the same bytes.

The questions come from a handful of patterns, so a score on them shows that everything works, but
nothing about how well a model reads. Every title in the files says so.

Memory: about 80 MB, and 10 kB for each question.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import platform
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from absl import flags

from bert_tf.cli.flags import Number, flag_group
from bert_tf.records.stage import Built, run_stage
from bert_tf.util.errors import UserError
from bert_tf.util.files import hash_of_json, write_json
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker
from data_prep.stages.stage import (
    define_output_flag,
    find_text_files,
    run_main,
    settings_from_flags,
)
from tools.demo.corpus import SourceFile, find_source_files
from tools.demo.documented_objects import documented_objects
from tools.demo.question_maker import Document, QuestionMaker, draw
from tools.demo.question_templates import find_statements

STAGE = "demo_questions"
TRAIN_NAME, DEV_NAME = "train.json", "dev.json"
LABEL = "generated questions, only a smoke test"

_MIN_CONTEXT_WORDS = 30
_MAX_SOURCE_BYTES = 1 << 20  # generated tables, not documentation


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of the stage.

    Attributes:
      output_dir: directory for train.json and dev.json.
      input_file: Python files, globs or directories; None for the installed packages.
      num_questions: questions in both files together; fewer if there is not enough documentation.
      dev_fraction: share of the questions that goes to dev.json.
      unanswerable_fraction: share of questions that the context does not answer; 0 gives SQuAD 1.1.
      max_context_words: maximum words in a context; longer documentation loses its end.
      random_seed: seed for the choice of modules and questions.
    """

    output_dir: str
    input_file: str | None = None
    num_questions: int = 5000
    dev_fraction: float = 0.1
    unanswerable_fraction: float = 0.0
    max_context_words: int = 250
    random_seed: int = 12345


def run(settings: Settings) -> Path:
    """Generates the questions; returns the directory of train.json and dev.json."""
    _check(settings)
    if settings.input_file is None:
        inputs: list[Path] = []
        files = _installed_files()
    else:
        inputs = find_text_files(settings.input_file)
        files = [SourceFile(str(path), path.name) for path in inputs if path.suffix == ".py"]
    parameters = dataclasses.asdict(settings)
    del parameters["output_dir"], parameters["input_file"]
    parameters["python"] = platform.python_version()
    if not inputs:
        sizes = [(file.name, os.path.getsize(file.path)) for file in files]
        parameters["sources_sha256"] = hash_of_json(sizes)
    return run_stage(
        STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=inputs,
        build=functools.partial(_build, settings, files),
        made_by=maker(1),
    )


def _check(settings: Settings) -> None:
    if settings.num_questions < 2:
        raise UserError(f"--num_questions={settings.num_questions}: give at least 2.")
    if not 0 < settings.dev_fraction < 1:
        raise UserError(f"--dev_fraction={settings.dev_fraction}: give a number between 0 and 1.")
    if not 0 <= settings.unanswerable_fraction < 1:
        raise UserError(
            f"--unanswerable_fraction={settings.unanswerable_fraction}: "
            "give a number from 0 to less than 1."
        )
    if settings.max_context_words <= _MIN_CONTEXT_WORDS:
        raise UserError(
            f"--max_context_words={settings.max_context_words}: "
            f"give more than {_MIN_CONTEXT_WORDS}, the minimum length of a context."
        )


def _installed_files() -> list[SourceFile]:
    paths = sysconfig.get_paths()
    roots = dict.fromkeys(paths[key] for key in ("stdlib", "purelib", "platlib"))
    return [
        file
        for file in find_source_files(*roots)
        if file.name.endswith(".py") and os.path.getsize(file.path) <= _MAX_SOURCE_BYTES
    ]


def _build(settings: Settings, files: list[SourceFile], directory: Path) -> Built:
    maker = QuestionMaker(
        settings.num_questions,
        unanswerable_fraction=settings.unanswerable_fraction,
        seed=settings.random_seed,
    )
    progress = Progress(STAGE, settings.num_questions, "questions")
    parts: dict[str, list[dict[str, Any]]] = {TRAIN_NAME: [], DEV_NAME: []}
    sizes = dict.fromkeys(parts, 0)
    for document in documents(files, settings):
        paragraphs = maker.paragraphs(document)
        if not paragraphs:
            continue
        wants_more = sizes[DEV_NAME] < settings.dev_fraction * sum(sizes.values())
        name = DEV_NAME if wants_more else TRAIN_NAME
        parts[name].append({"title": f"{document.module} ({LABEL})", "paragraphs": paragraphs})
        num_new = sum(len(paragraph["qas"]) for paragraph in paragraphs)
        sizes[name] += num_new
        progress.advance(num_new)
        if maker.num_questions == settings.num_questions:
            break
    progress.finish()
    if not parts[DEV_NAME]:
        raise UserError(
            f"--input_file: there are only {maker.num_questions} questions about "
            f"{len(parts[TRAIN_NAME])} modules; give two documented Python modules or more."
        )
    version = "v2.0" if settings.unanswerable_fraction else "1.1"
    for name, data in parts.items():
        write_json(directory / name, {"version": version, "about": LABEL, "data": data})
    counts = {"documents": sum(map(len, parts.values())), "contexts": maker.num_contexts}
    return Built(sizes, {**counts, **dict(sorted(maker.kinds.items()))})


def documents(files: list[SourceFile], settings: Settings) -> Iterator[Document]:
    """The modules that can be parsed, in an order given by the seed; each docstring occurs once."""
    seen: set[bytes] = set()
    for file in sorted(files, key=lambda file: draw(settings.random_seed, file.name)):
        module = file.name[: -len(".py")].replace(os.sep, ".")
        module = module[: -len(".__init__")] if module.endswith(".__init__") else module
        objects = []
        try:
            source = Path(file.path).read_text(encoding="utf-8")
            found = list(documented_objects(source, module, max_words=settings.max_context_words))
        except (OSError, SyntaxError, ValueError, RecursionError):  # for another Python version
            continue
        for documented in found:
            digest = hashlib.sha256(documented.documentation.encode("utf-8")).digest()
            if len(documented.context.split()) >= _MIN_CONTEXT_WORDS and digest not in seen:
                seen.add(digest)
                objects.append((documented, find_statements(documented)))
        yield Document(module, objects)


@flag_group("Questions")
def define_flags() -> None:
    """Defines the flags of ``python -m tools.demo.questions``."""
    define_output_flag("Directory for train.json and dev.json.")
    flags.DEFINE_string(
        "input_file",
        None,
        "Python files, globs or directories to take docstrings from; by default the standard "
        "library and the installed packages.",
    )
    flags.DEFINE_integer("num_questions", 5000, "Questions to generate, for both files together.")
    flags.DEFINE(Number(), "dev_fraction", 0.1, "Share of the questions that goes to dev.json.")
    flags.DEFINE(
        Number(),
        "unanswerable_fraction",
        0.0,
        "Share of questions that the context does not answer; above 0 the files are SQuAD 2.0.",
    )
    flags.DEFINE_integer(
        "max_context_words", 250, "Maximum words in a context; the rest is cut off."
    )
    flags.DEFINE_integer("random_seed", 12345, "Seed for the choice of modules and questions.")


def main() -> None:
    """Runs the stage from its flags."""
    run_main(define_flags, lambda values: run(settings_from_flags(Settings, values)))


if __name__ == "__main__":
    main()
