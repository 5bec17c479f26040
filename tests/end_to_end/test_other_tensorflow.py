"""A run that was begun with one TensorFlow and is resumed with another."""

import json
import shutil
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from tests.helpers.programs import ROOT, run
from tests.helpers.tensors import variables_of


def other_python():
    """The interpreter of an environment of this project with another TensorFlow, or None."""
    for stamp in sorted(ROOT.glob(".venv*/.done-environment.json")):
        facts = json.loads(stamp.read_text())["key"]
        release = facts["TensorFlow"] if isinstance(facts, dict) else ""
        is_complete = stamp.with_name(".done-packages.json").is_file()
        if release and is_complete and not tf.version.VERSION.startswith(f"{release}."):
            return str(stamp.parent / "bin" / "python")
    return None


OTHER = other_python()
pytestmark = [
    pytest.mark.each_tensorflow,
    pytest.mark.skipif(
        OTHER is None,
        reason="there is no environment of another TensorFlow: make setup TENSORFLOW=... VENV=...",
    ),
]

# Restores all that a checkpoint has as trainings do, and saves what it became.
LOAD_AND_SAVE = """
import sys
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
known = tf.train.load_checkpoint(sys.argv[1])
types = known.get_variable_to_dtype_map()
for name, shape in known.get_variable_to_shape_map().items():
    tf.get_variable(name, shape, types[name], tf.zeros_initializer())
saver = tf.train.Saver()
with tf.Session() as session:
    saver.restore(session, sys.argv[1])
    saver.save(session, sys.argv[2], write_meta_graph=False)
"""


def train(python, flags, output_dir):
    words = [*flags, f"--output_dir={output_dir}", "--do_train", "--do_eval", "--deterministic"]
    script = ("run_pretraining.py", *words, "--save_checkpoints_steps=3")
    return run(*script, fresh=True, python=python)


@pytest.mark.parametrize(
    ("first", "second"), [(sys.executable, OTHER), (OTHER, sys.executable)], ids=["to", "from"]
)
def test_a_run_is_resumed_with_another_tensorflow(first, second, flags, tmp_path):
    train(first, flags, tmp_path / "whole")
    middle = tmp_path / "whole" / "model.ckpt-3"
    run("-c", LOAD_AND_SAVE, middle, tmp_path / "loaded", fresh=True, python=second)
    saved, loaded = variables_of(middle), variables_of(tmp_path / "loaded")
    assert any("adam_m" in name for name in saved)
    assert saved.keys() == loaded.keys()
    for name, value in saved.items():
        np.testing.assert_array_equal(loaded[name], value, err_msg=name)

    resumed = tmp_path / "resumed"
    shutil.copytree(tmp_path / "whole", resumed, ignore=shutil.ignore_patterns("*ckpt-6*", "eval*"))
    (resumed / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    done = train(second, flags, resumed)
    assert "step 4/6" in done.stdout
    assert "step 3/6" not in done.stdout
    expected, found = (variables_of(d / "model.ckpt-6") for d in (tmp_path / "whole", resumed))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=2e-5, err_msg=name)
    losses = [json.loads((d / "eval_results.json").read_text())["loss"] for d in
              (tmp_path / "whole", resumed)]  # fmt: skip
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
