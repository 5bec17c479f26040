"""All stages by their command: layout, skipping, reruns, bad flags."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import json
import lzma
import random
import subprocess
import sys

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.records.tfrecord import RecordSet
from tests.helpers.archives import parquet_of, tar_of, wet_of
from tests.helpers.mediawiki import dump, page, publish
from tests.helpers.programs import ROOT, run
from tests.helpers.small_vocabulary import load_tokenizer
from tests.helpers.web_server import web_server

STAGES = ("sentences", "shards", "vocabulary", "create_pretraining_data", "pipeline")
STAGES += ("download", "extract", "filter_language", "clean", "convert_records")
COMMANDS = {**dict.fromkeys(STAGES, "--output_dir"), "inspect": "--input_file"}
COMMON = ("--vocab_size=50", "--max_seq_length=32", "--max_predictions_per_seq=4")
COMMON += ("--num_output_files=2", "--dupe_factor=2", "--heldout_fraction=0.1", "--num_workers=1")


def _command(stage, *flags):
    return run("-m", f"data_prep.{stage}", *flags, check=False)


def _pipeline(corpus, output_dir, *flags):
    done = _command("pipeline", f"--input_file={corpus}", f"--output_dir={output_dir}", *flags)
    assert done.returncode == 0, done.stderr
    return done.stderr


def _hashes(directory):
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("[!.]*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    rng = random.Random(5)
    words = [a + b for a in ("ba", "do", "ke", "mi", "zu") for b in ("lu", "ra", "n", "st")]
    documents = [
        " ".join(
            " ".join(rng.choices(words, k=rng.randint(4, 12))).capitalize() + "."
            for _ in range(rng.randint(2, 12))
        )
        for _ in range(80)
    ]
    path = tmp_path_factory.mktemp("corpus") / "corpus.txt"
    path.write_text("\n\n".join(documents) + "\n")
    return path


@pytest.fixture(scope="module")
def made(corpus, tmp_path_factory):
    """A whole run, and what it said."""
    output_dir = tmp_path_factory.mktemp("made")
    return output_dir, _pipeline(corpus, output_dir, *COMMON)


def test_layout(made):
    output_dir, said = made
    files = set(_hashes(output_dir))
    expected = {f"{name}/manifest.json" for name in ("sentences", "shards", "vocabulary")}
    expected |= {f"records/{kind}/manifest.json" for kind in ("train", "heldout")}
    expected |= {"sentences/sentences-00000.txt", "vocabulary/vocab.txt"}
    expected |= {"vocabulary/tokenizer_config.json"}
    expected |= {"shards/train-00000.txt", "shards/heldout-00000.txt"}
    names = [f"train/records-0000{n}-of-00002" for n in (0, 1)] + ["heldout/records-00000-of-00001"]
    expected |= {f"records/{name}.tfrecord" for name in names}
    expected |= {f"records/{name}.tfrecord.offsets" for name in names}
    [copy] = (output_dir / "records" / "train").glob("wordpiece-*.vocab")
    expected |= {f"records/{kind}/{copy.name}" for kind in ("train", "heldout")}
    assert files == expected
    assert copy.read_bytes() == (output_dir / "vocabulary" / "vocab.txt").read_bytes()
    assert f"vocabulary: {output_dir / 'vocabulary' / 'vocab.txt'}\n" in said
    assert f"training records: {output_dir / 'records' / 'train'}\n" in said
    assert f"held-out records: {output_dir / 'records' / 'heldout'}\n" in said


def test_stages_fit_together(made, corpus):
    output_dir, _ = made
    documents = corpus.read_text().count("\n\n") + 1
    counts = read_manifest(output_dir / "shards").counts
    train, heldout = (read_manifest(output_dir / "records" / kind) for kind in ("train", "heldout"))
    assert counts["train_documents"] + counts["heldout_documents"] == documents
    assert train.counts["documents"] == counts["train_documents"]
    assert heldout.counts["documents"] == counts["heldout_documents"]
    assert (train.parameters["dupe_factor"], heldout.parameters["dupe_factor"]) == (2, 1)
    tokenizer = load_tokenizer(vocab_file=output_dir / "vocabulary" / "vocab.txt")
    assert train.vocabulary == heldout.vocabulary
    assert train.vocabulary.digest == tokenizer.vocab_digest
    files = sorted((output_dir / "records/train").glob("*.tfrecord"))
    assert len(RecordSet(files)) == train.counts["records"]


def test_vocabulary_does_not_see_what_is_held_out(made):
    inputs = read_manifest(made[0] / "vocabulary").inputs
    assert [entry.name for entry in inputs] == ["train-00000.txt"]


def test_second_run_skips_every_stage(made, corpus):
    output_dir, _ = made
    before = _hashes(output_dir)
    said = _pipeline(corpus, output_dir, *COMMON)
    assert said.count("is up to date, skipped") == 5
    assert _hashes(output_dir) == before


def test_output_does_not_depend_on_the_number_of_workers(made, corpus, tmp_path):
    output_dir, _ = made
    _pipeline(corpus, tmp_path, *COMMON, "--num_workers=3")
    assert _hashes(tmp_path) == _hashes(output_dir)


def test_only_later_stages_run_again_after_a_change(made, corpus, tmp_path):
    output_dir, _ = made
    _pipeline(corpus, tmp_path, *COMMON)
    said = _pipeline(corpus, tmp_path, *COMMON, "--masking=dynamic")
    assert said.count("is up to date, skipped") == 3
    said = _pipeline(corpus, tmp_path, *COMMON, "--heldout_fraction=0")
    assert said.count("is up to date, skipped") == 1
    assert "held-out" not in said
    left = [path for path in (tmp_path / "records/heldout").glob("*") if path.name[0] != "."]
    assert left == []
    assert not list((tmp_path / "shards").glob("heldout*"))
    _pipeline(corpus, tmp_path, *COMMON)
    assert _hashes(tmp_path) == _hashes(output_dir)


def test_sentencepiece_and_a_vocabulary_that_is_there(made, corpus, tmp_path):
    said = _pipeline(
        corpus, tmp_path / "a", *COMMON, "--tokenizer=sentencepiece", "--vocab_size=40"
    )
    model = tmp_path / "a/vocabulary/spm.model"
    assert f"vocabulary: {model}" in said
    flags = [flag for flag in COMMON if "vocab" not in flag]
    said = _pipeline(corpus, tmp_path / "b", *flags, f"--spm_model_file={model}")
    assert not (tmp_path / "b/vocabulary").exists()
    assert _hashes(tmp_path / "b/records") == _hashes(tmp_path / "a/records")
    assert read_manifest(tmp_path / "b/records/train").vocabulary.kind == "sentencepiece"
    vocab = made[0] / "vocabulary/vocab.txt"
    _pipeline(corpus, tmp_path / "c", *COMMON, f"--vocab_file={vocab}")
    assert _hashes(tmp_path / "c/records") == _hashes(made[0] / "records")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--vocab_file=none.txt"], "--vocab_file: none.txt does not exist"),
        ([], "give --vocab_size to train a vocabulary, --vocab_file or"),
        (["--vocab_size=100", "--input_file=none*"], "--input_file: no file matches 'none*'"),
        (["--vocab_size=100", "--heldout_fraction=2"], "--heldout_fraction=2 must be in [0, 0.5]"),
        (["--vocab_size=100", "--num_workers=-1"], "--num_workers=-1 must not be negative"),
        (["--vocab_size=100", "--masked_lm_prob=2"], "--masked_lm_prob=2 must be in (0, 1]"),
        (["--vocab_size=3"], "--vocab_size=3 must be at least 6; 5 are the special"),
        (["--vocab_file={made}/vocabulary/vocab.txt", "--vocab_size=9"], "has 50 entries"),
        (["--init_checkpoint={made}/vocabulary", "--vocab_size=9"], "has 50 entries"),
        (
            ["--init_checkpoint={corpus}"],
            "no vocab.txt or spm.model in its directory; give --vocab_file",
        ),
        (["--vocab_size=9", "--output_dir={corpus}"], "--output_dir: cannot write to"),
        (["--vocab_size=9", "--source=wikipedia"], "give either --input_file"),
        (["--vocab_size=9", "--date=20240601"], "--date belongs to --source"),
        (["--vocab_size=9", "--format=text", "--markup=wikitext"], "is for plain text"),
        (["--vocab_size=9", "--encoding=base64"], "--encoding=base64 is not an encoding of text"),
        (
            ["--vocab_size=9", "--clean", "--min_letter_share=2"],
            "--min_letter_share=2 must be in [0, 1]",
        ),
    ],
)
def test_bad_flags_are_one_sentence_before_any_work(made, corpus, tmp_path, flags, message):
    flags = [flag.format(made=made[0], corpus=corpus) for flag in flags]
    done = _command("pipeline", f"--input_file={corpus}", f"--output_dir={tmp_path}", *flags)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_a_wikipedia(corpus, tmp_path):
    paragraphs = corpus.read_text().split("\n\n")
    pages = [page(f"P{n}", f"'''{text}'''\n* a list") for n, text in enumerate(paragraphs)]
    pages += [page("Again", paragraphs[0]), page("Short", "Too short.")]
    with web_server() as web:
        publish(web, "20240601", {"dewiki-pages-articles.xml.bz2": bz2.compress(dump(*pages))})
        flags = ("--source=wikipedia", "--language=de", f"--mirror={web.address}", *COMMON)
        for _ in range(2):
            done = _command("pipeline", *flags, f"--output_dir={tmp_path}", "--min_characters=30")
            assert done.returncode == 0, done.stderr
    assert "create_pretraining_data: " in done.stderr
    assert done.stderr.count("up to date") == 8
    counts = read_manifest(tmp_path / "clean").counts
    assert (counts["exact_duplicates"], counts["too_short"]) == (1, 1)
    assert counts["documents"] == len(paragraphs)
    kept = (tmp_path / "sentences" / "sentences-00000.txt").read_text()
    assert kept.split() == corpus.read_text().split()
    assert len(RecordSet(sorted((tmp_path / "records" / "train").glob("*.tfrecord")))) > 0


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("news.jsonl.gz", ["--text_field=body"]),
        ("openwebtext.tar.xz", ["--format=documents"]),
        ("part-0.parquet", []),
    ],
)
def test_other_sources_become_the_same_records(made, corpus, tmp_path, name, flags):
    documents = corpus.read_text().strip().split("\n\n")
    path = tmp_path / name
    if name.endswith(".gz"):
        lines = "".join(json.dumps({"body": text}) + "\n" for text in documents)
        path.write_bytes(gzip.compress(lines.encode()))
    elif name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
        parquet_of(path, {"text": documents})
    else:
        inner = tar_of({f"{n:03d}.txt": text.encode() for n, text in enumerate(documents)})
        path.write_bytes(lzma.compress(tar_of({"subset.xz": lzma.compress(inner)})))
    _pipeline(path, tmp_path / "out", *COMMON, *flags)
    assert _hashes(tmp_path / "out/records") == _hashes(made[0] / "records")


def test_documents_in_other_languages_are_left_out(tmp_path):
    """The WET file of a crawl, of which only German is wanted: its rules end the sentences."""
    german = [[f"Das ist Satz Nr. {n} von vielen.", "Sieht man, z. B. hier."] for n in range(40)]
    english = [f"This is sentence number {n} of many. It is English, as you see." for n in range(9)]
    pages = [*english, *map(" ".join, german)]
    (tmp_path / "crawl.warc.wet.gz").write_bytes(wet_of(pages))
    flags = (*COMMON, "--vocab_size=70", "--clean", "--min_characters=20")
    flags = (*flags, "--near_duplicate_similarity=0", "--keep_languages=de")
    _pipeline(tmp_path / "crawl.warc.wet.gz", tmp_path / "out", *flags)
    counts = read_manifest(tmp_path / "out" / "filter_language").counts
    assert counts == {"documents": 40, "kept_de": 40, "removed_en": 9}
    assert read_manifest(tmp_path / "out" / "clean").counts["documents"] == 40
    kept = (tmp_path / "out" / "sentences" / "sentences-00000.txt").read_text()
    assert [document.split("\n") for document in kept.strip().split("\n\n")] == german


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--keep_languages=de,fr"], "--keep_languages=de,fr: give the --language by whose rules"),
        (["--keep_languages=ger"], "'ger' is not the code of a language that is identified"),
        (["--keep_languages=,"], "--keep_languages is empty"),
        (["--min_language_probability=0.9"], "--min_language_probability belongs to --keep_lang"),
    ],
)
def test_flags_of_languages_are_checked_before_the_first_stage(corpus, tmp_path, flags, sentence):
    out = tmp_path / "out"
    done = _command("pipeline", f"--input_file={corpus}", f"--output_dir={out}", *COMMON, *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not list(out.glob("*"))


@pytest.mark.parametrize(("command", "flag"), COMMANDS.items())
def test_help_lists_the_flags(command, flag):
    done = _command(command, "--help")
    assert f"python -m data_prep.{command}" in done.stdout
    assert flag in done.stdout


def test_data_preparation_does_not_import_tensorflow():
    imports = "".join(f"import data_prep.{stage}; " for stage in COMMANDS)
    check = "import sys; sys.exit('tensorflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", imports + check], cwd=ROOT).returncode == 0
