"""The Estimator against its contract and, if TensorFlow has one, against ``tf.estimator``."""

import functools
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
from google.protobuf import text_format

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from bert_tf.compat.estimator import choice
from bert_tf.compat.estimator import estimator as ours
from bert_tf.util.errors import UserError

pytestmark = pytest.mark.each_tensorflow

THEIRS = getattr(tf, "estimator", None)
needs_theirs = pytest.mark.skipif(THEIRS is None, reason="this TensorFlow has no tf.estimator")
BOTH = [
    pytest.param(ours, id="ours"),
    pytest.param(THEIRS, id="tf", marks=[needs_theirs, pytest.mark.slow]),
]
each = pytest.mark.parametrize("api", BOTH)

X = np.arange(24, dtype=np.float32).reshape(12, 2) / 10
Y = X @ np.array([[1.0], [-2.0]], np.float32) + 0.5


def batches(size=4):
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).batch(size)


def random_batches():
    """Without seeds, so that it depends on the graph's seed and on operations created before."""
    return tf.data.Dataset.from_tensor_slices(({"x": X}, Y)).shuffle(12).repeat().batch(4)


def linear(api, **spec_functions):
    """A model_fn; ``spec_functions`` make further fields of its spec, called in its graph."""

    def model_fn(features, labels, mode):
        weights = tf.get_variable("weights", [2, 1])
        bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
        y = features["x"] @ weights + bias
        fields = {name: function() for name, function in spec_functions.items()}
        if mode == api.ModeKeys.PREDICT:
            predictions = {"y": y, "double": 2 * y}
            return api.EstimatorSpec(mode, **{"predictions": predictions, **fields})
        dropped = tf.nn.dropout(y, rate=0.25) if mode == api.ModeKeys.TRAIN else y
        loss = tf.reduce_mean(tf.square(dropped - labels))
        optimizer = tf.train.MomentumOptimizer(0.1, 0.9)
        train_op = optimizer.minimize(loss, tf.train.get_global_step())
        metrics = {
            "mean_y": tf.metrics.mean(y),
            "of_each": tf.metrics.mean_tensor(tf.reduce_mean(y, axis=0)),
        }
        return api.EstimatorSpec(
            mode, loss=loss, train_op=train_op, eval_metric_ops=metrics, **fields
        )

    return model_fn


# TensorFlow's summaries read the step beside the update that counts it; on one thread the order of
# the two is always the same.
QUICK = {
    "session_config": tf.ConfigProto(
        inter_op_parallelism_threads=1,
        intra_op_parallelism_threads=1,
        use_per_session_threads=True,
    ),
    "tf_random_seed": 5,
    "save_summary_steps": None,
    "log_step_count_steps": None,
    "checkpoint_save_graph_def": False,
}


def estimator(api, directory, *, model_fn=None, params=None, **config):
    config = {**QUICK, **config}
    return api.Estimator(
        model_fn or linear(api), str(directory), api.RunConfig(**config), params=params
    )


def arrays(directory):
    reader = tf.train.load_checkpoint(str(directory))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def assert_same_arrays(found, expected):
    assert set(found) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)


def file_names(directory):
    """Names in a directory, with those of events without time and process."""
    return sorted(re.sub(r"(tfevents)\..*", r"\1", name) for name in os.listdir(directory))


def operations(directory):
    """The operations of the graph that a training run wrote, in order."""
    text = (directory / "graph.pbtxt").read_text()
    return [(node.name, node.op) for node in text_format.Parse(text, tf.GraphDef()).node]


def events(directory):
    """(step, tag) of everything in the event files of a directory, in the order of writing."""
    tf.summary.FileWriterCache.clear()  # the writers write in the background
    found = []
    for path in sorted(Path(directory).glob("events.*")):
        for event in tf.train.summary_iterator(str(path)):
            kind = event.WhichOneof("what")
            tags = [v.tag for v in event.summary.value] or [kind]
            found += [(event.step, tag) for tag in tags]
    return found


class Recorder(tf.train.SessionRunHook):
    """Records its calls."""

    def __init__(self, name, record):
        self.name, self.record = name, record

    def begin(self):
        self.record.append((self.name, "begin"))

    def after_create_session(self, session, coord):
        self.record.append((self.name, "session"))

    def before_run(self, run_context):
        self.record.append((self.name, "before"))

    def after_run(self, run_context, run_values):
        self.record.append((self.name, "after"))

    def end(self, session):
        self.record.append((self.name, "end"))


class Listener(tf.train.CheckpointSaverListener):
    def __init__(self, record):
        self.record = record

    def begin(self):
        self.record.append("begin")

    def before_save(self, session, global_step_value):
        self.record.append(("before", global_step_value))

    def after_save(self, session, global_step_value):
        self.record.append(("after", global_step_value))

    def end(self, session, global_step_value):
        self.record.append(("end", global_step_value))


@pytest.fixture(scope="module")
def trained_by(tmp_path_factory):
    """A function from an implementation to the directory of seven updates by it."""

    @functools.cache
    def train(api):
        directory = tmp_path_factory.mktemp("seven")
        made = estimator(
            api,
            directory,
            save_checkpoints_steps=2,
            keep_checkpoint_max=3,
            log_step_count_steps=2,
            save_summary_steps=3,
            checkpoint_save_graph_def=True,
        )
        assert made.train(random_batches, max_steps=7) is made
        return directory

    return train


@each
def test_files_written_by_training(api, trained_by):
    directory = trained_by(api)
    trained = estimator(api, directory)
    names = ["bias", "bias/Momentum", "global_step", "weights", "weights/Momentum"]
    assert trained.get_variable_names() == names
    assert trained.get_variable_value("global_step") == 7
    assert trained.latest_checkpoint() == str(directory / "model.ckpt-7")
    listed = re.findall(
        r'all_model_checkpoint_paths: "(.*)"', (directory / "checkpoint").read_text()
    )
    assert listed == ["model.ckpt-4", "model.ckpt-6", "model.ckpt-7"]
    assert [step for step, tag in events(directory) if tag == "loss"] == [1, 4, 7]


@needs_theirs
def test_training_is_that_of_tf_estimator(trained_by):
    found, expected = trained_by(ours), trained_by(THEIRS)
    assert file_names(found) == file_names(expected)
    assert (found / "checkpoint").read_text() == (expected / "checkpoint").read_text()
    assert events(found) == events(expected)
    for step in (4, 6, 7):
        of_step = f"model.ckpt-{step}"
        assert_same_arrays(arrays(found / of_step), arrays(expected / of_step))
    assert operations(found) == operations(expected)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"save_checkpoints_steps": None, "save_summary_steps": None, "log_step_count_steps": None},
        {"checkpoint_save_graph_def": False, "save_checkpoints_steps": 2, "save_summary_steps": 0},
    ],
)
@needs_theirs
def test_files_are_written_at_the_same_steps_as_by_tf_estimator(tmp_path, changes):
    for name, api in {"ours": ours, "theirs": THEIRS}.items():
        config = api.RunConfig(tf_random_seed=5, **changes)
        api.Estimator(linear(api), str(tmp_path / name), config).train(batches)
    found, expected = tmp_path / "ours", tmp_path / "theirs"
    assert found.is_dir() == expected.is_dir()
    if expected.is_dir():
        assert file_names(found) == file_names(expected)
        assert events(found) == events(expected)


@pytest.fixture(scope="module")
def calls_by(tmp_path_factory):
    """A function from an implementation to its calls of hooks in all modes and of a listener.

    Calls in each mode follow its name.
    """

    @functools.cache
    def record(api):
        calls, saves = [], []

        def hook(name):
            return Recorder(name, calls)

        model_fn = linear(
            api,
            training_hooks=lambda: [hook("training 1"), hook("training 2")],
            training_chief_hooks=lambda: [hook("chief")],
            evaluation_hooks=lambda: (hook("evaluation"),),
            prediction_hooks=lambda: [hook("prediction")],
        )
        directory = tmp_path_factory.mktemp("calls")
        made = estimator(api, directory, model_fn=model_fn, save_checkpoints_steps=2)
        given = [hook("given 1"), hook("given 2")]
        made.train(batches, hooks=iter(given), steps=2, saving_listeners=[Listener(saves)])
        calls.append("evaluate")
        made.evaluate(batches, hooks=given, steps=2)
        calls.append("predict")
        list(made.predict(batches, hooks=given))
        return calls, saves

    return record


@each
def test_hooks_are_called_in_order(api, calls_by):
    calls, saves = calls_by(api)
    training = calls[: calls.index("evaluate")]
    order = ["chief", "given 1", "given 2", "training 1", "training 2"]
    assert training == [
        (name, event)
        for event in ("begin", "session", "before", "after", "before", "after", "end")
        for name in order
    ]
    evaluating = calls[calls.index("evaluate") + 1 : calls.index("predict")]
    assert evaluating[:3] == [(name, "begin") for name in ("given 1", "given 2", "evaluation")]
    assert evaluating.count(("given 1", "after")) == 2
    predicting = calls[calls.index("predict") + 1 :]
    assert predicting[:3] == [(name, "begin") for name in ("given 1", "given 2", "prediction")]
    at_start, at_end = [("before", 0), ("after", 0)], [("before", 2), ("after", 2)]
    assert saves == ["begin", *at_start, *at_end, ("end", 2)]


@needs_theirs
def test_hooks_are_called_as_by_tf_estimator(calls_by):
    assert calls_by(ours) == calls_by(THEIRS)


@each
def test_training_resumes_where_it_stopped(api, tmp_path):
    trained = estimator(api, tmp_path).train(batches, max_steps=100)
    assert trained.get_variable_value("global_step") == 3  # the input has ended
    assert trained.train(batches, steps=1).get_variable_value("global_step") == 4
    again = estimator(api, tmp_path).train(batches, max_steps=5)
    assert again.get_variable_value("global_step") == 5
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}

    def never():
        pytest.fail("the input is built")

    assert again.train(never, max_steps=5) is again
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before


@each
def test_checkpoints_of_either_can_be_resumed(api, tmp_path):
    other = THEIRS if api is ours and THEIRS else ours
    estimator(other, tmp_path).train(batches, steps=2)
    before = arrays(tmp_path)
    trained = estimator(api, tmp_path, model_fn=linear(api, scaffold=tf.train.Scaffold))
    recorded = []
    trained.train(batches, steps=1, saving_listeners=[Listener(recorded)])
    assert recorded[1] == ("before", 2)
    assert trained.get_variable_value("global_step") == before["global_step"] + 1


@each
def test_functions_get_the_arguments_that_they_name(api, tmp_path):
    got = {}

    def input_fn(params, mode, config):
        got["input"] = (params, mode, config.tf_random_seed, config.model_dir, config.is_chief)
        return {"x": tf.constant(X)}, tf.constant(Y)

    def model_fn(features, labels, mode, params, config):
        got["model"] = (params, mode, config.tf_random_seed)
        return linear(api)(features, labels, mode)

    made = estimator(api, tmp_path, model_fn=model_fn, params={"rate": 1})
    made.train(input_fn, steps=1)
    assert got == {
        "input": ({"rate": 1}, "train", 5, str(tmp_path), True),
        "model": ({"rate": 1}, "train", 5),
    }
    made.params["rate"] = 2
    assert made.params == {"rate": 1}


class Callable:
    def __init__(self, api):
        self.model_fn = linear(api)

    def __call__(self, features, labels, mode):
        return self.model_fn(features, labels, mode)

    def method(self, mode, features, labels):
        return self(features, labels, mode)


@each
def test_any_callable_is_a_model_fn(api, tmp_path):
    def with_settings(features, labels, mode, settings):
        assert settings == "bound"
        return linear(api)(features, labels, mode)

    functions = [
        Callable(api),
        Callable(api).method,
        functools.partial(with_settings, settings="bound"),
    ]
    for model_fn in functions:
        made = estimator(api, tmp_path, model_fn=model_fn)
        assert len(list(made.predict(functools.partial(batches, 6)))) == 12


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model's directory with two checkpoints, and expected values from numpy."""
    directory = tmp_path_factory.mktemp("trained")
    made = estimator(ours, directory, save_checkpoints_steps=2)
    made.train(random_batches, max_steps=4)
    weights, bias = made.get_variable_value("weights"), made.get_variable_value("bias")
    return directory, X @ weights + bias


@each
def test_predictions(api, trained):
    directory, y = trained
    made = estimator(api, directory)
    singles = list(made.predict(batches))
    assert [sorted(single) for single in singles] == [["double", "y"]] * 12
    np.testing.assert_allclose([single["y"] for single in singles], y, rtol=1e-5)
    assert singles[0]["y"].shape == (1,)
    whole = list(made.predict(batches, ["double"], yield_single_examples=False))
    assert [list(batch) for batch in whole] == [["double"]] * 3
    np.testing.assert_allclose(np.concatenate([b["double"] for b in whole]), 2 * y, rtol=1e-5)
    older = list(made.predict(batches, checkpoint_path=str(directory / "model.ckpt-2")))
    assert abs(older[0]["y"] - y[0]) > 1e-3
    plain = estimator(api, directory, model_fn=plain_prediction(api))
    assert [float(value) for value in plain.predict(lambda: tf.data.Dataset.range(3).batch(2))] == [
        0,
        2,
        4,
    ]


def plain_prediction(api):
    """The model_fn of a model without variables, names or labels."""

    def model_fn(features):
        return api.EstimatorSpec(api.ModeKeys.PREDICT, predictions=2 * features)

    return model_fn


@each
def test_predictions_of_an_untrained_model(api, tmp_path):
    assert len(list(estimator(api, tmp_path).predict(batches))) == 12


@each
def test_an_evaluation(api, trained, tmp_path):
    directory, y = trained
    made = estimator(api, directory)
    name = tmp_path.name
    results = made.evaluate(batches, name=name)
    assert list(results) == ["loss", "mean_y", "of_each", "global_step"]
    assert results["global_step"] == 4
    np.testing.assert_allclose(results["mean_y"], y.mean(), rtol=1e-5)
    np.testing.assert_allclose(results["loss"], np.square(y - Y).mean(), rtol=1e-5)
    written = events(made.eval_dir(name))
    assert [tag for step, tag in written if step == 4] == [
        "loss",
        "mean_y",
        "of_each",
        "checkpoint_path",
    ]
    assert Path(made.eval_dir(name)) == directory / f"eval_{name}"
    first = made.evaluate(batches, steps=1, checkpoint_path=str(directory / "model.ckpt-2"))
    assert first["global_step"] == 2


@needs_theirs
def test_an_evaluation_is_that_of_tf_estimator(trained):
    directory, _ = trained

    def scaffold():
        counter = tf.Variable(3.0, collections=[tf.GraphKeys.LOCAL_VARIABLES])
        return tf.train.Scaffold(local_init_op=counter.initializer)

    found, expected = (
        estimator(api, directory, model_fn=linear(api, scaffold=scaffold)).evaluate(
            batches, steps=2, name=name
        )
        for name, api in {"ours": ours, "theirs": THEIRS}.items()
    )
    assert list(found) == list(expected)
    assert_same_arrays(found, expected)
    values = []
    for name in ("ours", "theirs"):
        [path] = (directory / f"eval_{name}").glob("events.*")
        values.append(
            [
                (event.step, event.summary.SerializeToString())
                for event in tf.train.summary_iterator(str(path))
                if event.summary.value
            ]
        )
    assert values[0] == values[1]


def served(directory, **inputs):
    """Signatures of a SavedModel, and what the default one computes."""
    with tf.Graph().as_default(), tf.Session() as session:
        model = tf.saved_model.loader.load(session, ["serve"], os.fsdecode(directory))
        signature = model.signature_def["serving_default"]
        feed = {signature.inputs[name].name: value for name, value in inputs.items()}
        fetches = {name: info.name for name, info in signature.outputs.items()}
        return dict(model.signature_def), session.run(fetches, feed)


@each
def test_an_export(api, trained, tmp_path):
    directory, y = trained
    asset = tmp_path / "words.txt"
    asset.write_text("a")

    def receiver():
        half = tf.placeholder(tf.float32, [None, 2])
        return api.export.ServingInputReceiver({"x": 2 * half}, {"x": half})

    base = tmp_path / "exports"
    made = estimator(api, directory)
    target = made.export_saved_model(str(base), receiver, assets_extra={"in/w.txt": str(asset)})
    assert [os.fsencode(path) for path in base.iterdir()] == [target]
    version = Path(os.fsdecode(target))
    assert version.name.isdecimal()
    assert (version / "assets.extra" / "in" / "w.txt").read_text() == "a"
    signatures, found = served(target, x=X / 2)
    assert set(signatures) == {"serving_default"}
    np.testing.assert_allclose(found["y"], y, rtol=1e-5)
    np.testing.assert_allclose(found["double"], 2 * y, rtol=1e-5)


@each
def test_an_export_of_several_outputs(api, trained, tmp_path):
    directory, y = trained

    def outputs():
        y = tf.identity(tf.get_default_graph().get_tensor_by_name("add:0"))
        scores = tf.concat([y, -y], axis=1)
        return {
            "serving_default": api.export.PredictOutput(y),
            "classes": api.export.ClassificationOutput(scores=scores),
            "numbers": api.export.RegressionOutput(value=y),
        }

    made = estimator(api, directory, model_fn=linear(api, export_outputs=outputs))
    parse = api.export.build_parsing_serving_input_receiver_fn(
        {"x": tf.FixedLenFeature([2], tf.float32)}
    )
    target = made.export_saved_model(str(tmp_path / "parsing"), parse)
    features = tf.train.Features(
        feature={"x": tf.train.Feature(float_list=tf.train.FloatList(value=X[3]))}
    )
    example = tf.train.Example(features=features).SerializeToString()
    signatures, found = served(target, examples=[example])
    assert set(signatures) == {"serving_default", "classes", "numbers"}
    methods = {name: signature.method_name for name, signature in signatures.items()}
    assert methods["classes"] == "tensorflow/serving/classify"
    assert methods["numbers"] == "tensorflow/serving/regress"
    np.testing.assert_allclose(found["output"], y[3:4], rtol=1e-5)

    with tf.Graph().as_default():
        raw = api.export.build_raw_serving_input_receiver_fn({"x": tf.zeros([7, 2])})
    signatures, found = served(made.export_saved_model(str(tmp_path / "raw"), raw), x=X)
    assert set(signatures) == {"serving_default"}  # the others are fed examples
    np.testing.assert_allclose(found["output"], y, rtol=1e-5)


def spec(api, **fields):
    return lambda features, labels, mode: api.EstimatorSpec(mode, **fields)


def of_another_graph():
    with tf.Graph().as_default():
        return tf.constant(1.0)


MISUSES = {
    "both limits": (ValueError, "steps", lambda e, api: e.train(batches, steps=1, max_steps=1)),
    "no step": (ValueError, "steps", lambda e, api: e.train(batches, steps=0)),
    "hook": (TypeError, "Hook", lambda e, api: e.train(batches, hooks=[1])),
    "listener": (TypeError, "Listener", lambda e, api: e.train(batches, saving_listeners=[1])),
    "no saver": (
        ValueError,
        "saving_listeners",
        lambda e, api: estimator(api, e.model_dir, save_checkpoints_secs=None).train(
            batches, saving_listeners=[Listener([])]
        ),
    ),
    "three parts": (ValueError, "features", lambda e, api: e.train(lambda: (X, Y, Y))),
    "keys": (ValueError, "none", lambda e, api: next(e.predict(batches, ["none"]))),
    "keys of no names": (
        ValueError,
        "predict_keys",
        lambda e, api: next(
            estimator(api, e.model_dir, model_fn=plain_prediction(api)).predict(
                lambda: tf.data.Dataset.range(3), ["y"]
            )
        ),
    ),
    "unknown argument": (
        ValueError,
        "more",
        lambda e, api: api.Estimator(lambda features, more: None),
    ),
    "no features": (ValueError, "features", lambda e, api: api.Estimator(lambda labels: None)),
    "params": (
        ValueError,
        "params",
        lambda e, api: api.Estimator(lambda features: None, params={"a": 1}),
    ),
    "two directories": (
        ValueError,
        "model_dir",
        lambda e, api: api.Estimator(linear(api), "a", api.RunConfig(model_dir="b")),
    ),
    "not a RunConfig": (
        ValueError,
        "RunConfig",
        lambda e, api: api.Estimator(linear(api), config=3),
    ),
    "labels": (
        ValueError,
        "labels",
        lambda e, api: api.Estimator(lambda features: None, e.model_dir).train(batches),
    ),
    "not a spec": (
        ValueError,
        "EstimatorSpec",
        lambda e, api: api.Estimator(lambda features, labels: 3, e.model_dir).train(batches),
    ),
    "both intervals": (
        ValueError,
        "save_checkpoints_secs",
        lambda e, api: api.RunConfig(save_checkpoints_steps=1, save_checkpoints_secs=1),
    ),
    "negative": (
        ValueError,
        "keep_checkpoint_max",
        lambda e, api: api.RunConfig(keep_checkpoint_max=-1),
    ),
    "no directory": (ValueError, "model_dir", lambda e, api: api.RunConfig(model_dir="")),
    "untrained": (ValueError, "not|no", lambda e, api: e.get_variable_value("weights")),
    "untrained export": (
        ValueError,
        "train",
        lambda e, api: e.export_saved_model(e.model_dir, lambda: None),
    ),
    "loss": (ValueError, "loss", lambda e, api: spec(api, train_op=tf.no_op())(0, 0, "train")),
    "train_op": (
        ValueError,
        "train_op",
        lambda e, api: spec(api, loss=tf.zeros([]))(0, 0, "train"),
    ),
    "predictions": (ValueError, "predictions", lambda e, api: spec(api)(0, 0, "infer")),
    "loss of many": (
        ValueError,
        "scalar",
        lambda e, api: spec(api, loss=tf.zeros([3]))(0, 0, "eval"),
    ),
    "loss of Python": (TypeError, "loss", lambda e, api: spec(api, loss=1.0)(0, 0, "eval")),
    "other graph": (
        ValueError,
        "graph",
        lambda e, api: spec(api, predictions=of_another_graph())(0, 0, "infer"),
    ),
    "metric": (
        TypeError,
        "eval_metric_ops",
        lambda e, api: spec(api, loss=tf.zeros([]), eval_metric_ops={"a": tf.zeros([])})(
            0, 0, "eval"
        ),
    ),
    "hook of spec": (
        TypeError,
        "Hook",
        lambda e, api: spec(api, predictions=tf.zeros([]), prediction_hooks=[1])(0, 0, "infer"),
    ),
    "loss of another graph": (
        ValueError,
        "graph",
        lambda e, api: spec(api, loss=of_another_graph())(0, 0, "eval"),
    ),
    "train_op of another graph": (
        ValueError,
        "graph",
        lambda e, api: spec(api, loss=tf.zeros([]), train_op=of_another_graph().op)(0, 0, "train"),
    ),
    "metric of another graph": (
        ValueError,
        "graph",
        lambda e, api: spec(
            api, loss=tf.zeros([]), eval_metric_ops={"a": (of_another_graph(), tf.no_op())}
        )(0, 0, "eval"),
    ),
    "metrics without names": (
        TypeError,
        "eval_metric_ops",
        lambda e, api: spec(api, loss=tf.zeros([]), eval_metric_ops=[tf.zeros([])])(0, 0, "eval"),
    ),
    "sparse predictions": (
        TypeError,
        "predictions",
        lambda e, api: spec(api, predictions=tf.sparse.from_dense([1.0]))(0, 0, "infer"),
    ),
    "scaffold": (
        TypeError,
        "(?i)scaffold",
        lambda e, api: spec(api, predictions=tf.zeros([]), scaffold=1)(0, 0, "infer"),
    ),
    "another mode": (
        ValueError,
        "mode",
        lambda e, api: spec(api, predictions=tf.zeros([]))(0, 0, "infer")._replace(mode="eval"),
    ),
    "a feature of Python": (
        ValueError,
        "feature",
        lambda e, api: api.export.ServingInputReceiver(1.0, tf.zeros([])),
    ),
    "nothing to feed": (
        ValueError,
        "receiver_tensor",
        lambda e, api: api.export.ServingInputReceiver(tf.zeros([]), None),
    ),
    "no model_fn": (ValueError, "model_fn", lambda e, api: api.Estimator(None)),
    "hours": (
        ValueError,
        "keep_checkpoint_every_n_hours",
        lambda e, api: api.RunConfig(keep_checkpoint_every_n_hours=0),
    ),
    "unknown setting": (
        ValueError,
        "more",
        lambda e, api: api.RunConfig().replace(more=1),
    ),
    "metric named loss": (
        ValueError,
        "loss",
        lambda e, api: estimator(
            api,
            e.model_dir,
            model_fn=lambda features, labels, mode: api.EstimatorSpec(
                mode,
                loss=tf.reduce_sum(labels),
                eval_metric_ops={"loss": tf.metrics.mean(labels)},
            ),
        ).evaluate(batches),
    ),
}


@each
@pytest.mark.parametrize("misuse", MISUSES)
def test_misuse_is_rejected(api, tmp_path, misuse):
    error, words, call = MISUSES[misuse]
    with tf.Graph().as_default(), pytest.raises(error, match=words):
        call(estimator(api, tmp_path), api)


@each
def test_predictions_of_different_sizes_are_not_split(api, tmp_path):
    def model_fn(features):
        return api.EstimatorSpec("infer", {"a": features, "b": features[:1]})

    made = estimator(api, tmp_path, model_fn=model_fn)
    with pytest.raises(ValueError, match="of"):
        next(made.predict(lambda: tf.data.Dataset.range(4).batch(2)))


@each
def test_a_loss_that_is_not_a_number_ends_training(api, tmp_path):
    def model_fn(features, labels, mode):
        return api.EstimatorSpec(
            mode, loss=tf.log(-tf.ones([1])), train_op=tf.train.get_global_step().assign_add(1)
        )

    with pytest.raises(tf.train.NanLossDuringTrainingError):
        estimator(api, tmp_path, model_fn=model_fn).train(batches)


@each
def test_settings_of_a_run(api):
    config = api.RunConfig()
    assert (config.save_checkpoints_steps, config.save_checkpoints_secs) == (None, 600)
    assert (config.save_summary_steps, config.log_step_count_steps) == (100, 100)
    assert (config.keep_checkpoint_max, config.keep_checkpoint_every_n_hours) == (5, 10000)
    assert (config.is_chief, config.master, config.num_worker_replicas) == (True, "", 1)
    assert api.RunConfig(save_checkpoints_steps=3).save_checkpoints_secs is None
    changed = config.replace(save_checkpoints_steps=7, tf_random_seed=1)
    assert (changed.save_checkpoints_steps, changed.save_checkpoints_secs) == (7, None)
    assert (changed.tf_random_seed, config.tf_random_seed) == (1, None)
    assert api.RunConfig(model_dir=Path("a") / "b").model_dir == os.path.join("a", "b")


@each
def test_settings_of_sessions(api, tmp_path):
    made = api.Estimator(linear(api), str(tmp_path))
    rewriting = made.config.session_config.graph_options.rewrite_options
    assert made.config.session_config.allow_soft_placement
    assert rewriting.meta_optimizer_iterations == rewriting.ONE
    one = tf.ConfigProto(intra_op_parallelism_threads=1)
    made = api.Estimator(linear(api), str(tmp_path), api.RunConfig(session_config=one))
    assert made.config.session_config == one


@each
def test_without_a_directory_it_is_a_temporary_one(api):
    made = api.Estimator(linear(api))
    assert os.listdir(made.model_dir) == []
    os.rmdir(made.model_dir)


@pytest.mark.parametrize("name", ["train_distribute", "eval_distribute", "protocol"])
def test_unsupported_settings_are_rejected(name):
    with pytest.raises(ValueError, match=f"RunConfig: {name} is not supported"):
        ours.RunConfig(**{name: "grpc"})


def test_warm_starts_and_clusters_are_rejected(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="warm_start_from is not supported"):
        ours.Estimator(linear(ours), str(tmp_path), warm_start_from="model")
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"]}, "task": {"type": "chief"}}')
    ours.RunConfig()
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"], "worker": ["b:1"]}}')
    with pytest.raises(UserError, match="TF_CONFIG is not supported"):
        ours.RunConfig()


def test_a_tensor_without_a_graph_is_rejected():
    eager = tf.ones([])
    with tf.Graph().as_default(), pytest.raises(ValueError, match="not in the current graph"):
        spec(ours, predictions=eager)(0, 0, "infer")


def test_listeners_together_with_a_users_saver_are_rejected(tmp_path):
    saver = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
    with pytest.raises(ValueError, match="give them to that hook"):
        estimator(ours, tmp_path).train(batches, [saver], saving_listeners=[Listener([])])


@each
def test_a_users_saver_replaces_the_default_one(api, tmp_path):
    saver = tf.train.CheckpointSaverHook(str(tmp_path / "other"), save_steps=1)
    estimator(api, tmp_path / "model").train(batches, hooks=[saver])
    assert tf.train.latest_checkpoint(str(tmp_path / "other")).endswith("model.ckpt-3")
    assert tf.train.latest_checkpoint(str(tmp_path / "model")) is None


def test_programs_get_tensorflows_estimator_if_there_is_one():
    assert choice.tf_estimator is (ours if THEIRS is None else THEIRS)


@each
def test_a_spec_to_predict_has_a_default_output(api):
    default = tf.saved_model.DEFAULT_SERVING_SIGNATURE_DEF_KEY
    with tf.Graph().as_default():
        tensor = tf.zeros([2])
        made = api.EstimatorSpec("infer", predictions={"y": tensor})
        assert made.export_outputs[default].outputs == {"y": tensor}
        one = api.export.PredictOutput({"z": tensor})
        made = api.EstimatorSpec("infer", predictions=tensor, export_outputs={"head": one})
        assert made.export_outputs == {"head": one, default: one}
        made = api.EstimatorSpec("eval", loss=tf.zeros([]))
        assert made.export_outputs is None


@each
def test_a_receiver_can_be_unpacked(api):
    with tf.Graph().as_default():
        x, fed = tf.zeros([2]), tf.placeholder(tf.string)
        receiver = api.export.ServingInputReceiver({"x": x, 3: x}, fed)
        features, receiver_tensors = receiver[:2]
        assert features == {"x": x, 3: x}
        assert receiver_tensors.keys() == {"input"}
        assert receiver_tensors["input"] is fed


@each
def test_a_receiver_of_tensors_of_unknown_rank(api):
    with tf.Graph().as_default():
        given = {"x": tf.placeholder(tf.float32), "y": tf.placeholder(tf.int32, [5, 2])}
        receive = api.export.build_raw_serving_input_receiver_fn(given)
    with tf.Graph().as_default():
        features = receive().features
        assert features["x"].shape.rank is None
        assert features["y"].shape.as_list() == [None, 2]


@each
def test_an_export_to_a_directory_given_as_bytes(api, trained, tmp_path):
    made = estimator(api, trained[0])
    base = os.fsencode(tmp_path / "export")
    path = made.export_saved_model(
        base,
        lambda: api.export.ServingInputReceiver(
            *[{"x": tf.placeholder(tf.float32, [None, 2], "x")}] * 2
        ),
    )
    assert os.path.dirname(path) == base
    assert os.path.isfile(os.path.join(path, b"saved_model.pb"))


@each
def test_a_program_may_add_to_its_settings(api, tmp_path):
    config = api.RunConfig()
    config.of_mine = "mine"
    assert api.Estimator(linear(api), str(tmp_path), config).config.of_mine == "mine"


def test_weights_that_are_not_finite_are_refused(tmp_path):
    made = estimator(ours, tmp_path).train(batches, steps=2)
    newest = made.latest_checkpoint()
    write_checkpoint(newest, {**arrays(tmp_path), "bias": np.array([np.nan], np.float32)})

    def receives_x():
        x = tf.placeholder(tf.float32, [None, 2])
        return ours.export.ServingInputReceiver({"x": x}, {"x": x})

    for action in (
        lambda: made.train(batches, steps=1),
        lambda: made.evaluate(batches),
        lambda: list(made.predict(batches)),
        lambda: made.export_saved_model(str(tmp_path / "export"), receives_x),
    ):
        with pytest.raises(UserError) as error:
            action()
        assert str(error.value) == (
            f"weights {newest}: 1 of 1 values of bias are NaN or infinite; give other weights, "
            "such as an earlier checkpoint."
        )
    assert not (tmp_path / "export").exists()
