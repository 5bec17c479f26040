"""Two sources of records on two ranks, and on one: the same updates."""

import json

import numpy as np
import pytest

from tests.helpers.programs import mpirun, requires_horovod
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import CONFIG, P, S, write_records

pytestmark = [requires_horovod, pytest.mark.parallel]


def flags_of(directory, output_dir, *, ranks, steps):
    return [
        "run_pretraining.py",
        f"--input_file={directory}/own:0.75,{directory}/general:0.25",
        f"--bert_config_file={directory}/bert_config.json",
        f"--output_dir={output_dir}",
        f"--max_seq_length={S}",
        f"--max_predictions_per_seq={P}",
        "--do_train",
        f"--train_batch_size={4 // ranks}",
        "--num_train_steps=6",
        f"--stop_after_steps={steps}",
        "--num_warmup_steps=1",
        "--learning_rate=1e-3",
        "--scale_steps_by_ranks=false",
        "--precision=fp32",
        "--num_threads=1",
        *(["--horovod"] if ranks > 1 else []),
    ]


@pytest.mark.exhaustive
def test_two_ranks_make_the_updates_of_one(tmp_path):
    """Also a run that is resumed on another number of ranks; sums differ by rounding."""
    (tmp_path / "bert_config.json").write_text(json.dumps(CONFIG.to_dict()))
    for name in ("own", "general"):
        write_records(tmp_path / name)
    starts = {"one": [(1, 6)], "two": [(2, 6)], "both": [(2, 3), (1, 6)]}
    for name, parts in starts.items():
        for ranks, steps in parts:
            mpirun(ranks, *flags_of(tmp_path, tmp_path / name, ranks=ranks, steps=steps))
    ledgers = [json.loads((tmp_path / name / "run.json").read_text())["ledger"] for name in starts]
    for ledger in ledgers:
        assert ledger["source_1"] == {**ledger["source_1"], "sequences": 18, "epochs": 1.8}
        assert ledger["source_2"] == {**ledger["source_2"], "sequences": 6, "epochs": 0.6}
    expected = variables_of(tmp_path / "one/model.ckpt-6")
    for name in ("two", "both"):
        found = variables_of(tmp_path / name / "model.ckpt-6")
        assert found.keys() == expected.keys()
        for variable, value in expected.items():
            if not variable.endswith("attention/self/key/bias"):  # its gradient is zero in theory
                np.testing.assert_allclose(
                    found[variable], value, rtol=2e-3, atol=2e-5, err_msg=f"{name}: {variable}"
                )
