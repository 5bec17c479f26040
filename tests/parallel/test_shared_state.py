"""An optimizer's slots shared out over ranks: checkpoints of the real program, and its failures.

That updates are the same is compared in test_equivalence.py.
"""

import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers import rounding
from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.small_pretraining import (
    flags_of_a_short_run,
    shared_data,
    write_bert_config,
)
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import S
from tests.parallel.shared_state_program import GLOBAL_BATCH
from tests.parallel.test_faults import assert_lost, run_faulty

pytestmark = [
    requires_horovod,
    pytest.mark.parallel,
    pytest.mark.exhaustive,
    pytest.mark.timeout(1800),
]

SCRIPT = "run_pretraining.py"
PROGRAM = "tests/parallel/shared_state_program.py"
SHARED = "--shard_optimizer_state"
# Gradients that are zero in theory, of which Adam makes steps of any size (test_equivalence.py).
NOISE = "attention/self/key/bias"
# A gradient passes through some 16 products; the longest sums over the tokens of a global batch.
OF_GRADIENTS = rounding.of_products(16, GLOBAL_BATCH * S)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shared_data(tmp_path_factory)


@pytest.fixture
def flags(data, tmp_path):
    write_bert_config(tmp_path / "bert_config.json")
    return [
        *flags_of_a_short_run(data, tmp_path / "bert_config.json"),
        *("--do_train", "--scale_steps_by_ranks=false"),
    ]


def train(ranks, directory, *runs):
    return mpirun(ranks, PROGRAM, directory, *runs)


def newest(directory):
    return variables_of(tf.train.latest_checkpoint(str(directory)))


def assert_same_names_and_shapes(found, expected):
    shapes = [{name: v.shape for name, v in values.items()} for values in (found, expected)]
    assert shapes[0] == shapes[1]
    assert any(name.endswith("/adam_v") for name in found)


def in_rows(values):
    """All weights, and all slots of each name, in a row."""
    rows = {}
    for name, value in sorted(values.items()):
        if NOISE not in name and value.ndim:  # counts are scalars
            last = name.rpartition("/")[2]
            kind = last if last in ("adam_m", "adam_v", "muon_m") else "weights"
            rows.setdefault(kind, []).append(value.ravel())
    return {kind: np.concatenate(parts) for kind, parts in rows.items()}


def test_a_run_goes_on_with_any_number_of_ranks_with_and_without(tmp_path):
    """Two ranks, then one, then three: the same weights and slots as if none of them shared."""
    optimizers = ("adam", "muon")
    for ranks, steps in ((2, 2), (1, 4), (3, 6)):
        shared = "shared" if ranks > 1 else "plain"
        runs = [f"{name}:{shared}:{steps}:{name}" for name in optimizers]
        runs += [f"{name}-plain:plain:{steps}:{name}" for name in optimizers]
        done = train(ranks, tmp_path, *runs)
        assert done.stdout.count(f"(step {steps - 2})") == (len(runs) if steps > 2 else 0)
        assert done.stdout.count(f"state_shared_out=over {ranks} ranks") == 2 * (ranks > 1)
    for optimizer in optimizers:
        shared, plain = (newest(tmp_path / name) for name in (optimizer, f"{optimizer}-plain"))
        assert shared["global_step"] == 6
        assert_same_names_and_shapes(shared, plain)
        rows = in_rows(shared), in_rows(plain)
        assert len(rows[0]) == len(rows[1]) == (3 if optimizer == "adam" else 4)
        for kind, expected in rows[1].items():
            bound = rounding.of_way(OF_GRADIENTS, len(expected)) * np.linalg.norm(expected)
            assert np.linalg.norm(rows[0][kind] - expected) <= bound, kind


def test_interrupted_and_resumed_it_ends_in_the_same_bits(tmp_path):
    train(2, tmp_path, "whole:shared:6:lamb", "parts:shared:3:lamb", "parts:shared:6:lamb")
    whole, resumed = newest(tmp_path / "whole"), newest(tmp_path / "parts")
    assert whole["global_step"] == 6
    assert_same_names_and_shapes(resumed, whole)
    for name, expected in whole.items():
        np.testing.assert_array_equal(resumed[name], expected, err_msg=name)


def test_a_rank_that_dies_while_slots_are_gathered(flags, tmp_path):
    """The checkpoint before is intact, and nothing is left that a start would stumble over."""
    flags = [*flags, "--horovod", SHARED, f"--output_dir={tmp_path / 'out'}", "--rank_timeout=10"]
    done = run_faulty(tmp_path, flags, "killed while sending", 1)
    assert_lost(done, tmp_path, "the process of rank 1 on host .* ended", status=128 + 9)
    assert "cannot write checkpoint" not in done.stderr
    assert {path.suffix for path in (tmp_path / "out").glob("model.ckpt-6*")} <= {".meta"}
    mpirun(2, SCRIPT, *flags)
    assert int(newest(tmp_path / "out")["global_step"]) == 6


def test_the_best_checkpoint_and_a_stop(flags, tmp_path):
    """Evaluations on the way, a copy of the best weights, and a stop that saves what was done."""
    flags = [*flags, "--horovod", SHARED, "--optimizer_type=muon", f"--output_dir={tmp_path}/out"]
    evaluated = [*flags, "--do_eval", "--eval_every_steps=2", "--save_checkpoints_steps=2"]
    mpirun(2, SCRIPT, *evaluated)
    weights = newest(tmp_path / "out" / "best")
    assert not any(name.endswith(("adam_m", "adam_v", "muon_m")) for name in weights)
    longer = [*flags, "--num_train_steps=500", "--rank_timeout=10"]
    done = run_faulty(tmp_path, [*longer, f"--output_dir={tmp_path}/stopped"], "asked", 1)
    assert done.returncode == 128 + 10
    stopped = newest(tmp_path / "stopped")
    assert 3 < int(stopped["global_step"]) < 500
    assert_same_names_and_shapes(stopped, newest(tmp_path / "out"))


@pytest.mark.parametrize("optimizer", ["lamb", "muon"])
def test_norms_of_layers_are_those_without(tmp_path, flags, optimizer):
    """Each rank has a part of a gradient, or the whole one where a matrix has an owner."""
    logs = []
    for name, shared in (("plain", []), ("shared", [SHARED])):
        out = tmp_path / name
        given = [f"--optimizer_type={optimizer}", "--layer_summary_steps=2", f"--output_dir={out}"]
        mpirun(2, SCRIPT, *flags, "--horovod", *given, *shared)
        lines = (out / "layer_log.jsonl").read_text().splitlines()
        logs.append([json.loads(line)["variables"] for line in lines])
    plain, shared = logs
    assert len(plain) == len(shared) > 1
    for before, now in zip(plain, shared):
        assert before.keys() == now.keys()
        for variable in before:
            if NOISE not in variable:
                assert now[variable] == pytest.approx(before[variable], rel=1e-4, nan_ok=True)
