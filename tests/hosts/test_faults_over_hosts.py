"""A host that is cut off: the job ends in time."""

import subprocess
import sys

import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.programs import environment
from tests.helpers.small_pretraining import (
    flags_of_a_short_run,
    write_bert_config,
)
from tests.hosts.program_output import LIMIT, Output
from tools.hosts import Hosts

pytestmark = pytest.mark.parallel

TIMEOUT = 10  # seconds without a word
STEPS = 150


@pytest.fixture
def program(data, tmp_path):
    """A run that is long enough to be met at its work."""
    write_bert_config(tmp_path / "bert_config.json")
    flags = flags_of_a_short_run(data, tmp_path / "bert_config.json")
    flags += ["--do_train", "--horovod", f"--output_dir={tmp_path / 'out'}"]
    flags += ["--scale_steps_by_ranks=false", f"--num_train_steps={STEPS}"]
    flags += ["--global_batch_size=8", f"--rank_timeout={TIMEOUT}"]
    flags.remove("--train_batch_size=8")  # one rank takes twice what each of two does
    return [sys.executable, "run_pretraining.py", *flags]


def newest_step(tmp_path):
    path = tf.train.latest_checkpoint(str(tmp_path / "out"))
    return int(tf.train.load_checkpoint(path).get_tensor(tf.GraphKeys.GLOBAL_STEP))


@pytest.mark.exhaustive
def test_a_link_that_is_cut_ends_the_job(program, tmp_path):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Hosts(2) as hosts:
        process = hosts.start(program, ranks_per_host=[1, 1], environment=environment(), **pipes)
        output = Output(process)
        output.wait_for("^step 4/")
        hosts.cut(1)
        # mpirun alone would wait for host1 for ever.
        assert process.wait(LIMIT) != 0
        output.wait_for("^error: ")
    (sentence,) = output.matching("^error: ")
    assert sentence.startswith("error: no sign of life from rank 1 on host host1 for 10 seconds")
    assert sentence.endswith(", which is intact.")
    assert newest_step(tmp_path) >= 3
