"""Distillation over two hosts, each of which adds up 50 micro batches for an update."""

import json
import sys

import numpy as np
import pytest

from tests.helpers.programs import environment, run
from tests.helpers.small_pretraining import flags_of_a_short_run
from tests.helpers.tensors import variables_of
from tests.helpers.timeline import read_timeline, rounds
from tools.hosts import Hosts

pytestmark = pytest.mark.parallel

SCRIPT = "run_distillation.py"
UPDATES, RATE = 2, 1e-3


@pytest.fixture(scope="module")
def flags(data, bert_config, tmp_path_factory):
    """Two updates of 100 sequences for one layer, by a teacher of two."""
    teacher = tmp_path_factory.mktemp("teacher")
    flags = flags_of_a_short_run(data, bert_config)
    changes = ["--num_hidden_layers=2", "--num_train_steps=2", "--nsp=false"]
    run("run_pretraining.py", *flags, *changes, "--do_train", f"--output_dir={teacher}")
    return [
        *flags,
        f"--teacher_checkpoint={teacher}",
        f"--num_train_steps={UPDATES}",
        "--num_warmup_steps=0",
        f"--learning_rate={RATE}",
        "--do_train",
    ]


@pytest.fixture(scope="module")
def alone(flags, tmp_path_factory):
    """The output of one process."""
    output_dir = tmp_path_factory.mktemp("alone")
    batch = ["--train_batch_size=20", "--num_accumulation_steps=5"]
    run(SCRIPT, *flags, *batch, f"--output_dir={output_dir}")
    return output_dir


@pytest.fixture(scope="module")
def over_hosts(flags, tmp_path_factory):
    """The output of two ranks on two hosts, and their timeline."""
    directory = tmp_path_factory.mktemp("over_hosts")
    output_dir, timeline = directory / "model", directory / "timeline.json"
    batch = ["--train_batch_size=1", "--num_accumulation_steps=50"]
    scaling = ["--horovod", "--scale_steps_by_ranks=false"]
    command = [sys.executable, SCRIPT, *flags, *batch, *scaling, f"--output_dir={output_dir}"]
    with Hosts(2, mbit_per_second=1000) as hosts:
        hosts.run(
            command,
            ranks_per_host=[1, 1],
            environment={**environment(), "HOROVOD_TIMELINE": str(timeline)},
        )
    return output_dir, read_timeline(timeline)


@pytest.mark.exhaustive
def test_the_student_is_that_of_one_process(alone, over_hosts):
    output_dir, _ = over_hosts
    ledgers = [
        json.loads((directory / "run.json").read_text())["ledger"]
        for directory in (alone, output_dir)
    ]
    assert [ledger["batch"]["global_batch"] for ledger in ledgers] == [100, 100]
    assert ledgers[1]["batch"]["accumulation_steps"] == 50
    assert ledgers[0]["distillation"] == ledgers[1]["distillation"]
    one, two = (
        [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
        for directory in (alone, output_dir)
    )
    assert len(one) == len(two) == UPDATES
    for expected, found in zip(one, two):
        shown = {name for name in expected if name.startswith(("soft", "cosine", "masked"))}
        assert "soft_targets_divergence" in shown
        for name in (*shown, "loss"):
            assert found[name] == pytest.approx(expected[name], rel=1e-5), name
    expected, found = (variables_of(d / f"model.ckpt-{UPDATES}") for d in (alone, output_dir))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        # As in tests/parallel/test_equivalence.py.
        tolerance = RATE * UPDATES if "self/key/bias" in name else 1e-5
        np.testing.assert_allclose(found[name], value, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.exhaustive
def test_gradients_travel_once_an_update(over_hosts):
    output_dir, timeline = over_hosts
    gradients = {n: found for n, found in timeline.items() if "SummedGradients" in n}
    trained = [
        n for n in variables_of(output_dir / f"model.ckpt-{UPDATES}") if n.endswith("adam_m")
    ]
    assert len(gradients) == len(trained)
    assert {len(found["ALLREDUCE"]) for found in gradients.values()} == {UPDATES}
    assert rounds(s for found in gradients.values() for s in found["MPI_ALLREDUCE"]) == UPDATES
    assert not any("teacher" in name for name in gradients)


@pytest.mark.exhaustive
def test_the_teacher_is_sent_once(over_hosts):
    _, timeline = over_hosts
    counts = {n: len(found["BROADCAST"]) for n, found in timeline.items() if "teacher" in n}
    assert set(counts.values()) == {1}, counts
    assert len([name for name in counts if "layer_1" in name]) == 16
