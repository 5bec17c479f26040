"""Finding inputs, hashing them, and outputs that are whole or not there."""

import math
import os
from pathlib import Path

import pytest

from bert_tf.util import files
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.kills import killed_at

needs_permissions = pytest.mark.skipif(
    os.geteuid() == 0, reason="root may read and write anywhere; run as an ordinary user"
)


@pytest.fixture(name="tree")
def directory_tree(tmp_path):
    for name in ("b.txt", "a.txt", "c.json", "[x].txt", ".hidden.txt", "sub/d.txt", "sub/.e.txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    (tmp_path / "empty").mkdir()
    return tmp_path


def expanded(tree, patterns):
    """Names that the comma-separated patterns, relative to ``tree``, stand for."""
    absolute = ",".join(str(tree / part) if part.strip() else part for part in patterns.split(","))
    found = files.expand_input_files(absolute, flag="input_file")
    return [str(path.relative_to(tree)) for path in found]


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ("a.txt", ["a.txt"]),
        ("b.txt,a.txt", ["a.txt", "b.txt"]),
        ("a.txt,a.txt,*.txt", ["[x].txt", "a.txt", "b.txt"]),
        ("a.txt, ,", ["a.txt"]),
        ("?.json", ["c.json"]),
        ("sub", ["sub/d.txt"]),
        ("sub/", ["sub/d.txt"]),
        ("[x].txt", ["[x].txt"]),
        (".", ["[x].txt", "a.txt", "b.txt", "c.json"]),
        ("s*", ["sub/d.txt"]),
        ("sub,empt[xy]*,a.txt", None),
        ("a.txt,missing.txt", None),
        ("empty", None),
    ],
)
def test_expand_input_files(tree, patterns, expected):
    if expected is not None:
        assert expanded(tree, patterns) == expected
        return
    with pytest.raises(UserError, match="--input_file: no file matches"):
        expanded(tree, patterns)


def test_a_glob_that_matches_files_and_directories(tree):
    # A directory stands for its files however it was named.
    found = expanded(tree, "[as]*")
    assert found == ["a.txt", "sub/d.txt"]


def test_a_file_counts_once_however_it_is_named(tree, monkeypatch):
    monkeypatch.chdir(tree)
    patterns = f"a.txt,./a.txt,sub/../a.txt,{tree}/a.txt,{tree}/sub/../?.txt,sub,{tree}/sub/d.txt"
    found = files.expand_input_files(patterns, flag="input_file")
    assert [os.path.relpath(path, tree) for path in found] == ["b.txt", "a.txt", "sub/d.txt"]


def test_files_of_the_same_name_in_several_directories(tree):
    (tree / "sub" / "a.txt").write_text("other")
    assert expanded(tree, "a.txt,sub") == ["a.txt", "sub/a.txt", "sub/d.txt"]


def test_quotes_that_a_flag_file_left(tree):
    for quote in "'", '"':
        patterns = f"{quote}{tree}/?.txt{quote}, {quote} {tree}/sub {quote}"
        found = files.expand_input_files(patterns, flag="input_file")
        assert [path.name for path in found] == ["a.txt", "b.txt", "d.txt"]
        assert len(files.search_locations(patterns)) == 2
    (tree / "'x'").write_text("its name has quotes")
    assert files.expand_input_files(str(tree / "'x'"), flag="f") == [tree / "'x'"]


def test_blanks_around_commas_do_not_count(tree):
    patterns = f" {tree / 'a.txt'} , {tree / 'b.txt'} "
    assert len(files.expand_input_files(patterns, flag="input_file")) == 2


@pytest.mark.parametrize("patterns", ["", " , ,"])
def test_an_empty_list_names_the_flag(patterns):
    with pytest.raises(UserError, match="--input_file is empty"):
        files.expand_input_files(patterns, flag="input_file")


def test_require_file(tree):
    assert files.require_file(str(tree / "a.txt"), flag="vocab_file") == tree / "a.txt"
    (tree / "nothing").write_bytes(b"")
    for name, problem in [
        ("missing", "does not exist"),
        ("sub", "not a file"),
        ("nothing", "empty"),
    ]:
        with pytest.raises(UserError, match=f"--vocab_file: .*{name}.*{problem}"):
            files.require_file(tree / name, flag="vocab_file")


@needs_permissions
def test_a_file_that_may_not_be_read(tree):
    (tree / "a.txt").chmod(0)
    with pytest.raises(UserError, match="permissions"):
        files.require_file(tree / "a.txt", flag="vocab_file")


def test_make_output_dir(tree):
    path = files.make_output_dir(str(tree / "new" / "deep"), flag="output_dir")
    assert path.is_dir()
    assert list(path.iterdir()) == []
    assert files.make_output_dir(path, flag="output_dir") == path
    for name in ("a.txt", "a.txt/below"):
        with pytest.raises(UserError, match=r"--output_dir: cannot write to .*a\.txt"):
            files.make_output_dir(tree / name, flag="output_dir")


@needs_permissions
def test_a_directory_that_may_not_be_written(tree):
    (tree / "sub").chmod(0o500)
    with pytest.raises(UserError, match="cannot write to"):
        files.make_output_dir(tree / "sub", flag="output_dir")


def test_places_that_a_list_looks_into(tree, monkeypatch):
    monkeypatch.chdir(tree)
    assert files.search_locations(f"{tree}/sub, {tree}/sub/*.txt,{tree}/a.txt") == {
        (tree / "sub", "*"): True,
        (tree, "a.txt"): False,
    }
    assert files.search_locations(f"a.txt,{tree}/a.txt") == {(Path("."), "a.txt"): False}
    assert files.search_locations(f"sub,{tree}/sub,./sub/d.txt") == {(Path("sub"), "*"): True}
    assert files.search_locations("s*b") == {(Path("sub"), "*"): True, (Path("."), "s*b"): False}
    assert files.search_locations("s*b/none?") == {(Path("sub"), "none?"): False}
    assert files.search_locations("sub,sub/*") == {(Path("sub"), "*"): True}
    assert files.search_locations("nowhere/*") == {}


def test_a_place_with_brackets_is_meant_literally(tmp_path):
    directory = tmp_path / "a[1]"
    directory.mkdir()
    (directory / "b[2].txt").write_text("x")
    assert files.search_locations(str(directory / "b[2].txt")) == {(directory, "b[[]2].txt"): False}


@pytest.mark.parametrize(("mode", "content"), [("w", "tie ﬁ\n"), ("wb", b"\x00\r\n")])
def test_atomic_open_shows_the_file_when_it_is_whole(tmp_path, mode, content):
    path = tmp_path / "out"
    path.write_text("old")
    with files.atomic_open(path, mode) as file:
        file.write(content)
        file.flush()
        assert path.read_text() == "old"
    expected = content if mode == "wb" else content.encode("utf-8")
    assert path.read_bytes() == expected
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("before", [None, "old"])
def test_atomic_open_leaves_nothing_when_the_block_fails(tmp_path, before):
    path = tmp_path / "out"
    if before is not None:
        path.write_text(before)
    with pytest.raises(KeyboardInterrupt), files.atomic_open(path) as file:
        file.write("half of it")
        raise KeyboardInterrupt
    assert {p.name: p.read_text() for p in tmp_path.iterdir()} == (
        {"out": before} if before else {}
    )


def test_json_there_and_back(tmp_path):
    value = {"name": "naïve", "values": [1, 2.5, None, True]}
    files.write_json(tmp_path / "v.json", value)
    assert files.read_json(tmp_path / "v.json", what="values") == value
    text = (tmp_path / "v.json").read_text(encoding="utf-8")
    assert "naïve" in text
    assert text.endswith("}\n")


def test_json_has_null_for_numbers_that_it_cannot_write(tmp_path):
    value = {"a": [math.inf, 1.5, {"b": (-math.inf, math.nan)}], "c": "nan", "d": True}
    files.write_json(tmp_path / "v.json", value)
    expected = {"a": [None, 1.5, {"b": [None, None]}], "c": "nan", "d": True}
    assert files.read_json(tmp_path / "v.json", what="values") == expected


def test_json_that_cannot_be_written_leaves_the_old_file(tmp_path):
    files.write_json(tmp_path / "v.json", 1)
    with pytest.raises(TypeError):
        files.write_json(tmp_path / "v.json", {"a": object()})
    assert files.read_json(tmp_path / "v.json", what="values") == 1
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "does not exist"),
        ("directory", "cannot be read"),
        (b"{'a': 1}", "is not valid JSON"),
        (b"", "is not valid JSON"),
        (b'"\xff"', "is not valid JSON"),
    ],
)
def test_json_that_cannot_be_read(tmp_path, content, problem):
    path = tmp_path / "v.json"
    if content == "directory":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=f"run record: .*v.json {problem}"):
        files.read_json(path, what="run record")


def test_json_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "v.json").write_text('{"a": "ä"}', encoding="utf-8-sig")
    assert files.read_json(tmp_path / "v.json", what="values") == {"a": "ä"}


def test_what_a_kill_left_half_written_is_removed_and_nothing_else(tmp_path):
    mine = [".b.tmp", ".d.x.tmp", "a.json", "c.123.tmp"]
    for name in mine:
        (tmp_path / name).touch()
    assert killed_at(1, lambda: files.write_json(tmp_path / "a.json", {}))
    assert len(list(tmp_path.iterdir())) == len(mine) + 1
    [removed] = files.remove_partial_files(tmp_path)
    assert removed.startswith(".a.json.")
    assert sorted(path.name for path in tmp_path.iterdir()) == mine


@pytest.mark.parametrize("most_bytes", [0, 4096])
def test_a_full_disk_names_the_file_and_leaves_the_old_one(tmp_path, most_bytes):
    path = tmp_path / "run.json"
    files.write_json(path, "old")
    with pytest.raises(UserError) as error, no_room(most_bytes):
        files.write_json(path, "x" * 10_000)
    assert str(error.value).startswith(f"cannot write {path} (File too large); free space")
    assert files.read_json(path, what="run record") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_is_gone_names_the_file(tmp_path):
    path = tmp_path / "gone" / "run.json"
    with pytest.raises(UserError, match=f"cannot write {path} .No such file or directory"):
        files.write_json(path, {})


def test_errors_of_other_files_are_not_taken_for_the_written_one(tmp_path):
    with pytest.raises(FileNotFoundError), files.atomic_open(tmp_path / "out"):
        open(tmp_path / "in")  # noqa: SIM115


@pytest.mark.parametrize("opening", ["[", '{"a": '])
def test_deeply_nested_json_is_one_sentence(tmp_path, opening):
    path = tmp_path / "v.json"
    path.write_text(opening * 100_000)
    with pytest.raises(UserError, match=f"^run record: {path} is nested too deeply.$"):
        files.read_json(path, what="run record")


def test_integers_longer_than_any_float_are_one_sentence(tmp_path):
    path = tmp_path / "v.json"
    for digits in (400, 5_000):
        path.write_text(f'{{"a": [1, -{"9" * digits}]}}')
        with pytest.raises(UserError) as error:
            files.read_json(path, what="run record")
        assert str(error.value) == (
            f"run record: {path} is not valid JSON (a number of {digits + 1} digits)."
        )
    path.write_text(f"[{'9' * 300}, -12, {2**63}]")
    assert files.read_json(path, what="run record") == [10**300 - 1, -12, 2**63]


@pytest.mark.parametrize("value", [[], None, "text", 3])
def test_json_of_another_type_than_an_object(tmp_path, value):
    path = tmp_path / "v.json"
    files.write_json(path, value)
    with pytest.raises(UserError, match=f"^settings: {path} is not a JSON object"):
        files.read_json_object(path, what="settings")
    files.write_json(path, {"a": value})
    assert files.read_json_object(path, what="settings") == {"a": value}


def test_json_of_text_that_utf_8_cannot_write(tmp_path):
    value = {"name": "a \ud800 b", "path": "M\udcfcnchen", "ü": "\U0001f600"}
    files.write_json(tmp_path / "v.json", value)
    assert files.read_json(tmp_path / "v.json", what="values") == value


def test_a_directory_appears_whole_and_what_a_kill_left_is_removed(tmp_path):
    def make(directory):
        directory.mkdir()
        for name in "ab":
            (directory / name).write_text(name)

    def write():
        with files.atomic_directory(tmp_path / "model", tmp_path) as directory:
            make(directory)

    for number in range(3):
        assert killed_at(number + 1, write)
        assert [path.name[:7] for path in tmp_path.iterdir()] == [".model."]
        assert len(files.remove_partial_files(tmp_path)) == 1
    (tmp_path / "model").mkdir()
    write()
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["a", "b"]
    with pytest.raises(OSError, match="not empty"):
        write()
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
