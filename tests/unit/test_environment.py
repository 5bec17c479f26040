"""What is set before TensorFlow is loaded; each case in a process of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_tf import environment as subject
from tests.support import ROOT, environment

NAMES = ("TF_CPP_MIN_LOG_LEVEL", "TF_XLA_FLAGS")

PROGRAM = """
import json, logging, os, sys, warnings
from bert_tf.environment import prepare_environment
prepare_environment(**json.loads(sys.argv[1]))
warnings.warn("a library's warning")
logging.getLogger("tensorflow").warning("TensorFlow's warning")
logging.getLogger("absl").warning("absl's warning")
print(json.dumps({"environment": dict(os.environ), "loaded": "tensorflow" in sys.modules}))
"""


def prepared(*, given=None, **arguments):
    """The environment afterwards, and what was written to stderr."""
    variables = {k: v for k, v in environment().items() if k not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(arguments)],
        cwd=ROOT,
        env={**variables, **(given or {})},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert not found["loaded"], "TensorFlow was loaded before its environment was complete"
    return {name: found["environment"].get(name) for name in NAMES}, done.stderr


def test_quiet():
    variables, stderr = prepared(verbose=False, use_xla=False)
    assert variables == {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_XLA_FLAGS": None}
    assert stderr == ""


def test_verbose():
    variables, stderr = prepared(verbose=True, use_xla=False)
    assert variables == {"TF_CPP_MIN_LOG_LEVEL": None, "TF_XLA_FLAGS": None}
    for message in ("a library's warning", "TensorFlow's warning", "absl's warning"):
        assert message in stderr


def test_what_the_user_set_is_kept():
    given = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_XLA_FLAGS": "--tf_xla_min_cluster_size=2"}
    variables, _ = prepared(given=given, verbose=False, use_xla=True)
    assert variables == {
        "TF_CPP_MIN_LOG_LEVEL": "0",
        "TF_XLA_FLAGS": f"{subject.XLA_FLAGS} --tf_xla_min_cluster_size=2",  # the last one counts
    }


def test_xla_on_a_cpu():
    variables, _ = prepared(verbose=False, use_xla=True)
    assert variables["TF_XLA_FLAGS"] == subject.XLA_FLAGS
    assert "--tf_xla_cpu_global_jit" in subject.XLA_FLAGS.split()


def test_too_late_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    before = dict(os.environ)
    with pytest.raises(RuntimeError, match="before TensorFlow is imported"):
        subject.prepare_environment(verbose=False, use_xla=True)
    assert dict(os.environ) == before


LOADING = """
import os, sys
from bert_tf.environment import prepare_environment
prepare_environment(verbose=sys.argv[1] == "verbose", use_xla=False)
sys.path.insert(0, sys.argv[2])
import tensorflow.compat
os.write(2, b"afterwards\\n")
"""


@pytest.mark.parametrize(
    ("how", "expected"), [("verbose", "noise\nafterwards\n"), ("quiet", "afterwards\n")]
)
def test_what_tensorflow_writes_while_it_is_loaded(tmp_path, how, expected):
    package = tmp_path / "tensorflow"
    package.mkdir()
    (package / "__init__.py").write_text("import os; os.write(2, b'noise\\n')")
    (package / "compat.py").touch()
    done = subprocess.run(
        [sys.executable, "-c", LOADING, how, str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == expected


def test_a_tensorflow_that_cannot_be_loaded_says_why(tmp_path):
    (tmp_path / "tensorflow.py").write_text("raise ImportError('the reason')")
    done = subprocess.run(
        [sys.executable, "-c", LOADING, "quiet", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.endswith("ImportError: the reason\n")


@pytest.mark.parametrize("verbose", [True, False])
def test_quiet_tensorflow(verbose):
    import tensorflow.compat.v1 as tf

    before = tf.logging.get_verbosity()
    try:
        tf.logging.set_verbosity(tf.logging.INFO)
        subject.quiet_tensorflow(verbose=verbose)
        assert tf.logging.get_verbosity() == (tf.logging.INFO if verbose else tf.logging.ERROR)
    finally:
        tf.logging.set_verbosity(before)


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, 0),
        ({"OMPI_COMM_WORLD_RANK": "3", "SLURM_PROCID": "1"}, 3),
        ({"HOROVOD_RANK": "2"}, 2),
        ({"PMI_RANK": "5"}, 5),
        ({"SLURM_PROCID": "7"}, 7),
        ({"PMI_RANK": "", "SLURM_PROCID": "7"}, 7),
    ],
)
def test_the_rank_that_a_launcher_gave(monkeypatch, variables, rank):
    for name in subject._LAUNCHERS_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert subject.launched_rank() == rank


CHECK, SHUTDOWN = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


@pytest.mark.parametrize(
    ("timeout", "before", "after"),
    [
        (300.0, {}, {CHECK: "300", SHUTDOWN: "1200"}),
        (5.0, {CHECK: "60"}, {CHECK: "60", SHUTDOWN: "120"}),
        (5.0, {CHECK: "60", SHUTDOWN: "0"}, {CHECK: "60", SHUTDOWN: "0"}),
        (0.0, {}, {}),
    ],
)
def test_horovods_limits_follow_the_timeout_where_the_user_set_none(
    monkeypatch, timeout, before, after
):
    monkeypatch.setattr(subject.os, "environ", dict(before))
    subject.limit_stalls(timeout)
    assert subject.os.environ == after


def test_seconds_since_launch_are_those_of_the_process():
    code = (
        "import time; from bert_tf.environment import seconds_since_launch as seconds\n"
        "first, started = seconds(), time.monotonic()\n"
        "while time.monotonic() < started + 0.3: pass\n"
        "print(first, seconds() - first, time.monotonic() - started)"
    )
    before = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    around = time.monotonic() - before
    first, passed, really = map(float, done.stdout.split())
    assert 0 <= first < around
    assert passed == pytest.approx(really, abs=0.05)


def test_where_there_is_no_proc(monkeypatch):
    monkeypatch.setattr(subject, "Path", lambda _: Path("/nowhere/at/all"))
    assert subject.seconds_since_launch() is None


def test_a_processor_is_told_by_its_name_and_its_features(tmp_path):
    path = tmp_path / "cpuinfo"

    def processor(name, flags):
        path.write_text(f"processor\t: 0\nmodel name\t: {name}\nflags\t\t: {flags}\n\nflags: x\n")
        return subject.processor(str(path))

    plain = processor("A CPU @ 2 GHz", "fpu sse2")
    assert plain.startswith("A CPU @ 2 GHz (")
    assert plain == processor("A CPU @ 2 GHz", "fpu sse2")
    assert plain != processor("A CPU @ 2 GHz", "fpu sse2 avx512_bf16")
    assert subject.processor(str(tmp_path / "none"))
