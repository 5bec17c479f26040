"""What a run says about compilation, and when."""

import tensorflow.compat.v1 as tf

from bert_tf.model.compilation import compiled
from bert_tf.train.hooks import CompilationReport
from bert_tf.train.summary import WarmUp


class Log:
    """Keeps the lines."""

    def __init__(self):
        self.lines = []

    def message(self, text):
        self.lines.append(text)


def report(updates, *, functions=2):
    """The lines and entries after each update of (shape, seconds), and at the end."""
    warm_up, log, entries, seen = WarmUp(), Log(), [], []
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        outputs = [
            compiled(lambda: tf.random.stateless_uniform([2], [1, 2]))() for _ in range(functions)
        ]
        hook = CompilationReport(warm_up, log, entries.append)
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for shape, seconds in updates:
                hook.before_run(None)
                warm_up.note(shape, seconds)
                session.run(outputs)
                seen.append((len(log.lines), len(entries)))
    return log.lines, entries, seen


def test_compilation_is_announced_and_its_seconds_said_once():
    lines, entries, seen = report([((8,), 5.0), ((8,), 1.0), ((8,), 1.0)])
    assert "XLA compiles 2 functions of an update" in lines[0]
    assert "1 batch shape took 5.0 s" in lines[-1]
    assert entries == [{"xla_functions": 2, "xla_compile_seconds": 5.0, "xla_shapes": 1}]
    assert len({count for count, _ in seen}) == 1


def test_further_shapes_are_reported_at_the_end():
    lines, entries, _ = report([((8,), 5.0), ((8,), 1.0), ((9,), 3.0), ((9,), 1.0)])
    assert "2 batch shapes took 8.0 s" in lines[-1]
    assert [entry["xla_shapes"] for entry in entries] == [1, 2]
