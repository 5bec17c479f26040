"""Measures time and memory of each stage of data preparation as the corpus grows.

    python -m benchmarks.corpus_sizes --sizes_mb=20,200,2000 --directory=scratch \
        --json=corpus_sizes.json

For each size, a text is generated (benchmarks.generated_text) and the stages turn it into records,
each in a separate process with ``--num_workers``. Reports the rate, the memory of the main process
and of the largest worker, and the size of the output. ``dump`` generates a MediaWiki dump instead
of a text, and ``extract`` reads it. The outputs of a size are removed before the next one; the
largest takes about 8 times its size on disk.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from absl import flags

from benchmarks.generated_text import documents
from benchmarks.process_memory import Peaks, run_measured
from benchmarks.results import Result, result
from benchmarks.script import REQUIRED, run_benchmark, shared_flags, whole_numbers
from bert_tf.util.environment import available_cores
from bert_tf.util.errors import UserError
from bert_tf.util.files import make_output_dir
from data_prep.stages.order import STAGES

_MB, _MIB = 10**6, 1 << 20


class Step(NamedTuple):
    """A stage, the stage whose output it reads, and its own flags."""

    stage: str
    reads: str
    flags: tuple[str, ...]


def steps(dupe_factor: int, vocab_size: int, *, from_dump: bool) -> list[Step]:
    """The stages from the text, or from a dump, to records."""
    left_out = {"download", "filter_language", *(() if from_dump else ("extract",))}
    own = {
        "sentences": ("--line_breaks=paragraph",),
        "shards": ("--heldout_fraction=0",),
        "vocabulary": (f"--vocab_size={vocab_size}",),
        "create_pretraining_data": (
            "--vocab_file={root}/vocabulary/vocab.txt",
            f"--dupe_factor={dupe_factor}",
        ),
    }
    return [
        Step(
            row.name,
            next((name for name in row.reads if name not in left_out), "text"),
            own.get(row.name, ()),
        )
        for row in STAGES.values()
        if row.name not in left_out
    ]


def write_text(path: Path, num_bytes: int) -> None:
    """Writes generated text with a blank line between documents."""
    with open(path, "w", encoding="ascii") as file:
        for document in documents(num_bytes):
            file.write(document + "\n\n")


def write_dump(path: Path, num_bytes: int) -> None:
    """Writes a MediaWiki dump whose articles are generated text with some markup."""
    with open(path, "w", encoding="ascii") as file:
        file.write('<mediawiki version="0.11" xml:lang="en">\n')
        for number, text in enumerate(documents(num_bytes)):
            name, _, rest = text.partition(" ")
            link, _, rest = rest.partition(" ")
            file.write(
                f"<page><title>{name} {number}</title><ns>0</ns><id>{number}</id><revision>"
                "<model>wikitext</model><format>text/x-wiki</format><text>"
                f"{{{{Infobox|name={name}}}}}\n'''{name}''' [[{link}|{link}s]] {rest}"
                f"&lt;ref&gt;{link} {number}&lt;/ref&gt;\n== {link} ==\n* {name}\n"
                "</text></revision></page>\n"
            )
        file.write("</mediawiki>\n")


def measure() -> Iterator[Result]:
    """Runs the stages for all sizes given by the flags."""
    values = flags.FLAGS
    sizes = whole_numbers("sizes_mb")
    root = make_output_dir(values.directory, flag="directory")
    if any(root.iterdir()):
        raise UserError(f"--directory: {root} is not empty; give a new or an empty directory.")
    from_dump = values.source == "dump"
    workers = values.num_workers or available_cores()
    config = {"num_workers": workers, "dupe_factor": values.dupe_factor, "source": values.source}
    print(
        f"{'MB':>6}  {'stage':24}{'MB/s':>8}{'main, MiB':>12}{'worker, MiB':>13}{'output, MB':>12}"
    )
    for size in sizes:
        write = write_dump if from_dump else write_text
        (root / "text").mkdir()
        write(root / "text" / ("dump.xml" if from_dump else "text.txt"), size * _MB)
        for step in steps(values.dupe_factor, values.vocab_size, from_dump=from_dump):
            yield from _run(step, root, size, workers, config)
        for directory in list(root.iterdir()):
            shutil.rmtree(directory)


def _run(
    step: Step, root: Path, size: int, workers: int, config: dict[str, object]
) -> Iterator[Result]:
    source, output = root / step.reads, root / step.stage
    command = [sys.executable, "-m", f"data_prep.{step.stage}", f"--input_file={source}"]
    command += [f"--output_dir={output}", *(flag.format(root=root) for flag in step.flags)]
    if STAGES[step.stage].has_workers:
        command.append(f"--num_workers={workers}")
    peaks = run_measured(command)
    megabytes, written = _size_of(source) / _MB, _size_of(output) / _MB
    yield from results(step.stage, size, peaks, megabytes, written, config)
    print(
        f"{size:6}  {step.stage:24}{megabytes / peaks.seconds:8.2f}{peaks.main / _MIB:12.0f}"
        f"{peaks.worker / _MIB:13.0f}{written:12.1f}",
        flush=True,
    )


def results(
    stage: str,
    size: int,
    peaks: Peaks,
    megabytes: float,
    written: float,
    config: dict[str, object],
) -> Iterator[Result]:
    """The results of a stage; its start-up counts towards its time."""
    described = {**config, "corpus_mb": size, "input_mb": megabytes}
    yield result(f"{stage}: rate", megabytes / peaks.seconds, "MB/s", described)
    yield result(f"{stage}: memory of the main process", peaks.main, "bytes", described)
    yield result(f"{stage}: memory of the largest worker", peaks.worker, "bytes", described)
    yield result(f"{stage}: output", written, "MB", described)


def _size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


FLAGS = {
    "sizes_mb": (["20", "200"], "Comma-separated sizes of the corpus, in MB."),
    "directory": (REQUIRED, "An empty directory for the corpora and the outputs of the stages."),
    "source": (("text", "dump"), "Generated text, or a MediaWiki dump that contains it."),
    "num_workers": (0, "As in the stages; 0 means all cores.", 0),
    "dupe_factor": (1, "As in data_prep.create_pretraining_data.", 1),
    **shared_flags("json"),
    "vocab_size": (30000, "As in data_prep.vocabulary; a few MB of text support fewer.", 6),
}


if __name__ == "__main__":
    run_benchmark(FLAGS, measure)
