"""NVIDIA's two-phase LAMB recipe: its script finds the first phase's checkpoint for the second."""

import json

import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.small_pretraining import GEOMETRY, shared_data, write_bert_config

pytestmark = [requires_horovod, pytest.mark.parallel, pytest.mark.exhaustive]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return shared_data(tmp_path_factory)


def test_the_second_phase_starts_where_the_script_expects_the_first_to_end(data, tmp_path):
    """@NVIDIA/DeepLearningExamples, scripts/run_pretraining_lamb_phase1.sh and 2, on two ranks.

    The first phase is 9 / 10 of the steps, on any number of ranks; the second tests for its .meta.
    """
    write_bert_config(tmp_path / "bert_config.json")
    common = [
        *(f"--input_files_dir={data}/records/train", f"--eval_files_dir={data}/records/heldout"),
        *(f"--bert_config_file={tmp_path}/bert_config.json", "--do_train=True", "--do_eval=True"),
        *(*GEOMETRY, "--eval_batch_size=8", "--save_checkpoints_steps=100"),
        *("--noamp", "--nouse_xla", "--allreduce_post_accumulation=True", "--horovod"),
        *("--num_warmup_steps=1", "--learning_rate=1e-3", "--train_batch_size=2"),
    ]
    steps = 10 * 9 // 10
    first = [f"--output_dir={tmp_path}/phase_1", f"--num_train_steps={steps}"]
    mpirun(2, "run_pretraining.py", *common, *first, "--num_accumulation_steps=2")
    checkpoint = tmp_path / "phase_1" / f"model.ckpt-{steps}"
    assert checkpoint.with_name(f"{checkpoint.name}.meta").is_file()
    second = [f"--init_checkpoint={checkpoint}", f"--output_dir={tmp_path}/phase_2"]
    done = mpirun(2, "run_pretraining.py", *common, *second, "--num_train_steps=2")
    assert f"{checkpoint}: " in done.stdout
    assert tf.train.latest_checkpoint(str(tmp_path / "phase_2")).endswith("model.ckpt-2")
    for phase, last_step in (("phase_1", steps), ("phase_2", 2)):
        ledger = json.loads((tmp_path / phase / "run.json").read_text())["ledger"]
        assert ledger["optimizer"]["name"] == "lamb"
        assert ledger["steps"]["last_step"] == last_step
        assert ledger["learning_rate"]["peak"] == pytest.approx(2e-3), "times the ranks"
