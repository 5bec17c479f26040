"""TensorFlow's errors for bad files and lack of space become one sentence that names them."""

from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.checkpoint.tensorflow_file import explained_reading, write_checkpoint
from bert_tf.model.variables import create_count
from bert_tf.train.job import InitialWeights, RunModel
from bert_tf.train.start_point import ResumingSaver
from bert_tf.train.trainer import _explained_errors
from bert_tf.update.train_op import SKIPPED_UPDATES
from bert_tf.util.errors import UserError
from tests.helpers.files import no_room
from tests.helpers.jobs import begun, job_of

WEIGHT = np.arange(5000, dtype=np.float32)


def job_from(init_checkpoint, output_dir):
    settings = SimpleNamespace(output_dir=output_dir)
    model = RunModel(None, None, initial=InitialWeights(init_checkpoint))
    return job_of(None, run=begun(settings=settings), model=model)


def write(path):
    path.parent.mkdir()
    write_checkpoint(str(path), {"weight": WEIGHT})
    return path


def damage(checkpoint, how):
    [data] = checkpoint.parent.glob(f"{checkpoint.name}.data-*")
    index = checkpoint.with_name(f"{checkpoint.name}.index")
    if how == "cut":
        data.write_bytes(data.read_bytes()[:1000])
    else:
        path = data if how == "flipped data" else index
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0xFF
        path.write_bytes(content)


def restore(checkpoint):
    with tf.Graph().as_default(), tf.Session() as session:
        saver = tf.train.Saver([tf.get_variable("weight", WEIGHT.shape)])
        saver.restore(session, str(checkpoint))


def initialise(checkpoint):
    with tf.Graph().as_default(), tf.Session() as session:
        weight = tf.get_variable("weight", WEIGHT.shape)
        tf.train.init_from_checkpoint(str(checkpoint), {"weight": weight})
        session.run(weight.initializer)


DAMAGES = [
    ("cut", "Read less bytes than requested"),
    ("flipped data", "Checksum does not match"),
    ("flipped index", "checksum mismatch"),
]


@pytest.mark.parametrize(("how", "reason"), DAMAGES)
def test_a_damaged_checkpoint_to_resume_from(tmp_path, how, reason):
    checkpoint = write(tmp_path / "out" / "model.ckpt-3")
    (tmp_path / "out" / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-3"\n')
    job = job_from("elsewhere", tmp_path / "out")
    damage(checkpoint, how)
    with pytest.raises(UserError) as error, _explained_errors(job):
        restore(checkpoint)
    message = str(error.value)
    assert message.startswith(f"checkpoint {checkpoint} cannot be read (")
    assert reason in message
    assert f"list an older one in {tmp_path / 'out' / 'checkpoint'}" in message
    assert "\n" not in message


@pytest.mark.parametrize(("how", "reason"), DAMAGES[:2])
def test_a_damaged_checkpoint_to_start_from(tmp_path, how, reason):
    checkpoint = write(tmp_path / "from" / "model.ckpt")
    job = job_from(str(checkpoint), tmp_path / "out")
    damage(checkpoint, how)
    for explained in (_explained_errors(job), explained_reading(checkpoint)):
        with pytest.raises(UserError) as error, explained:
            initialise(checkpoint)
        assert str(error.value).startswith(f"checkpoint {checkpoint} cannot be read (")
        assert reason in str(error.value)
        assert "copy it again" in str(error.value)


@pytest.mark.parametrize(("how", "reason"), DAMAGES)
def test_a_damaged_checkpoint_of_another_program(tmp_path, how, reason):
    """One without our counts is read variable by variable."""
    checkpoint = write(tmp_path / "from" / "model.ckpt")
    damage(checkpoint, how)
    with tf.Graph().as_default(), tf.Session() as session:
        variables = [tf.get_variable("weight", WEIGHT.shape), create_count(SKIPPED_UPDATES)]
        saver = ResumingSaver(variables, consumed=0)
        with pytest.raises(UserError, match=f"{checkpoint} cannot be read.*{reason}"):
            saver.restore(session, str(checkpoint))


def test_too_little_memory(tmp_path):
    job = job_from(None, tmp_path)
    # TensorFlow tries for 20 seconds before it says this.
    message = (
        "Graph execution error:\n\nOOM when allocating tensor with shape[9,9]\n\t [[{{node a}}]]"
    )
    with pytest.raises(UserError, match=r"memory \(OOM .* shape\[9,9\]\);"), _explained_errors(job):
        raise tf.errors.ResourceExhaustedError(None, None, message)


def test_no_room_for_a_copy_of_weights(tmp_path):
    with pytest.raises(OSError, match="File too large") as error, no_room(10_000):
        write_checkpoint(str(tmp_path / "x"), {"weight": WEIGHT})
    assert str(tmp_path) in error.value.strerror
