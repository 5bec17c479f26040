"""Gathers a corpus from the documentation of Python and of the packages that the toolkit needs.

    python -m tools.demo.corpus --output_dir=corpus

Takes the docstrings of the standard library and of the packages that ``make setup`` installs for
the demo, and the descriptions (READMEs) in their metadata; keeps distinct paragraphs of prose;
writes one document per module or description, ordered by a hash of the module's path, until
``--max_megabytes`` is reached. The same versions give the same bytes, whatever else is installed.

Memory: about 60 MB, plus 150 MB for each worker process (the largest syntax tree).
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import itertools
import os
import platform
import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Callable, ClassVar, NamedTuple

from bert_tf.cli.settings_flags import from_flags
from bert_tf.config import declared
from bert_tf.config.declared import setting
from bert_tf.durable.stage import Built, run_stage
from bert_tf.util.digest import digest_of_json
from bert_tf.util.errors import UserError
from bert_tf.util.options import Interval
from bert_tf.util.progress import Progress
from bert_tf.util.versions import maker
from data_prep.stages.settings import OutputSettings, WorkerSettings
from data_prep.stages.stage import define_settings, run_main
from tools.demo.docstrings import description_of_metadata, docstrings_of_module, prose_paragraphs

STAGE = "demo_corpus"
FILE_NAME = "corpus.txt"

# Besides these, the packages that they need are read.
PACKAGES = (
    *("matplotlib", "mwparserfromhell", "numpy", "requests", "safetensors", "sentencepiece"),
    *("tensorflow", "tensorflow-cpu", "tokenizers"),
)

_FILES_PER_BATCH = 16
_MIN_DOCUMENT_CHARS = 200  # shorter documents rarely have two sentences
_MAX_SOURCE_BYTES = 4 << 20  # generated tables, not documentation
_OTHER_DIRECTORIES = {"test", "tests", "site-packages", "dist-packages", "__pycache__", "idlelib"}


@dataclasses.dataclass(frozen=True)
class CorpusRules(declared.Settings):
    """How much is gathered."""

    heading: ClassVar[str] = "Corpus"
    max_megabytes: float = setting(
        12.0, "Maximum amount of text, in 10^6 bytes.", bounds=Interval(0, open_low=True)
    )


@dataclasses.dataclass(frozen=True)
class Settings(WorkerSettings, CorpusRules, OutputSettings):
    """The settings of the stage."""


class SourceFile(NamedTuple):
    """A module or METADATA file, and its path inside the installation."""

    path: str
    name: str


def run(settings: Settings) -> Path:
    """Gathers the corpus; returns the path of its file."""
    packages = sorted((name, found.version) for name, found in needed_packages().items())
    parameters = {
        "max_megabytes": settings.max_megabytes,
        "python": platform.python_version(),
        "packages_sha256": digest_of_json(packages),
    }
    directory = run_stage(
        STAGE,
        settings.output_dir,
        parameters=parameters,
        inputs=(),
        build=functools.partial(_build, settings),
        made_by=maker(2),
    )
    return directory / FILE_NAME


def _build(settings: Settings, directory: Path) -> Built:
    paths = sysconfig.get_paths()
    files = find_source_files(paths["stdlib"], needed_packages().values())
    batches = [files[i : i + _FILES_PER_BATCH] for i in range(0, len(files), _FILES_PER_BATCH)]
    results = settings.executor.map(make_reader, batches, what=STAGE)
    progress = Progress(STAGE, settings.max_megabytes, "MB of text")
    max_bytes = int(settings.max_megabytes * 1e6)
    counts = {"documents": 0, "unreadable_files": 0}
    num_bytes = 0
    with open(directory / FILE_NAME, "wb") as file:
        for document in unique_documents(results, counts):
            content = document.encode("utf-8")
            if num_bytes + len(content) > max_bytes:
                results.close()
                break
            file.write(content)
            num_bytes += len(content)
            counts["documents"] += 1
            progress.advance(len(content) / 1e6)
    progress.finish()
    if not counts["documents"]:
        raise UserError("no documentation was found in the installed packages; give your own text.")
    return Built({FILE_NAME: counts["documents"]}, counts)


def needed_packages() -> dict[str, importlib.metadata.Distribution]:
    """The installed packages among ``PACKAGES`` and those that they need, by name."""
    # Imported here, since TensorFlow brings it.
    from packaging.requirements import Requirement

    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = list(PACKAGES)
    while wanted:
        name = re.sub(r"[-_.]+", "-", wanted.pop()).lower()
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if name not in found:
            found[name] = package
            needs = map(Requirement, package.requires or ())
            # Not what it needs for its extras, or on other systems.
            wanted += (
                need.name
                for need in needs
                if need.marker is None or need.marker.evaluate({"extra": ""})
            )
    return found


def find_source_files(
    standard_library: str, packages: Iterable[importlib.metadata.Distribution]
) -> list[SourceFile]:
    """Python modules and METADATA files, ordered by a hash of their paths in the installation."""
    found: dict[str, str] = {}
    for directory, subdirectories, names in os.walk(standard_library):
        subdirectories[:] = [name for name in subdirectories if name not in _OTHER_DIRECTORIES]
        for name in names:
            path = os.path.join(directory, name)
            found[path] = os.path.relpath(path, standard_library)
    for package in packages:
        for path in package.files or ():
            if _OTHER_DIRECTORIES.isdisjoint(path.parts):
                found[str(package.locate_file(path))] = str(path)
    files = [SourceFile(path, name) for path, name in found.items() if _is_documented(name)]
    return sorted(
        files,
        key=lambda file: hashlib.sha256(file.name.encode("utf-8", "surrogateescape")).digest(),
    )


def _is_documented(path: str) -> bool:
    name = os.path.basename(path)
    return name == "METADATA" or (name.endswith(".py") and not name.startswith("test_"))


def make_reader() -> Callable[[list[SourceFile]], list[list[str] | None]]:
    """The worker: a batch of files -> their paragraphs, None for unreadable files."""
    return lambda batch: [_read_paragraphs(file) for file in batch]


def _read_paragraphs(file: SourceFile) -> list[str] | None:
    try:
        if os.path.getsize(file.path) > _MAX_SOURCE_BYTES:
            return []
        source = Path(file.path).read_text(encoding="utf-8")
        if file.name.endswith(".py"):
            texts = docstrings_of_module(source)
        else:
            texts = [description_of_metadata(source)]
    except (OSError, SyntaxError, ValueError, RecursionError):  # another Python version or encoding
        return None
    return [paragraph for text in texts for paragraph in prose_paragraphs(text)]


def unique_documents(
    batches: Iterable[list[list[str] | None]], counts: dict[str, int]
) -> Iterator[str]:
    """Documents without paragraphs that occurred earlier; counts unreadable files."""
    seen: set[int] = set()
    for paragraphs in itertools.chain.from_iterable(batches):
        if paragraphs is None:
            counts["unreadable_files"] += 1
            continue
        new = []
        for paragraph in paragraphs:
            digest = hashlib.blake2b(paragraph.encode("utf-8"), digest_size=8).digest()
            key = int.from_bytes(digest, "big")
            if key not in seen:
                seen.add(key)
                new.append(paragraph)
        if sum(map(len, new)) >= _MIN_DOCUMENT_CHARS:
            yield "".join(f"{paragraph}\n" for paragraph in new) + "\n"


def define_flags() -> None:
    """Defines the flags of ``python -m tools.demo.corpus``."""
    define_settings(Settings, without=("scheduler",), output_dir="Directory for corpus.txt.")


def main() -> None:
    """Runs the stage from its flags."""
    run_main(define_flags, lambda values: run(from_flags(Settings, values)))


if __name__ == "__main__":
    main()
