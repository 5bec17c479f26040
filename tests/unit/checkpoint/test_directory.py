"""Directories of checkpoints as TensorFlow's saver leaves them, whole, killed or half copied."""

from pathlib import Path

import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint import tensorflow_file
from bert_tf.checkpoint.directory import (
    newest_checkpoint,
    remove_leftovers,
    write_missing_list,
)
from bert_tf.checkpoint.tensorflow_file import list_checkpoints, resolve_checkpoint, warn_if_older
from bert_tf.train.start_point import find_start
from bert_tf.util.errors import UserError

HALF_WRITTEN = [
    "model.ckpt-9.data-00000-of-00001.tempstate12345678901234567890",
    "model.ckpt-9.index.tempstate987",
    "checkpoint.tmp0123456789abcdef0123456789abcdef",
]


@pytest.fixture
def directory(tmp_path):
    """Checkpoints of steps 3, 6 and 9, of which two are kept."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable("v", initializer=tf.ones([1000]))
        global_step = tf.train.create_global_step()
        session.run(tf.global_variables_initializer())
        saver = tf.train.Saver(save_relative_paths=True, max_to_keep=2)
        for step in (3, 6, 9):
            session.run(global_step.assign(step))
            saver.save(session, str(tmp_path / "model.ckpt"), global_step=step)
    return tmp_path


def files_at(checkpoint):
    endings = (".index", ".meta", ".data-00000-of-00001")
    return sorted(checkpoint.with_name(f"{checkpoint.name}{ending}") for ending in endings)


@pytest.fixture(params=["absolute", "relative"])
def as_given(request, directory, monkeypatch):
    """The directory as a user gives it."""
    monkeypatch.chdir(directory.parent)
    return directory if request.param == "absolute" else Path(directory.name)


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def copy(directory, old, new):
    for path in files_at(directory / f"model.ckpt-{old}"):
        target = path.name.replace(f"ckpt-{old}", f"ckpt-{new}")
        (directory / target).write_bytes(path.read_bytes())


def cut(path):
    path.write_bytes(path.read_bytes()[:100])


def test_half_written_files_are_no_part_of_a_checkpoint(directory):
    for name in HALF_WRITTEN:
        (directory / name).write_text("half")
    path = str(directory / "model.ckpt-9")
    assert newest_checkpoint(directory) == path
    assert resolve_checkpoint(path) == path


def test_leftovers_are_removed_and_nothing_else(directory):
    mine = ["model.ckpt-9.data-00000-of-00001.bak", "bert_model.ckpt.index", "checkpoint.txt"]
    for name in mine:
        (directory / name).touch()
    kept = names(directory)
    copy(directory, 6, 3)  # rotated out, and not deleted any more
    copy(directory, 9, 4)
    (directory / "model.ckpt-4.index").unlink()
    copy(directory, 9, 12)
    (directory / "model.ckpt-12.index").unlink()  # the kill came between the two renames
    for name in HALF_WRITTEN:
        (directory / name).touch()
    leftovers = set(names(directory)) - set(kept)
    assert set(remove_leftovers(directory)) == leftovers
    assert len(leftovers) == 3 + 2 + 2 + len(HALF_WRITTEN)
    assert names(directory) == kept
    assert remove_leftovers(directory) == []


def flipped(content, bit):
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_flipped_bit_of_the_list_chooses_no_older_checkpoint_unnoticed(directory, capsys):
    listing, newest = directory / "checkpoint", str(directory / "model.ckpt-9")
    intact, kept, sentences = listing.read_bytes(), names(directory), set()
    for bit in range(8 * len(intact)):
        listing.write_bytes(flipped(intact, bit))
        tensorflow_file._warn_once.cache_clear()
        try:
            found = newest_checkpoint(directory)
        except UserError as error:
            sentences.add(str(error))
            continue
        warn_if_older(found)
        warning = capsys.readouterr().out
        if found != newest:
            assert "names model.ckpt-6 as the latest" in warning
        else:
            assert not warning
        remove_leftovers(directory)
        assert set(files_at(directory / "model.ckpt-9")) <= set(directory.iterdir())
    assert names(directory) == kept
    assert all("is damaged, or the latest" in sentence for sentence in sentences)


def test_a_list_that_was_edited_to_go_back_is_followed_with_a_warning(directory, capsys):
    tensorflow_file._warn_once.cache_clear()
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-6"\n')
    assert resolve_checkpoint(directory) == str(directory / "model.ckpt-6")
    assert find_start(directory).checkpoint == str(directory / "model.ckpt-6")
    output = capsys.readouterr().out
    assert output.count("warning: ") == 1
    assert "model.ckpt-9 is newer and complete; correct the file if" in output
    for path in files_at(directory / "model.ckpt-9")[:1]:
        path.unlink()
    tensorflow_file._warn_once.cache_clear()
    assert resolve_checkpoint(directory) == str(directory / "model.ckpt-6")
    assert not capsys.readouterr().out


@pytest.mark.parametrize("written", [1, 2])
def test_a_kill_after_some_of_a_checkpoints_files(directory, written):
    """They are written in this order, the list last."""
    copy(directory, 9, 12)
    order = (".meta", ".data-00000-of-00001", ".index")
    for ending in order[written:]:
        (directory / f"model.ckpt-12{ending}").unlink()
    assert newest_checkpoint(directory) == str(directory / "model.ckpt-9")
    assert remove_leftovers(directory) == sorted(
        f"model.ckpt-12{ending}" for ending in order[:written]
    )


def test_a_kill_during_the_first_checkpoint_of_a_run(tmp_path):
    (tmp_path / "model.ckpt-0.meta").touch()
    assert newest_checkpoint(tmp_path) is None


def test_a_newer_complete_checkpoint_is_left(directory):
    copy(directory, 9, 12)
    assert remove_leftovers(directory) == []
    assert newest_checkpoint(directory) == str(directory / "model.ckpt-9")


def test_a_list_written_by_hand_removes_no_checkpoint(directory):
    (directory / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-9"\n')
    (directory / HALF_WRITTEN[0]).touch()
    assert remove_leftovers(directory) == [HALF_WRITTEN[0]]
    assert (directory / "model.ckpt-6.index").exists()


def test_a_missing_list_is_written_anew(as_given):
    before = tf.train.get_checkpoint_state(str(as_given))
    assert write_missing_list(as_given) is None
    (as_given / "checkpoint").unlink()
    assert "model.ckpt-9" in write_missing_list(as_given)
    assert tf.train.get_checkpoint_state(str(as_given)) == before


def test_a_list_is_right_after_its_directory_has_moved(as_given):
    list_checkpoints(as_given, ["model.ckpt-9"])
    moved = as_given.rename(as_given.with_name(f"{as_given.name}_moved"))
    assert resolve_checkpoint(moved) == str(moved / "model.ckpt-9")


@pytest.mark.parametrize("damage", ["index gone", "data gone", "data cut", "index cut"])
def test_only_a_complete_checkpoint_is_the_newest_without_a_list(directory, damage):
    (directory / "checkpoint").unlink()
    what, how = damage.split()
    path = directory / ("model.ckpt-9.index" if what == "index" else files_at(
        directory / "model.ckpt-9")[0].name)  # fmt: skip
    if how == "gone":
        path.unlink()
    else:
        cut(path)
    assert newest_checkpoint(directory) == str(directory / "model.ckpt-6")
    # What may be a half-made copy is not removed.
    assert remove_leftovers(directory) == []


def test_parts_alone_are_no_new_start(directory):
    (directory / "checkpoint").unlink()
    for path in directory.glob("*.data-*"):
        path.unlink()
    with pytest.raises(
        UserError, match=r"contains only incomplete checkpoints.*model\.ckpt-6\.index; copy all"
    ):
        newest_checkpoint(directory)


def test_a_kill_in_the_first_checkpoint_is_a_new_start(tmp_path):
    assert newest_checkpoint(tmp_path / "missing") is None
    (tmp_path / "model.ckpt-0.data-00000-of-00001").touch()
    assert newest_checkpoint(tmp_path) is None
    assert write_missing_list(tmp_path) is None
