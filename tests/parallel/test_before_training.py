"""What two ranks of one host do before they train: a command, once, and copies of the records."""

from __future__ import annotations

import json
import socket

import pytest

from bert_tf.records.tfrecord import RecordSet, TFRecordWriter, frame_records
from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.small_pretraining import (
    flags_of_a_short_run,
    shared_data,
    write_bert_config,
)

pytestmark = [requires_horovod, pytest.mark.parallel]

HOST = socket.gethostname()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shared_data(tmp_path_factory)


@pytest.fixture(scope="module")
def run_two(tmp_path_factory):
    """Runs two ranks; ``input_file`` and others override the usual flags."""
    config = tmp_path_factory.mktemp("config") / "bert_config.json"
    write_bert_config(config)

    def run(data, output_dir, *flags, **options):
        usual = flags_of_a_short_run(data, config)
        return mpirun(
            2, "run_pretraining.py", *usual, "--do_train", "--do_eval", "--horovod",
            "--scale_steps_by_ranks=false", f"--output_dir={output_dir}", *flags, **options,
        )  # fmt: skip

    return run


def losses(output_dir):
    entries = map(json.loads, (output_dir / "log.jsonl").read_text().splitlines())
    return [(e.get("step"), e["loss"]) for e in entries if "loss" in e]


def compress(directory, target):
    """The same records in compressed files without a manifest."""
    target.mkdir()
    for path in sorted(directory.glob("*.tfrecord")):
        records = RecordSet([path])
        with TFRecordWriter(target / f"{path.name}.gz", compression="gzip") as writer:
            content = records.read(range(len(records)))
            writer.write_framed(frame_records(content, compression="gzip"))


@pytest.mark.exhaustive
def test_staged_and_copied_records_give_the_same_training(data, run_two, tmp_path):
    run_two(data, tmp_path / "plain")
    compress(data / "records" / "train", tmp_path / "compressed")
    staged, cache, count = tmp_path / "staged", tmp_path / "cache", tmp_path / "count"
    vocabulary = next((data / "records" / "train").glob("*.vocab"))
    flags = [
        f"--before_training=echo staging; sleep 1; mv {tmp_path}/compressed {staged}; "
        f"echo x >> {count}",
        f"--input_file={staged}",
        f"--vocab_file={vocabulary}",
        f"--local_cache_dir={cache}",
    ]
    done = run_two(data, tmp_path / "out", *flags)
    assert done.stdout.count("staging\n") == 1
    assert count.read_text() == "x\n"
    assert f"host {HOST} reads copies of the records, copied now: {cache}/records-" in done.stdout
    assert len(list(cache.glob("records-*"))) == 1
    assert len(losses(tmp_path / "plain")) >= 6
    assert losses(tmp_path / "out") == losses(tmp_path / "plain")
    small = [f"--local_cache_dir={tmp_path / 'small'}", "--local_cache_gb=0.000001"]
    done = run_two(data, tmp_path / "again", *flags[1:], *small)
    assert f"warning: host {HOST} reads the original records" in done.stdout
    assert losses(tmp_path / "again") == losses(tmp_path / "plain")


@pytest.mark.slow
def test_a_command_that_fails_ends_all_ranks(data, run_two, tmp_path):
    done = run_two(
        data, tmp_path / "out", "--before_training=echo no such disk; exit 3", check=False
    )
    assert done.returncode != 0
    assert "no such disk" in done.stdout
    errors = [line for line in done.stderr.splitlines() if "error: " in line]
    assert errors == [
        f"error: host {HOST}: --before_training=echo no such disk; exit 3 ended with status 3; "
        "run it there by hand to find out why."
    ]
    assert not (tmp_path / "out").exists()
