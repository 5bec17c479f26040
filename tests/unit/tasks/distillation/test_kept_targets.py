"""A teacher's soft targets on disk: the real job in this process, on a tiny network."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

from bert_tf.config.ramps import parse_ramp
from bert_tf.durable.manifest import describe_file, read_manifest, write_manifest
from bert_tf.inference.predictor import Predictor
from bert_tf.records.framing import HEADER_BYTES
from bert_tf.records.layouts import PRETRAINING_MASKED
from bert_tf.records.tfrecord import TFRecordWriter
from bert_tf.tasks.distillation import kept_targets as teacher_targets
from bert_tf.tasks.distillation.kept_targets import MANIFEST_NAME, TargetFiles, make_targets
from bert_tf.tasks.pretraining import distillation
from bert_tf.tasks.pretraining import run as pretraining
from bert_tf.tasks.pretraining.task import PretrainingTask
from bert_tf.util.errors import UserError
from tests.helpers.jobs import arithmetic, begun
from tests.helpers.settings import with_values
from tests.helpers.tensors import assert_same_variables, variables_of
from tests.helpers.thread_ranks import run_ranks
from tests.helpers.tiny_pretraining import CONFIG, P, S, V, refuse
from tests.unit.tasks.distillation.test_teacher import distilling, write_teacher

RECORDS, K, TEMPERATURE = 10, 5, 2.0
TEACHER = dataclasses.replace(CONFIG, num_hidden_layers=2)


@pytest.fixture(autouse=True, scope="module")
def small_pieces():
    """Three pieces of 4, 4 and 2 records, computed in batches of 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(teacher_targets, "_RECORDS_OF_A_PIECE", 4)
        patch.setattr(teacher_targets, "_BATCH_SIZE", 2)
        patch.setattr(teacher_targets, "_BATCHES_OF_A_PIECE", 2)
        yield


@pytest.fixture(scope="module", name="teacher")
def shared_teacher(tmp_path_factory):
    return write_teacher(tmp_path_factory.mktemp("teacher") / "model", TEACHER)


def records():
    """Sequences with three masked words each, the last of which has no weight in every second."""
    rng = np.random.default_rng(4)
    positions = np.stack([rng.permutation(np.arange(1, S - 1))[:P] for _ in range(RECORDS)])
    weights = np.ones([RECORDS, P], np.float32)
    weights[::2, -1] = 0
    return {
        "input_ids": rng.integers(5, V, [RECORDS, S]),
        "input_mask": np.ones([RECORDS, S], np.int64),
        "segment_ids": np.zeros([RECORDS, S], np.int64),
        "masked_lm_positions": np.sort(positions),
        "masked_lm_ids": rng.integers(5, V, [RECORDS, P]),
        "masked_lm_weights": weights,
        "next_sentence_labels": np.zeros([RECORDS, 1], np.int64),
    }


def with_stored_masks(settings):
    """The run on records that store their masks, in place of the others."""
    [path] = settings.data.train_files
    manifest = read_manifest(path.parent)
    with TFRecordWriter(path) as writer:
        for record in PRETRAINING_MASKED.encode_batch(records()):
            writer.write(record)
    outputs = (describe_file(path, count=RECORDS),)
    write_manifest(path.parent, dataclasses.replace(manifest, outputs=outputs))
    return settings


def run_of(directory, teacher, cache, *, masks=True, steps=3, **settings):
    given = {
        "alpha_cos": 0.0,
        "restrict_ce_to_mask": True,
        "top_k_targets": K,
        "teacher_cache": cache,
        **settings,
    }
    changes = {
        "learning_rate": 1e-2,
        "num_train_steps": steps,
        "micro_batch_size": 2,
        "accumulation_steps": 2,
        "batch_ramp": parse_ramp("2:0,4:1", flag="batch_ramp"),
    }
    found = distilling(directory, teacher, changes=changes, **given)
    return with_stored_masks(found) if masks else found


def losses_of(settings):
    lines = (settings.run.output_dir / "log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def bytes_of(cache):
    return {path.name: path.read_bytes() for path in sorted(cache.glob("*.tfrecord"))}


def times_of(cache):
    return {path.name: path.stat().st_mtime_ns for path in sorted(cache.glob("*.tfrecord"))}


@dataclasses.dataclass(frozen=True)
class Finished:
    """A run with a cache: its settings, and what it called ``make_targets`` with."""

    settings: object
    task: object
    teacher: object
    records: object
    run: object
    arithmetic: object

    def make_targets(self, directory, **changes):
        given = {**vars(self), "directory": directory, **changes}
        del given["settings"]
        return make_targets(**given)


@pytest.fixture(scope="module", name="finished")
def finished_run(small_pieces, teacher, tmp_path_factory):
    directory = tmp_path_factory.mktemp("finished")
    settings = run_of(directory / "cached", teacher, directory / "targets")
    given = []

    def noting(task, teacher, records, directory, *others):
        given.extend([task, teacher, records, *others])
        return make_targets(task, teacher, records, directory, *others)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distillation, "make_targets", noting)
        pretraining.run(settings)
    return Finished(settings, *given)


@pytest.fixture(name="cached")
def copied_targets(finished, tmp_path):
    """The finished run, with a copy of its targets in ``tmp_path``."""
    shutil.copytree(finished.settings.distillation.teacher_cache, tmp_path / "targets")
    return finished


@pytest.mark.slow
def test_the_targets_are_the_teachers_most_probable_words(cached, teacher, tmp_path):
    predictor = Predictor(PretrainingTask(TEACHER, next_sentence=False), teacher)
    found = predictor.run(records())["masked_lm_probabilities"].astype(np.float64)
    heated = found ** (1 / TEMPERATURE)
    heated /= heated.sum(axis=-1, keepdims=True)
    files = TargetFiles(tmp_path / "targets", RECORDS, P, K, V)
    order = np.array([9, 0, 4, 3])
    classes, probabilities = files.read(order)
    np.testing.assert_array_equal(classes, np.argsort(-heated[order], axis=-1)[..., :K])
    known = -np.sort(-heated[order], axis=-1)[..., :K]
    np.testing.assert_allclose(probabilities, known, rtol=1e-3)
    pieces = list((tmp_path / "targets").glob("*.tfrecord"))
    assert len(pieces) == files.num_pieces == 3
    assert files.num_bytes == sum(piece.stat().st_size for piece in pieces)


@pytest.mark.slow
def test_a_student_learns_the_same_from_them(cached, teacher, tmp_path):
    online = run_of(tmp_path / "online", teacher, None)
    pretraining.run(online)
    for with_cache, without in zip(losses_of(cached.settings), losses_of(online)):
        for name in ("loss", "soft_targets_divergence", "gradient_norm"):
            assert with_cache[name] == pytest.approx(without[name], rel=5e-3), name
    names = variables_of(cached.settings.run.output_dir / "model.ckpt-3").keys()
    assert names == variables_of(online.run.output_dir / "model.ckpt-3").keys()


@pytest.mark.exhaustive
def test_batches_of_similar_length_get_the_targets_of_their_records(cached, teacher, tmp_path):
    found = []
    for name, cache in (("joined", tmp_path / "targets"), ("online_by_length", None)):
        settings = run_of(tmp_path / name, teacher, cache)
        by_length = dataclasses.replace(
            settings,
            data=dataclasses.replace(settings.data, length_buckets=True),
            optimization=with_values(settings.optimization, batch_ramp=None),
        )
        pretraining.run(by_length)
        found.append(losses_of(by_length))
    for with_cache, without in zip(*found):
        assert with_cache["loss"] == pytest.approx(without["loss"], rel=5e-3)
        assert with_cache["gradient_norm"] == pytest.approx(without["gradient_norm"], rel=5e-3)


def test_they_are_computed_once(cached, tmp_path, monkeypatch):
    monkeypatch.setattr(teacher_targets, "create_network", None)
    before = times_of(tmp_path / "targets")
    cached.make_targets(tmp_path / "targets")
    assert times_of(tmp_path / "targets") == before


@pytest.mark.exhaustive
def test_a_run_computes_the_missing_first_piece_again(cached, teacher, tmp_path):
    targets = tmp_path / "targets"
    before, [first, *others] = bytes_of(targets), times_of(targets).items()
    (targets / first[0]).unlink()
    again = run_of(tmp_path / "again", teacher, targets)
    pretraining.run(again)
    assert bytes_of(targets) == before
    assert list(times_of(targets).items())[1:] == others
    runs = (again.run, cached.settings.run)
    assert_same_variables(*(variables_of(run.output_dir / "model.ckpt-3") for run in runs))


def test_missing_later_pieces_are_computed_again(cached, tmp_path):
    targets = tmp_path / "targets"
    before = bytes_of(targets)
    for piece in ("000001", "000002"):
        (targets / f"targets-{piece}.tfrecord").unlink()
    cached.make_targets(targets)
    assert bytes_of(targets) == before


def test_ranks_with_different_records_fill_no_cache_together(finished, tmp_path):
    """As many records of the same shape, and fewer: nothing is written, not even a directory."""
    records = finished.records

    def sentences(**changes):
        other = dataclasses.replace(records, info=with_values(records.info, **changes))

        def make(rank):
            run = begun(ranks=rank, settings=finished.settings.run)
            own = {"records": (records, other)[rank.rank], "run": run, "arithmetic": arithmetic()}
            finished.make_targets(tmp_path / "targets", **own)

        found = run_ranks(2, make)
        assert [type(error) for error in found] == [UserError] * 2
        assert not (tmp_path / "targets").exists()
        return {str(error) for error in found}

    [sentence] = sentences(data_digest="f00")
    assert "rank 1 on host" in sentence
    assert f"in training data (f00 instead of {records.info.data_digest}); give every" in sentence
    [sentence] = sentences(data_digest="f00", num_records=9, masked=False)
    assert f"number of records (9 instead of {RECORDS}); give every rank the same." in sentence


def test_targets_of_another_run_are_refused(cached, teacher, tmp_path):
    refuse(
        run_of(tmp_path / "other", teacher, tmp_path / "targets", temperature=3.0),
        f"--cache_teacher={tmp_path / 'targets'} has targets with another temperature (2.0, not "
        "3.0); choose another directory or delete this one.",
    )


def test_records_without_masks_are_refused(teacher, tmp_path):
    refuse(
        run_of(tmp_path / "run", teacher, tmp_path / "targets", masks=False),
        "--cache_teacher needs records that store their masks",
        "make records with stored masks, or drop the flag.",
    )
    assert not (tmp_path / "targets").exists()


def test_a_full_disk_is_refused_before_anything_is_computed(teacher, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(teacher_targets.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(UserError, match=r"its disk has .* GiB free; choose another disk, or"):
        pretraining.run(run_of(tmp_path / "run", teacher, tmp_path / "targets"))
    assert not list((tmp_path / "targets").glob("*.tfrecord"))


def test_a_dry_run_writes_nothing(teacher, tmp_path, capsys):
    settings = run_of(tmp_path / "run", teacher, tmp_path / "targets")
    run = dataclasses.replace(settings.run, dry_run=True)
    pretraining.run(dataclasses.replace(settings, run=run))
    assert not (tmp_path / "targets").exists()
    assert f"targets of {RECORDS} records take" in capsys.readouterr().out


DAMAGED = r"targets-000001.tfrecord are damaged \({}\); delete the file to have them computed"


@pytest.mark.exhaustive
def test_a_cut_piece_is_named(cached, teacher, tmp_path):
    path = tmp_path / "targets" / "targets-000001.tfrecord"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(UserError, match=DAMAGED.format("cannot reshape array of size 50 into .*")):
        pretraining.run(run_of(tmp_path / "other", teacher, tmp_path / "targets"))


def files_in(cached, directory):
    """A copy of the targets that no open file is of."""
    shutil.copytree(cached.settings.distillation.teacher_cache, directory)
    return TargetFiles(directory, RECORDS, P, K, V)


def test_a_flipped_bit_of_a_target_is_found_when_it_is_read(cached, tmp_path):
    for byte in range(HEADER_BYTES, HEADER_BYTES + P * K * 4 + 4):
        files = files_in(cached, tmp_path / str(byte))
        content = bytearray(files.path(1).read_bytes())
        content[byte] ^= 16
        files.path(1).write_bytes(content)
        files.read(np.array([0, 5, 9]))
        with pytest.raises(UserError, match=DAMAGED.format("the checksum of record 0 is wrong")):
            files.read(np.array([0, 4]))


def test_a_damaged_manifest_is_named(cached, tmp_path):
    path = tmp_path / "targets" / MANIFEST_NAME
    path.write_text(path.read_text().replace("2.0", "3.0"))
    with pytest.raises(UserError, match=rf"{path} does not match .* delete {path.parent} to have"):
        cached.make_targets(tmp_path / "targets")


def test_the_manifest_says_what_they_are_of(cached, tmp_path):
    contents = json.loads((tmp_path / "targets" / MANIFEST_NAME).read_text())
    assert contents["targets"] == K
    assert contents["predictions"] == P
    assert contents["temperature"] == TEMPERATURE
