"""XLA: what it compiles of an update, when, and that the update stays what it was."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.train.summary import WarmUp
from bert_tf.train.xla import XlaReport, compile_first_cluster, count_compiled_clusters
from bert_tf.tuning.session import SessionSettings, session_config
from bert_tf.util.environment import XLA_FLAGS
from tests.helpers.programs import ROOT, environment
from tests.unit.train.xla_program import LENGTHS, MARK, UPDATES


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Two trainings, by ``plain`` and ``xla``, and the clusters compiled in each part of them."""
    out = tmp_path_factory.mktemp("xla") / "found.json"
    done = subprocess.run(
        [sys.executable, "tests/unit/train/xla_program.py", out],
        cwd=ROOT,
        env={
            **environment(),
            "TF_XLA_FLAGS": XLA_FLAGS,
            "TF_CPP_MIN_LOG_LEVEL": "0",
            "TF_CPP_VMODULE": "device_compilation_profiler=1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(out.read_text()), compilations(done.stderr)


def compilations(log):
    """Part of the program -> the clusters compiled in it, one entry a compilation."""
    parts = {}
    part = parts.setdefault("before", [])
    for line in log.splitlines():
        if line.startswith(MARK):
            part = parts.setdefault(line.removeprefix(MARK), [])
        elif " Compiled cluster_" in line and "compile time:" in line:
            part.append(line.split(" Compiled ")[1].split()[0])
    return parts


@pytest.mark.slow
def test_every_update_runs_its_clusters(program):
    found, _ = program
    assert found["plain"]["clusters"] == [0, 0]
    first, last = found["xla"]["clusters"]
    assert first == last > 0


@pytest.mark.slow
def test_steady_updates_compile_nothing(program):
    found, compiled = program
    assert len(found["xla"]["losses"]) > UPDATES
    assert len(compiled["first updates True"]) == found["xla"]["clusters"][0]
    assert compiled["steady updates True"] == []
    assert compiled["first updates False"] == []


@pytest.mark.slow
def test_a_cluster_is_compiled_once_for_each_length(program):
    found, compiled = program
    # That new shapes do compile shows that the counter counts.
    again = compiled["another length True"]
    assert again
    assert len(set(again)) == len(again)
    assert compiled["both lengths True"] == []
    total = len(compiled["first updates True"]) + len(again)
    assert total <= len(LENGTHS) * found["xla"]["clusters"][0]


@pytest.mark.slow
def test_products_stay_outside(program):
    found, _ = program
    assert len(found["plain"]["products"]) > 0
    assert len(found["xla"]["products"]) == len(found["plain"]["products"])


def test_compiled_updates_are_those_of_plain_ones(program):
    plain, xla = program[0]["plain"], program[0]["xla"]
    assert xla["initial_weights"] == plain["initial_weights"]
    # Rounding grows with the updates.
    np.testing.assert_allclose(xla["losses"][:10], plain["losses"][:10], rtol=1e-5)
    np.testing.assert_allclose(xla["norms"][:10], plain["norms"][:10], rtol=1e-5)
    np.testing.assert_allclose(xla["losses"], plain["losses"], rtol=1e-2)


def report(updates, reports):
    """Runs a hook over updates of (shape, seconds)."""
    warm_up = WarmUp(2)
    with tf.Graph().as_default():
        tf.train.get_or_create_global_step()
        product = tf.linalg.matmul(tf.ones([2, 2]), tf.ones([2, 2]))
        hook = XlaReport(warm_up, lambda *figures: reports.append(figures))
        with tf.train.MonitoredSession(hooks=[hook]) as session:
            for shape, seconds in updates:
                warm_up.note(shape, seconds)
                session.run(product)
                yield


def test_the_report_comes_once_where_shapes_do_not_change():
    reports = []
    updates = [((8,), 5.0)] + 9 * [((8,), 1.0)]
    at_the_time = [len(reports) for _ in report(updates, reports)]
    assert at_the_time == [0] * 5 + [1] * 5
    assert reports == [(0, pytest.approx(4.0), 1)]


def test_the_report_of_a_short_run_and_of_new_shapes_comes_at_the_end():
    reports = []
    list(report(3 * [((8,), 1.0)], reports))
    assert reports == [(0, 0.0, 1)]
    list(report(6 * [((8,), 1.0)] + [((9,), 3.0), ((9,), 1.0), ((9,), 1.0)], reports))
    assert reports[1:] == [(0, 0.0, 1), (0, pytest.approx(2.0), 2)]


def test_clusters_are_counted_once_whatever_the_number_of_runs():
    metadata = tf.RunMetadata()
    for device in ("cpu:0", "cpu:1"):
        nodes = metadata.step_stats.dev_stats.add(device=device).node_stats
        nodes.add(node_name="cluster_0", timeline_label="cluster_0 = _XlaRun(x, y)")
        nodes.add(node_name="cluster_0", timeline_label="cluster_0 = _XlaRun(x, y)")
        nodes.add(node_name="compile_0", timeline_label="compile_0 = _XlaCompile(x)")
        nodes.add(node_name="product", timeline_label="product = MatMul(x, y)")
    metadata.step_stats.dev_stats[1].node_stats.add(
        node_name="cluster_1", timeline_label="cluster_1 = _XlaRun(z)"
    )
    assert count_compiled_clusters(metadata) == 2


def test_the_first_cluster_leaves_the_terminal_as_it_was(capfd):
    descriptors = len(os.listdir("/proc/self/fd"))
    compile_first_cluster(session_config(SessionSettings(threads=2)))
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_terminal_is_given_back_when_compiling_fails(capfd, monkeypatch):
    def fail(*_, **__):
        os.write(2, b"swallowed\n")
        raise RuntimeError("no compiler")

    monkeypatch.setattr(tf, "Session", fail)
    with pytest.raises(RuntimeError, match="no compiler"):
        compile_first_cluster(session_config(SessionSettings(threads=2)))
    os.write(2, b"heard\n")
    assert capfd.readouterr().err == "heard\n"
