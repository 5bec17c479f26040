"""The workers of a Dask scheduler: a real one, with processes that are killed."""

import os
import re
import signal
import time

import pytest

from bert_tf.util.errors import RepairableError, UserError
from data_prep.stages.version_record import version_record
from tests.unit.durable import test_executor

distributed = pytest.importorskip("distributed")
cluster = pytest.importorskip("data_prep.stages.cluster")


def start_cluster(directory, n_workers):
    """Workers of one thread each, in processes of their own."""
    return distributed.LocalCluster(
        n_workers=n_workers,
        threads_per_worker=1,
        dashboard_address=":0",
        local_directory=str(directory),
    )


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    with start_cluster(tmp_path_factory.mktemp("dask"), 2) as local:
        yield local


def results_of(make_worker, items, dask, what="counting", **patience):
    address = dask if isinstance(dask, str) else dask.scheduler_address
    workers = cluster.DaskWorkers(address, cluster.Patience(**patience))
    return workers.map(make_worker, items, what=what)


def test_results_are_in_the_order_of_the_items(dask, capsys):
    results = results_of(test_executor.make_square, range(50), dask)
    assert list(results) == [value * value for value in range(50)]
    said = capsys.readouterr().err
    assert f"counting: 2 workers at {dask.scheduler_address}, dashboard http" in said


@pytest.mark.parametrize("items", [[], [7]])
def test_few_items(dask, items):
    assert list(results_of(test_executor.make_square, items, dask)) == [i * i for i in items]


def test_no_more_items_are_under_way_than_stated(dask):
    taken = []

    def items():
        for value in range(40):
            taken.append(value)
            yield value

    for received, _ in enumerate(results_of(test_executor.make_square, items(), dask), start=1):
        assert len(taken) - received < 3 * 2
    assert len(taken) == 40


def test_errors_of_workers_arrive_as_they_do_from_processes(dask):
    results = results_of(test_executor.make_failing, range(9), dask)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(UserError, match=r"^counting: failed with ValueError: three is too many$"):
        next(results)
    with pytest.raises(UserError, match=r"^--flag=5: give another.$"):
        list(results_of(test_executor.make_user_error, [5], dask))


def test_items_that_fail_are_reported(dask):
    def items():
        yield 1
        raise UserError("--input_file: gone.")

    with pytest.raises(UserError, match="--input_file: gone"):
        list(results_of(test_executor.make_square, items(), dask))


class Suicide:
    """Kills its process at one item, but only as often as there are files to take away."""

    def __init__(self, lives):
        self.lives = lives

    def __call__(self):
        return self.work

    def work(self, value):
        with open(f"{self.lives}.calls", "a") as calls:
            calls.write(f"{value}\n")
        if value == 3:
            left = sorted(os.listdir(self.lives))
            if left:
                os.unlink(os.path.join(self.lives, left[0]))
                os.kill(os.getpid(), signal.SIGKILL)
        return value


def with_lives(directory, number):
    for life in range(number):
        (directory / str(life)).touch()
    return Suicide(str(directory))


def test_a_killed_worker_costs_its_items_only(dask, tmp_path):
    lives = tmp_path / "lives"
    lives.mkdir()
    assert list(results_of(with_lives(lives, 1), range(40), dask)) == list(range(40))
    assert not list(lives.iterdir())
    calls = (tmp_path / "lives.calls").read_text().splitlines()
    assert calls.count("3") == 2
    assert len(calls) <= 40 + 6, "what was under way"


@pytest.mark.slow
def test_an_item_that_kills_all_its_workers_is_one_sentence(dask, tmp_path):
    with pytest.raises(RepairableError, match=r"^counting: an item has killed 4 workers, "):
        list(results_of(with_lives(tmp_path, 9), range(12), dask))


def test_workers_that_hide(dask, monkeypatch, capsys):
    def refuse(*_, **__):
        raise ConnectionRefusedError

    monkeypatch.setattr(cluster.socket, "create_connection", refuse)
    assert list(results_of(test_executor.make_square, range(9), dask)) == [n * n for n in range(9)]
    assert re.search(r"counting: tcp://\S+ cannot be reached from here", capsys.readouterr().err)


def test_which_workers_can_be_reached(dask):
    found = dask.scheduler.workers
    assert cluster.unreachable(found) is None
    assert cluster.unreachable([*found, "tcp://127.0.0.9:9"]) == "tcp://127.0.0.9:9"
    assert cluster.unreachable(["tls://[::1]:9"]) == "tls://[::1]:9"


def test_other_versions_are_refused(dask, monkeypatch):
    ours = {**version_record(), "numpy": "0.9"}
    monkeypatch.setattr(cluster, "version_record", lambda: ours)
    with pytest.raises(UserError, match=r"the worker tcp://\S+ has numpy [\d.]+, not 0\.9, so"):
        list(results_of(test_executor.make_square, range(9), dask))


def test_nobody_there():
    with pytest.raises(
        UserError, match=r"^--scheduler=tcp://127\.0\.0\.1:9: no scheduler answers there within 1"
    ):
        list(results_of(test_executor.make_square, range(9), "tcp://127.0.0.1:9", at_first=1.0))
    for address in ("host", "tcq://host:1", "tcp://host"):
        with pytest.raises(
            UserError, match=rf"^--scheduler={address} is not an address; give host"
        ):
            cluster.DaskWorkers(address).check()


def test_a_scheduler_without_workers(tmp_path):
    none = "the scheduler has no workers, and none has come within 1 seconds"
    with start_cluster(tmp_path, 0) as empty, pytest.raises(UserError, match=none):
        cluster.DaskWorkers(empty.scheduler_address, cluster.Patience(at_first=1.0)).check()


@pytest.mark.slow
def test_workers_that_are_gone_for_good(tmp_path, capsys):
    patience = {"without_workers": 1.0, "for_a_result": 1.0}
    with start_cluster(tmp_path, 1) as local:
        results = results_of(test_executor.make_square, range(99), local, **patience)
        assert next(results) == 0
        local.scale(0)
        deadline = time.monotonic() + 60
        while local.scheduler.workers:
            assert time.monotonic() < deadline
        with pytest.raises(RepairableError, match="all workers are gone, and none has come for 1"):
            list(results)
    assert "counting: all workers are gone, waiting for others" in capsys.readouterr().err


def test_a_scheduler_that_is_gone(tmp_path):
    with start_cluster(tmp_path, 1) as local:
        results = results_of(test_executor.make_square, range(99), local, at_first=10.0)
        assert next(results) == 0
        local.close()
        with pytest.raises(RepairableError, match=r"^counting: the connection to the scheduler"):
            list(results)
