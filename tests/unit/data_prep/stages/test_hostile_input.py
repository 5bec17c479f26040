"""Input that is not as it should be: nothing is lost, and nothing is dropped in silence.

Each case ends in one sentence without any output, or its text is in the output, or what is not is
counted in the manifest.
"""

from __future__ import annotations

import codecs
import os
import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from bert_tf.durable.manifest import read_manifest
from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.util.errors import UserError
from data_prep.stages import clean, create_pretraining_data, extract, sentences, shards, vocabulary
from tests.helpers.programs import run as run_program
from tests.helpers.small_vocabulary import load_tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyzäö€„“–שלוםमर"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{x}" for x in LETTERS)]
VOCABULARY += list(".,0123456789!")
PLAIN = "One short sentence. Another one.\n\nA second document, here.\n"
LONG = "A sentence of the long line. " * (3 << 20 >> 4)  # 5.6 MB
ENDLESS = "abc" * (1 << 20)
KEPT = "kept"

# What each stage does with a text: KEPT, what it counts, or a part of its message.
REFUSED_UTF8 = dict.fromkeys(("extract", "clean", "sentences", "records"), "is not UTF-8")
FULL_OF_NULLS = "is not text in UTF-8: it is full of null bytes"
NEEDS_LINES = dict.fromkeys(("shards", "records"), r"is longer than 1 MiB; put one sentence on a")
CASES = {
    "plain": (PLAIN.encode(), {}),
    "CR LF": (PLAIN.replace("\n", "\r\n").encode(), {}),
    "CR alone": (PLAIN.replace("\n", "\r").encode(), {}),
    "CR CR LF": (PLAIN.replace("\n", "\r\r\n").encode(), {}),
    "no line end": (PLAIN.rstrip().encode(), {}),
    "byte order mark": (PLAIN.encode("utf-8-sig"), {}),
    "UTF-16": (
        PLAIN.encode("utf-16"),
        {**REFUSED_UTF8, "extract": KEPT, "sentences": FULL_OF_NULLS},
    ),
    "UTF-16, no mark": (
        PLAIN.encode("utf-16-le"),
        dict.fromkeys(("extract", "sentences"), FULL_OF_NULLS),
    ),
    "invalid UTF-8": (PLAIN.encode() + b"\xff\xfe.\n", REFUSED_UTF8),
    "cut UTF-8": (PLAIN.encode() + "ä".encode()[:1], REFUSED_UTF8),
    "Windows-1252": ("Ein „Wort“ – 5 €.\n".encode("cp1252"), REFUSED_UTF8),
    "surrogates": (PLAIN.encode() + b"\xed\xa0\x80.\n", REFUSED_UTF8),
    "null bytes": (
        PLAIN.replace(" ", "\0 ", 2).encode(),
        {stage: {"null_characters": 2} for stage in ("extract", "sentences")},
    ),
    "a long line": (
        LONG.encode(),
        {**NEEDS_LINES, "clean": {"cut_lines": 5}, "extract": {"cut_documents": 1}},
    ),
    "no blanks": (
        ENDLESS.encode(),
        {**NEEDS_LINES, "clean": {"cut_lines": 3}, "sentences": {"cut_sentences": 6}},
    ),
    "HTML": (
        b"<!DOCTYPE html>\n<html><body><p>One sentence.</p></body></html>\n",
        dict.fromkeys(("extract", "sentences"), "is HTML, whose tags"),
    ),
    "documents of a word": (b"one\n\ntwo\n\nthree\n\n" * 40, {}),
    "many blank lines": (PLAIN.replace("\n\n", "\n" * 3000).encode(), {}),
    "white space": (b" \n\t\n\r\n\x0b\x0c\n", dict.fromkeys(
        ("extract", "clean", "sentences", "shards", "records"),
        "contains only white space|contains no article|nothing is left",
    )),
    "empty": (b"", dict.fromkeys(
        ("extract", "clean", "sentences", "shards", "records"), "are empty; give files with text"
    )),
    "line separators": ("One\u2028two\u2029three\x85four\x0bfive\x0csix.\n".encode(), {}),
    "zero width": ("One\u200btwo\u200d\ufeff three\u00ad.\n".encode(), {}),
    "right to left": ("שלום \u202bשלום\u202c. मर!\n".encode(), {}),
    "controls": (b"One\x01two\x1b[31m three\x7f.\n", {}),
}  # fmt: skip
NOT_FOR_SHARDS = ("invalid UTF-8", "cut UTF-8", "Windows-1252", "surrogates", "UTF-16")
NOT_FOR_SHARDS += ("UTF-16, no mark",)
STAGES = ("extract", "clean", "sentences", "shards", "records")


@pytest.fixture(scope="module")
def vocab_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(VOCABULARY)) + "\n")
    return path


def run(stage, source, output, vocab_file=None, **options):
    source, output = str(source), str(output)
    if stage == "extract":
        return extract.run(extract.Settings(source, output, num_workers=1, **options))
    if stage == "sentences":
        return sentences.run(sentences.Settings(source, output, num_workers=1, **options))
    if stage == "shards":
        return shards.run(shards.Settings(source, output, heldout_fraction=0))
    if stage == "vocabulary":
        return vocabulary.run(vocabulary.Settings(source, output, vocab_size=40, num_workers=1))
    if stage == "clean":
        rules = {"min_characters": 0, "min_letter_share": 0.0, "max_repeated_share": 1.0}
        rules |= {"keep_duplicates": True, "num_workers": 1}
        return clean.run(clean.Settings(source, output, **rules))
    files = TokenizerFiles(vocab_file=vocab_file).with_casing(None)
    return create_pretraining_data.run(
        create_pretraining_data.Settings(
            source, files, output_dir=output, num_output_files=1, dupe_factor=1, num_workers=1
        )
    )


def content_of(text):
    """What must not get lost: everything but white space, null characters and marks of order."""
    return re.sub("[\0\ufeff]", "", "".join(text.split()))


def decoded(content):
    return content.decode("utf-16" if content.startswith(codecs.BOM_UTF16_LE) else "utf-8-sig")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("case", CASES)
def test_text(tmp_path, vocab_file, case, stage):
    content, expected = CASES[case]
    source, output = tmp_path / "input.txt", tmp_path / "out"
    source.write_bytes(content)
    wanted = expected.get(stage, KEPT)
    if isinstance(wanted, str) and wanted != KEPT:
        with pytest.raises(UserError, match=wanted) as raised:
            run(stage, source, output, vocab_file)
        assert "\n" not in str(raised.value)
        assert not output.exists() or [p.name for p in output.iterdir() if p.name[0] != "."] == []
        return
    if stage == "shards" and case in NOT_FOR_SHARDS:
        return  # copies bytes as they are; the next stage refuses them
    counts = read_manifest(run(stage, source, output, vocab_file)).counts
    if isinstance(wanted, dict):
        assert {name: counts[name] for name in wanted} == wanted
    text = decoded(content)
    if stage == "records":
        tokenizer = load_tokenizer(vocab_file=vocab_file)
        lines = re.sub("\r*\n|\r", "\n", text).split("\n")
        assert counts["tokens"] == sum(len(tokenizer.encode(line)) for line in lines)
    else:
        texts = [path.read_text() for path in sorted(output.glob("*.txt"))]
        found = "".join(texts)
        assert content_of(found) == content_of(text)
        if case in ("CR LF", "CR alone", "CR CR LF", "plain"):
            assert re.sub("\r", "\n", found).strip().count("\n\n") == 1


@pytest.mark.parametrize("tokenizer", ["wordpiece", "sentencepiece"])
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            PLAIN.encode() + b"Not \xff text.\n",
            r"a.txt with the bytes b'Not \\xff' is not UTF-8",
        ),
        (PLAIN.encode("utf-16"), FULL_OF_NULLS),
        (("abcdefgh ijkl " * 180_000).encode(), None),
        (("ä" * (5 << 18)).encode(), None),
        (PLAIN.replace(" ", "\0 ", 2).encode(), None),
        (PLAIN.replace("\n", "\r").encode(), None),
    ],
    ids=["invalid", "UTF-16", "long line", "no blanks", "nulls", "CR"],
)
def test_a_vocabulary(tmp_path, content, message, tokenizer):
    (tmp_path / "a.txt").write_bytes(content)
    # No text here has as many entries; that it is too small shows that it was read.
    with pytest.raises(UserError) as raised:
        vocabulary.run(
            vocabulary.Settings(
                str(tmp_path / "a.txt"),
                str(tmp_path / "out"),
                vocab_size=5000,
                tokenizer=tokenizer,
                num_workers=1,
            )
        )
    assert re.search(message or "the text is too small|has no words", str(raised.value))


@pytest.mark.parametrize("stage", ["extract", "sentences"])
def test_replaced_bytes_are_counted(tmp_path, stage):
    (tmp_path / "a.txt").write_bytes(b"One \xff\xfetwo.\n")
    out = run(stage, tmp_path / "a.txt", tmp_path / "out", invalid_utf8="replace")
    name = {"extract": "replaced_characters", "sentences": "replaced_bytes"}[stage]
    assert read_manifest(out).counts[name] == 2


def make_pipe(path):
    os.mkfifo(path)


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # the name of a socket may have 107 bytes


def make_loop(path):
    path.symlink_to(path.name)


SPECIAL = {
    "pipe": (make_pipe, "is not a file"),
    "socket": (make_socket, "is not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is not a file"),
    "loop": (make_loop, "no file matches|is not a file"),
    "link to nothing": (lambda path: path.symlink_to("nothing"), "no file matches|is not a file"),
}


@pytest.mark.parametrize("stage", [*STAGES, "vocabulary"])
@pytest.mark.parametrize("kind", SPECIAL)
def test_what_is_no_file(tmp_path, vocab_file, monkeypatch, kind, stage):
    monkeypatch.chdir(tmp_path)
    make, message = SPECIAL[kind]
    (tmp_path / "in").mkdir()
    path = tmp_path / "in/special"
    make(path)
    with pytest.raises(UserError, match=message):
        run(stage, path, tmp_path / "out", vocab_file)
    if kind.startswith(("loop", "link")):
        (tmp_path / "in/a.txt").write_text(PLAIN)
        with pytest.raises(UserError, match="special is a broken symbolic link"):
            run(stage, tmp_path / "in", tmp_path / "out", vocab_file)
    assert not list(tmp_path.glob("out/*"))


def test_directories_that_lead_to_themselves_are_read_once(tmp_path):
    (tmp_path / "in/a/b").mkdir(parents=True)
    (tmp_path / "in/a/b/back").symlink_to(tmp_path / "in")
    (tmp_path / "in/again").symlink_to(tmp_path / "in/a")
    (tmp_path / "in/a/b/one.txt").write_text(PLAIN)
    out = run("extract", tmp_path / "in", tmp_path / "out", format="documents")
    assert content_of((out / "articles-00000.txt").read_text()) == content_of(PLAIN)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name", ["a,b.txt", "a[1].txt", "a\nb.txt", " a .txt", "*.txt", "-x", "é"])
def test_names(tmp_path, vocab_file, name, stage):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / name).write_text(PLAIN)
    for number, source in enumerate((tmp_path / "in" / name, tmp_path / "in")):
        out = run(stage, source, tmp_path / f"out{number}", vocab_file)
        assert read_manifest(out).inputs[0].name == name


@pytest.mark.parametrize("name", ["c,d", "d[1]", "d\ne", "d e", "*"])
def test_names_of_the_pipeline_s_directory(tmp_path, vocab_file, name):
    (tmp_path / "a.txt").write_text(PLAIN * 9 + "Other.\n\nAnd others.\n")
    done = _command(
        "pipeline",
        f"--input_file={tmp_path / 'a.txt'}",
        f"--output_dir={tmp_path / name}",
        f"--vocab_file={vocab_file}",
        "--num_workers=1",
        "--dupe_factor=1",
    )
    if "," in name:
        assert done.returncode == 2
        assert "commas separate files in lists" in done.stderr
        assert not (tmp_path / name).exists()
    else:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name / "records/train/manifest.json").exists()


def test_a_message_is_one_line_whatever_the_name(tmp_path):
    path = tmp_path / "a\nb\x1b[31m.txt"
    path.write_bytes(b"\xff")
    done = _command("sentences", f"--input_file={path}", f"--output_dir={tmp_path / 'out'}")
    assert done.returncode == 2
    [message] = [line for line in done.stderr.splitlines() if not line.startswith("sentences: ")]
    assert r"a\nb\x1b[31m.txt, at byte 0, is not UTF-8" in message


def _command(stage, *flags):
    return run_program("-m", f"data_prep.{stage}", *flags, check=False)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("change", ["grows", "shrinks", "is replaced", "vanishes"])
def test_a_file_that_changes_while_it_is_read(tmp_path, vocab_file, monkeypatch, change, stage):
    path = tmp_path / "a.txt"
    path.write_text(PLAIN * 100)

    def change_it(*args, **kwargs):
        if change == "grows":
            with path.open("a") as file:
                file.write("More.\n")
        elif change == "shrinks":
            os.truncate(path, 50)
        elif change == "is replaced":
            (tmp_path / "b").write_text(PLAIN * 100)
            (tmp_path / "b").replace(path)
        else:
            path.unlink()
        return original(*args, **kwargs)

    from bert_tf.durable import stage as stage_module

    original = stage_module.describe_files
    monkeypatch.setattr(stage_module, "describe_files", change_it)
    with pytest.raises(UserError, match=f"{path} (changed while it was read|cannot be read)"):
        run(stage, path, tmp_path / "out", vocab_file)
    assert not [p for p in tmp_path.glob("out/*") if p.name[0] != "."]


@pytest.fixture
def mounted(tmp_path):
    """Mounts a file system of some kilobytes; needs root."""
    place = tmp_path / "mounted"
    place.mkdir()
    made = []

    def mount(size):
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(place)]
        if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("mounting a small file system needs root")
        made.append(place)
        return place

    yield mount
    for path in made:
        subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.mark.parametrize("stage", [*STAGES, "vocabulary"])
def test_a_full_disk(tmp_path, vocab_file, mounted, stage):
    place = mounted("64k")
    (tmp_path / "a.txt").write_text("".join(f"Sentence {n} of it.\n\n" for n in range(20_000)))
    if stage == "vocabulary":
        (place / "ballast").write_bytes(b"x" * (64 << 10))
    message = "No space left on device.*; (free space there|choose another)"
    with pytest.raises((UserError, OSError)) as raised:
        run(stage, tmp_path / "a.txt", place / "out", vocab_file)
    assert "No space left on device" in str(raised.value)
    if isinstance(raised.value, UserError):
        assert re.search(message, str(raised.value))
    assert not [p for p in place.glob("out/*") if p.name[0] != "."]
    left = sum(p.stat().st_size for p in place.glob("out/**/*") if p.is_file())
    assert left == 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_directory_that_cannot_be_written(tmp_path, vocab_file, mounted, stage):
    place = mounted("64k")
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    (tmp_path / "a.txt").write_text(PLAIN)
    for output in (place, place / "out", tmp_path / "a.txt", Path("/proc/nothing")):
        with pytest.raises(UserError, match=r"--output_dir: cannot write to .*; choose another"):
            run(stage, tmp_path / "a.txt", output, vocab_file)


def test_a_pipe_is_not_waited_for(tmp_path):
    """Nobody writes into it; opening it would wait forever."""
    os.mkfifo(tmp_path / "pipe")
    failed = []
    thread = threading.Thread(
        target=lambda: failed.append(_refuses(tmp_path / "pipe", tmp_path / "out")), daemon=True
    )
    thread.start()
    thread.join(60)
    assert failed == [True]


def _refuses(source, output):
    with pytest.raises(UserError):
        run("extract", source, output)
    return True
