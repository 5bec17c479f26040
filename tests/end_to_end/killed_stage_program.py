"""Kills a stage at each of its changes of the disk, and continues it; run with kill_at.so loaded.

    LD_PRELOAD=kill_at.so python killed_stage_program.py STAGE DIRECTORY

Prints JSON: at how many changes it was killed, how often the next call continued, and where that
did not end with the files of a run that nobody kills, with the names that only one of them has.
"""

import contextlib
import io
import json
import os
import random
import shutil
import sys
from pathlib import Path

from bert_tf.text.tokenizer_files import TokenizerFiles
from data_prep.stages import (
    clean,
    create_pretraining_data,
    extract,
    filter_language,
    journal,
    sentences,
    stage,
)
from data_prep.text import documents as reading
from data_prep.text.language_identification import IDENTIFIED

journal.SECONDS_BETWEEN_ENTRIES = 0.0
stage.OUTPUT_FILE_BYTES = 1500
create_pretraining_data.BLOCK_BYTES = 900
reading.READ_BYTES = 700
clean.BLOCK_BYTES = 900
filter_language.BLOCK_BYTES = 900
extract.BATCH_BYTES = 600
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


def documents(number):
    rng = random.Random(5)
    for _ in range(number):
        lines = (" ".join(rng.choices(WORDS, k=6)) + "." for _ in range(rng.randint(3, 8)))
        yield "\n".join(lines)


def make_text(directory):
    path = directory / "text.txt"
    path.write_text("\n\n".join(documents(16)))
    return str(path)


def make_records(directory, out):
    vocabulary = directory / "vocab.txt"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary.write_text("\n".join([*special, ".", *WORDS]))
    return create_pretraining_data.Settings(
        make_text(directory),
        TokenizerFiles(vocab_file=vocabulary, do_lower_case=True),
        output_dir=str(out),
        num_output_files=2,
        max_seq_length=32,
        max_predictions_per_seq=5,
        dupe_factor=2,
        num_workers=1,
    )


def make_dump(directory, out):
    pages = (
        f"<page><title>{n}</title><ns>{4 * (n % 5 == 4)}</ns><revision><text>{text}</text>"
        "</revision></page>"
        for n, text in enumerate(documents(16))
    )
    path = directory / "dump.xml"
    path.write_text(f"<mediawiki>{''.join(pages)}</mediawiki>")
    return extract.Settings(str(path), str(out), num_workers=1)


STAGES = {
    "create_pretraining_data": (create_pretraining_data, make_records),
    "sentences": (
        sentences,
        lambda directory, out: sentences.Settings(make_text(directory), str(out), num_workers=1),
    ),
    "clean": (
        clean,
        lambda directory, out: clean.Settings(
            make_text(directory), str(out), min_characters=120, num_workers=1
        ),
    ),
    "extract": (extract, make_dump),
    "filter_language": (
        filter_language,
        lambda directory, out: filter_language.Settings(
            make_text(directory),
            str(out),
            tuple(sorted(IDENTIFIED)),
            min_language_probability=0,
            num_workers=1,
        ),
    ),
}


def run(name, directory, out, kill_at=None):
    """What the stage said, None if it was killed; in a child."""
    module, make_settings = STAGES[name]
    settings = make_settings(directory, out)
    said = directory / "said"
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.environ["KILL_UNDER"] = str(out)
            if kill_at is not None:
                os.environ["KILL_AT"] = str(kill_at)
            stream = io.StringIO()
            with contextlib.redirect_stderr(stream):
                module.run(settings)
            said.write_text(stream.getvalue())
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -9), f"the stage failed by itself at {kill_at}"
    return None if status else said.read_text()


def content(out):
    """All files, hidden and temporary ones too."""
    files = (path for path in out.rglob("*") if path.is_file())
    return {str(path.relative_to(out)): path.read_bytes() for path in files}


def main():
    name, directory = sys.argv[1], Path(sys.argv[2])
    reference = directory / "reference"
    assert "resumed" not in run(name, directory, reference)
    expected = content(reference)
    found = {"outputs": len(expected), "kills": 0, "resumed": 0, "different": []}
    while True:
        number, out = found["kills"], directory / "out"
        if run(name, directory, out, number) is not None:
            break
        if number % 3 == 0:  # once more, where it continues or soon afterwards
            run(name, directory, out, number % 17)
        found["resumed"] += "resumed" in run(name, directory, out)
        left = content(out)
        if left != expected:
            found["different"].append([number, sorted(left.keys() ^ expected.keys())])
        shutil.rmtree(out)
        found["kills"] += 1
    print(json.dumps(found))


if __name__ == "__main__":
    main()
