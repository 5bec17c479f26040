"""What is set before TensorFlow is loaded; each case in a process of its own."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bert_tf.util import environment as subject
from tests.helpers.programs import ROOT, environment

NAMES = ("TF_CPP_MIN_LOG_LEVEL", "TF_XLA_FLAGS")

PROGRAM = """
import json, logging, os, sys, warnings
from bert_tf.util.environment import prepare_environment
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
    variables, stderr = prepared(verbose=False)
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "3"
    assert stderr == ""


def test_verbose():
    variables, stderr = prepared(verbose=True)
    assert variables["TF_CPP_MIN_LOG_LEVEL"] is None
    for message in ("a library's warning", "TensorFlow's warning", "absl's warning"):
        assert message in stderr


def test_what_the_user_set_is_kept():
    given = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_XLA_FLAGS": "--tf_xla_min_cluster_size=2"}
    variables, _ = prepared(given=given, verbose=False)
    assert variables["TF_CPP_MIN_LOG_LEVEL"] == "0"
    *_, last = variables["TF_XLA_FLAGS"].split()  # the last one counts
    assert last == "--tf_xla_min_cluster_size=2"


def test_compiled_code_is_in_the_users_cache(tmp_path):
    directories = set()
    for deterministic in (False, True):
        variables, _ = prepared(
            given={"XDG_CACHE_HOME": str(tmp_path)}, verbose=False, deterministic=deterministic
        )
        [found] = re.findall(r'cache_directory="(.*?)"', variables["TF_XLA_FLAGS"])
        assert Path(found).parent == tmp_path / "bert_tf" / "xla"
        directories.add(found)
    assert len(directories) == 2


def test_too_late_is_an_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", object())
    before = dict(os.environ)
    with pytest.raises(RuntimeError, match="before TensorFlow is imported"):
        subject.prepare_environment(verbose=False)
    assert dict(os.environ) == before


LOADING = """
import os, sys
from bert_tf.util.environment import prepare_environment
prepare_environment(verbose=sys.argv[1] == "verbose")
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
    for name in subject._RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert subject.launched_rank() == rank


CHECK, SHUTDOWN = "HOROVOD_STALL_CHECK_TIME_SECONDS", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"


@pytest.mark.parametrize(
    ("timeout", "before", "after"),
    [
        (300.0, {}, {CHECK: "150", SHUTDOWN: "600"}),
        (5.0, {CHECK: "30"}, {CHECK: "30", SHUTDOWN: "120"}),
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
        "import time; from bert_tf.util.environment import seconds_since_launch as seconds\n"
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


V1_FILES = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        (["0::/"], {"cpu.max": "150000 100000"}, 1.5),
        (["0::/"], {"cpu.max": "max 100000"}, None),
        (["0::/a/b"], {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
        (["0::/a/b"], {"a/cpu.max": "400000 100000", "a/b/cpu.max": "300000 100000"}, 3.0),
        (["0::/a"], {"unified/a/cpu.max": "50000 100000"}, 0.5),
        (["1:cpu:/a"], dict(zip((f"cpu/a/{n}" for n in V1_FILES), ("250000", "100000"))), 2.5),
        (
            ["3:memory:/", "2:cpu,cpuacct:/docker/1"],  # seen from within: mounted as the root
            dict(zip((f"cpu,cpuacct/{n}" for n in V1_FILES), ("100000", "50000"))),
            2.0,
        ),
        (["1:cpu:/a"], dict(zip((f"cpu/a/{n}" for n in V1_FILES), ("-1", "100000"))), None),
        (["1:cpuset:/a"], {"cpu/a/cpu.max": "100000 100000"}, None),
        (["0::/"], {"cpu.max": "?"}, None),
    ],
)
def test_the_processor_time_of_control_groups(tmp_path, groups, files, cores):
    (tmp_path / "own").write_text("".join(f"{line}\n" for line in groups))
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    assert subject.cpu_quota(str(tmp_path / "own"), str(tmp_path / "root")) == cores
    assert subject.cpu_quota(str(tmp_path / "none")) is None


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (3.2, 4), (0.4, 1), (16.0, 8)])
def test_more_threads_than_time_for_them_are_not_started(monkeypatch, quota, cores):
    monkeypatch.setattr(subject, "allowed_cores", lambda: 8)
    monkeypatch.setattr(subject, "cpu_quota", lambda: quota)
    assert subject.available_cores() == cores
