"""The real run_pretraining.py over hosts: the run of one process again."""

import json
import shutil
import sys

import pytest

from tests.helpers.programs import environment, run
from tests.helpers.small_pretraining import flags_of_a_short_run
from tools.hosts import Hosts

pytestmark = pytest.mark.parallel

SCRIPT = "run_pretraining.py"
TRAIN_AND_EVALUATE = ["--do_train", "--do_eval"]
LOSSES = ("loss", "masked_lm_loss", "next_sentence_loss")


@pytest.fixture(scope="module")
def alone(data, bert_config, tmp_path_factory):
    """The output of one process, whose micro batch is the global batch."""
    output_dir = tmp_path_factory.mktemp("alone")
    flags = flags_of_a_short_run(data, bert_config)
    run(SCRIPT, *flags, *TRAIN_AND_EVALUATE, f"--output_dir={output_dir}")
    return output_dir


def program(data, bert_config, output_dir, *, ranks):
    """The same global batch and number of updates, whatever the number of ranks."""
    flags = flags_of_a_short_run(data, bert_config)
    flags += [*TRAIN_AND_EVALUATE, "--horovod", f"--output_dir={output_dir}"]
    flags += [f"--train_batch_size={8 // ranks}", "--scale_steps_by_ranks=false"]
    return [sys.executable, SCRIPT, *flags]


def losses(output_dir):
    """The losses of every update, then those of the evaluation."""
    lines = [json.loads(line) for line in (output_dir / "log.jsonl").read_text().splitlines()]
    lines.append(json.loads((output_dir / "eval_results.json").read_text()))
    return [line[name] for line in lines for name in LOSSES]


def assert_same_run(found, expected):
    expected_losses = losses(expected)
    assert len(expected_losses) == 7 * len(LOSSES)
    assert losses(found) == pytest.approx(expected_losses, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    "ranks_per_host", [(1, 1), pytest.param((1, 2, 1), marks=pytest.mark.exhaustive)], ids=str
)
def test_hosts_that_share_the_data(ranks_per_host, alone, data, bert_config, tmp_path):
    ranks = sum(ranks_per_host)
    with Hosts(len(ranks_per_host), mbit_per_second=1000) as hosts:
        done = hosts.run(
            program(data, bert_config, tmp_path, ranks=ranks),
            ranks_per_host=ranks_per_host,
            environment=environment(),
        )
    assert done.stdout.count("step 6/6") == 1, "rank 0 alone prints"
    assert_same_run(tmp_path, alone)


@pytest.fixture
def directories(tmp_path, data):
    """What two hosts find at two paths: for each its own copy of the data, its own output."""
    own = {}
    for path, names in {"data": ("data0", "data1"), "output": ("output0", "output1")}.items():
        (tmp_path / path).mkdir()
        own[tmp_path / path] = [tmp_path / name for name in names]
    for copy in own[tmp_path / "data"]:
        shutil.copytree(data, copy)
    for output in own[tmp_path / "output"]:
        output.mkdir()
    return own


def run_on_two_hosts(directories, bert_config, *, ranks_per_host, check=True):
    data, output_dir = directories
    with Hosts(2, private=directories) as hosts:
        return hosts.run(
            program(data, bert_config, output_dir, ranks=sum(ranks_per_host)),
            ranks_per_host=ranks_per_host,
            environment=environment(),
            check=check,
        )


@pytest.mark.exhaustive
def test_hosts_with_their_own_copies(alone, directories, bert_config):
    run_on_two_hosts(directories, bert_config, ranks_per_host=[2, 2])
    shared_data, shared_output = directories
    assert not [*shared_data.iterdir(), *shared_output.iterdir()], "only the hosts' own were used"
    first, second = directories[shared_output]
    assert_same_run(first, alone)
    assert not list(second.iterdir()), "rank 0 alone writes"


@pytest.mark.exhaustive
def test_each_host_prepares_itself_and_copies_the_records_once(alone, data, bert_config, tmp_path):
    local = tmp_path / "local"
    disks = [tmp_path / "disk0", tmp_path / "disk1"]
    for directory in (local, *disks):
        directory.mkdir()
    command = [
        *program(data, bert_config, tmp_path / "out", ranks=4),
        f"--before_training=echo prepared >> {local}/calls",
        f"--local_cache_dir={local}/cache",
    ]
    with Hosts(2, private={local: disks}) as hosts:
        done = hosts.run(command, ranks_per_host=[2, 2], environment=environment())
    assert_same_run(tmp_path / "out", alone)
    for number, disk in enumerate(disks):
        assert (disk / "calls").read_text() == "prepared\n"
        (copies,) = (disk / "cache").glob("records-*")
        originals = [
            path
            for part in ("train", "heldout")
            for path in sorted((data / "records" / part).glob("*.tfrecord"))
        ]
        copied = sorted(copies.glob("*.tfrecord"))
        assert [path.read_bytes() for path in copied] == [path.read_bytes() for path in originals]
        assert f"host host{number} reads copies of the records, copied now: " in done.stdout
    assert not list(local.iterdir())


@pytest.mark.exhaustive
def test_a_host_with_another_copy_is_named(directories, bert_config, data):
    """One host has the held-out data where the other has those to train on."""
    copy = directories[next(iter(directories))][1] / "records"
    shutil.rmtree(copy / "train")
    shutil.copytree(copy / "heldout", copy / "train")
    done = run_on_two_hosts(directories, bert_config, ranks_per_host=[1, 1], check=False)
    assert done.returncode != 0
    assert "rank 1 on host host1" in done.stderr
    assert "training data" in done.stderr
    assert "Traceback" not in done.stderr
