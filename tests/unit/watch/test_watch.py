"""What a rank's watch notices, says and does, on real connections inside one process."""

import contextlib
import json
import os
import queue
import re
import socket
import tempfile
import threading
import types
from multiprocessing import Pipe
from pathlib import Path

import pytest

from bert_tf.ranks import failures
from bert_tf.ranks.ranks import SingleProcess
from bert_tf.util.errors import UserError
from bert_tf.watch import watch
from bert_tf.watch.interface import NoWatch
from bert_tf.watch.join import Peers
from bert_tf.watch.watch import RankWatch, watched
from tests.helpers.settings import run_settings, with_values
from tests.helpers.thread_ranks import LIMIT, run_ranks

EVALUATION = run_settings(Path("out"), do_eval=True)

# A process that ends is played by a thread that ends.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class EndedWatch(RankWatch):
    """A watch that ends its thread and keeps the status, instead of ending the process."""

    def __init__(self, ranks, peers, settings, timeout_seconds):
        super().__init__(ranks, peers, settings, timeout_seconds=timeout_seconds)
        self.ended = queue.Queue()

    def _end_process(self, status):
        self.ended.put((self._rank, status))
        raise SystemExit


class Job:
    """Rank 0's watch, and another end of each of its connections, to be a rank or to play one."""

    def __init__(self, size, *, timeout_seconds=LIMIT):
        self.timeout = timeout_seconds
        self.ended = queue.Queue()
        self.watches = []
        ends = [Pipe() for _ in range(size - 1)]
        self.others = [other for _, other in ends]
        self.hosts = {0: socket.gethostname(), **{i: f"host{i}" for i in range(1, size)}}
        self.chief = self.start(0, {i: own for i, (own, _) in enumerate(ends, 1)})

    def start(self, rank, connections):
        ranks = types.SimpleNamespace(rank=rank, world_size=len(self.hosts))
        made = EndedWatch(ranks, Peers(connections, self.hosts), EVALUATION, self.timeout)
        made.ended = self.ended
        made.start()
        self.watches.append(made)
        return made

    def rank(self, number):
        """Makes the other end of a connection a rank."""
        return self.start(number, {0: self.others[number - 1]})

    def play(self, number, **message):
        """Sends as a rank would."""
        self.others[number - 1].send_bytes(json.dumps(message).encode())

    def fails(self, rank, error):
        """An exception in a rank's main thread."""
        threading.Thread(target=rank.fail, args=[error], daemon=True).start()

    def statuses(self, number):
        """The first ``number`` ranks that ended, with their statuses."""
        return dict(self.ended.get(timeout=LIMIT) for _ in range(number))


@pytest.fixture
def job():
    """Makes jobs, and ends their threads."""
    jobs = []

    def make(*arguments, **options):
        jobs.append(Job(*arguments, **options))
        return jobs[-1]

    yield make
    for made in jobs:
        # First, or they would report in the next test that the others are gone.
        for one in made.watches:
            one._stopping.set()
            one._thread.join()
        for other in made.others:
            other.close()


def test_a_rank_that_is_gone_ends_all_others(job, capfd):
    made = job(3)
    made.rank(2)
    made.others[0].close()
    assert made.statuses(2) == {0: 3, 2: 3}
    said = capfd.readouterr().err
    assert said.startswith("error: the process of rank 1 on host host1 ended without a message")
    assert said.count("\n") == 1


def test_a_rank_whose_launcher_is_gone_blames_no_rank_that_is_gone_too(job, capfd, monkeypatch):
    made = job(2)

    def end():
        made.ended.put((0, "with its launcher"))
        raise SystemExit

    monkeypatch.setattr(watch, "end_if_launcher_is_gone", end)
    made.others[0].close()
    assert made.statuses(1) == {0: "with its launcher"}
    assert capfd.readouterr().err == ""


def test_a_rank_that_is_silent(job, capfd):
    made = job(3, timeout_seconds=1.0)
    made.rank(2)
    assert made.statuses(2) == {0: 3, 2: 3}
    said = capfd.readouterr().err
    assert said.startswith("error: no sign of life from rank 1 on host host1 for 1 seconds")
    assert "rank 2" not in said


def test_ranks_that_beat_are_left_alone(job):
    made = job(2, timeout_seconds=1.0)
    made.rank(1)
    with pytest.raises(queue.Empty):
        made.ended.get(timeout=3.0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_mistake_on_one_rank_is_said_with_its_name(job, capfd, rank):
    made = job(2)
    ranks = [made.chief, made.rank(1)]
    made.fails(ranks[rank], UserError("the file is damaged."))
    assert made.statuses(2) == {0: 2, 1: 2}
    host = [socket.gethostname(), "host1"][rank]
    assert capfd.readouterr().err == f"error: rank {rank} on host {host}: the file is damaged.\n"


def test_a_mistake_of_all_ranks_is_said_once(job, capfd):
    made = job(2)
    for rank in (made.rank(1), made.chief):
        made.fails(rank, UserError("--x is bad."))
    assert made.statuses(2) == {0: 2, 1: 2}
    assert capfd.readouterr().err == "error: --x is bad.\n"


def test_an_error_of_the_program_keeps_its_stack_trace(job, capfd):
    made = job(2)
    made.fails(made.rank(1), ZeroDivisionError("by zero"))
    assert made.statuses(2) == {0: 1, 1: 1}
    said = capfd.readouterr().err
    assert "\nerror: rank 1 on host host1 failed with ZeroDivisionError: by zero" in said


def test_a_rank_that_was_waiting_is_not_blamed(job, capfd, monkeypatch):
    """Horovod gives up on ranks 0 and 1; the one that did not come is rank 2."""
    monkeypatch.setitem(watch._GRACE_SECONDS, watch.CUT_OFF, 0.5)
    made = job(3)
    gave_up = RuntimeError("Horovod has been shut down. This was caused by ...")
    made.rank(2)
    for rank in (made.rank(1), made.chief):
        made.fails(rank, gave_up)
    assert made.statuses(3) == {0: 3, 1: 3, 2: 3}
    said = capfd.readouterr().err
    assert said.startswith("error: rank 2 on host host2 did not take part")
    assert "Traceback" not in said


def test_a_rank_that_loses_rank_0(job, capfd):
    made = job(2)
    made.rank(1)
    made.watches.remove(made.chief)
    made.chief._stopping.set()
    made.chief._thread.join()
    made.chief._others[1].close()
    assert made.statuses(1) == {1: 3}
    said = capfd.readouterr().err
    assert said.startswith("error: the process of rank 0 on host ")


@pytest.mark.parametrize(("rank", "turn"), [(1, 0.0), (2, 0.5), (5, 2.0), (200, 5.0)])
def test_ranks_that_lose_rank_0_speak_in_turn(capfd, rank, turn):
    """So that one of them says it, and the others are ended by then. No thread, no time goes by."""
    own, other = Pipe()
    ranks = types.SimpleNamespace(rank=rank, world_size=201)
    hosts = {number: f"host{number}" for number in range(201)}
    made = EndedWatch(ranks, Peers({0: own}, hosts), EVALUATION, LIMIT)
    with own, other:
        lost = made._heard[0]
        made._note(0, failures.Failure(failures.ENDED), lost)
        if turn:
            made._judge(lost + turn - 0.01)
            assert made.ended.empty()
        with pytest.raises(SystemExit):
            made._judge(lost + turn + 0.01)
    assert made.ended.get() == (rank, 3)
    assert "the process of rank 0 on host host0 ended" in capfd.readouterr().err


def test_a_rank_that_fails_when_rank_0_does_not_answer_says_so_itself(job, capfd, monkeypatch):
    monkeypatch.setattr(watch, "_SECONDS_FOR_RANK_0_TO_REPORT", 0.5)
    made = job(2)
    made.chief._stopping.set()
    made.chief._thread.join()
    made.fails(made.rank(1), UserError("--x is bad."))
    assert made.statuses(1) == {1: 2}
    assert capfd.readouterr().err.endswith(": --x is bad.\n")


def test_ranks_that_are_done_are_not_missed(job):
    made = job(3, timeout_seconds=1.0)
    made.rank(2).stop()
    made.play(1, kind="done")
    made.others[0].close()
    with pytest.raises(queue.Empty):
        made.ended.get(timeout=2.0)
    made.chief.stop()


def test_a_rank_goes_on_alone_when_rank_0_is_done(job, capfd):
    made = job(2, timeout_seconds=1.0)
    other = made.rank(1)
    made.chief.stop()
    with pytest.raises(queue.Empty):
        made.ended.get(timeout=2.0)
    made.fails(other, UserError("--x is bad."))
    assert made.statuses(1) == {1: 2}
    assert ": --x is bad.\n" in capfd.readouterr().err


def test_all_stop_after_the_update_that_rank_0_names(job):
    made = job(2)
    other = made.rank(1)
    found = {}

    def ask():
        found[0] = made.chief.stop_after(4, 15)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join(LIMIT)
    assert found == {0: None}
    assert other.stop_after(4, None) is None
    assert made.chief.stop_after(5, 15) == other.stop_after(5, None) == 15


def test_a_single_process_stops_when_it_is_asked():
    alone = NoWatch(SingleProcess())
    assert alone.can_stop
    assert alone.stop_after(3, None) is None
    assert alone.stop_after(4, 2) == 2


def test_an_error_in_the_watch_itself_ends_the_job(job, capfd, monkeypatch):
    made = job(2)
    made.rank(1)

    def fail(self, now):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(watch.RankWatch, "_judge", fail)
    made.play(1, kind="beat")
    assert set(made.statuses(2).values()) == {1}
    said = capfd.readouterr().err
    assert "Traceback" in said
    assert re.search(
        r"^error: rank \d on host .* failed with \w+Error: .*; start again\.$", said, re.M
    )


@pytest.fixture(params=["broken", "full", "closed"])
def nobody_reads(request, monkeypatch):
    """Makes standard error what it is when mpirun is gone, or hangs.

    Within the test, since pytest sets it anew between a fixture and the test.
    """

    @contextlib.contextmanager
    def change():
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, before := os.dup(2))
            stack.callback(os.dup2, before, 2)
            if request.param == "closed":  # before Python began: another file may have the number
                monkeypatch.setattr("sys.__stderr__", None)
                os.close(2)
                # Not one of the job's connections, into which other threads of this process would
                # write TensorFlow's messages.
                with tempfile.TemporaryFile() as another:
                    assert another.fileno() == 2
                    yield
                    another.seek(0)
                    assert b"error:" not in another.read()
                return
            reader, writer = os.pipe()
            os.dup2(writer, 2)
            if request.param == "full":
                os.set_blocking(writer, False)
                with contextlib.suppress(BlockingIOError):
                    while True:
                        os.write(writer, bytes(4096))
                os.set_blocking(writer, True)
                stack.callback(os.close, reader)
            else:
                os.close(reader)
            os.close(writer)
            yield

    return change


def test_the_watch_ends_the_job_though_nobody_can_read_why(job, nobody_reads):
    with nobody_reads():
        made = job(3)
        made.rank(2)
        made.others[0].close()
        assert made.statuses(2) == {0: 3, 2: 3}


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_fails_though_nobody_can_read_why(job, nobody_reads, monkeypatch, rank):
    """What it fails with is a line that could not be printed, as a broken pipe makes it."""
    reader, writer = os.pipe()
    os.close(reader)
    stdout = os.fdopen(writer, "w")
    stdout.write("step 5")
    monkeypatch.setattr("sys.stdout", stdout)
    with nobody_reads():
        made = job(2)
        ranks = [made.chief, made.rank(1)]
        made.fails(ranks[rank], BrokenPipeError("broken pipe"))
        assert made.statuses(2) == {0: 1, 1: 1}
    with contextlib.suppress(BrokenPipeError):
        stdout.close()


def test_a_watch_of_several_ranks_begins_and_ends(tmp_path):
    settings = run_settings(tmp_path)

    def work(ranks):
        with watched(ranks, settings, timeout_seconds=5.0) as found:
            ranks.gather(None)
            return type(found)

    assert run_ranks(2, work) == [RankWatch] * 2


def test_no_watch_without_other_ranks_or_a_timeout(tmp_path):
    settings = run_settings(tmp_path)
    with watched(SingleProcess(), settings, timeout_seconds=5.0) as found:
        assert type(found) is NoWatch

    def work(ranks):
        with watched(ranks, settings, timeout_seconds=0.0) as found:
            return type(found), found.can_stop

    assert run_ranks(2, work) == [(NoWatch, False)] * 2


TRAINING = run_settings(Path("out"), do_train=True)
IF_SAVED = "start again to resume from the latest checkpoint in out, if one was saved"


@pytest.mark.parametrize(("newest", "init_checkpoint", "says"), [
    (None, None, "start again (no checkpoint was saved in out yet)"),
    (None, "bert", "start again from bert (no checkpoint was saved in out yet)"),
    ("out/model.ckpt-5", "bert", "start again to resume from out/model.ckpt-5, which is intact"),
])  # fmt: skip
def test_how_to_resume(monkeypatch, newest, init_checkpoint, says):
    monkeypatch.setattr(watch.tf.train, "latest_checkpoint", lambda directory: newest)
    settings = with_values(TRAINING, init_checkpoint=init_checkpoint)
    assert watch.how_to_resume(settings, look=True) == says
    assert watch.how_to_resume(settings, look=False) == IF_SAVED


@pytest.mark.parametrize("newest", [None, "out/model.ckpt-5"])
@pytest.mark.parametrize("look", [True, False])
def test_an_evaluation_has_no_checkpoint_to_resume_from(monkeypatch, newest, look):
    monkeypatch.setattr(watch.tf.train, "latest_checkpoint", lambda directory: newest)
    settings = run_settings(Path("out"), init_checkpoint="bert", do_eval=True)
    assert watch.how_to_resume(settings, look=look) == "start again"


def test_a_disk_that_hangs_does_not_keep_the_sentence_back(monkeypatch):
    hangs = threading.Event()
    monkeypatch.setattr(watch.tf.train, "latest_checkpoint", lambda directory: hangs.wait(LIMIT))
    assert watch.how_to_resume(TRAINING, look=True, seconds_to_read=0.2) == IF_SAVED
    hangs.set()


UPDATES = 60


class Training:
    """Ranks as threads, with a barrier in every update as the gradients' sum is one."""

    def __init__(self, size):
        self.size = size
        self.together = threading.Barrier(size)
        ends = {rank: Pipe() for rank in range(1, size)}
        connections = [{rank: own for rank, (own, _) in ends.items()}]
        connections += [{0: other} for _, other in ends.values()]
        hosts = dict.fromkeys(range(size), "here")
        self.ranks = [
            RankWatch(
                types.SimpleNamespace(rank=rank, world_size=size),
                Peers(own, hosts),
                None,
                timeout_seconds=LIMIT,
            )
            for rank, own in enumerate(connections)
        ]
        self.stopped = [None] * size

    def train(self, rank, asked_at):
        for update in range(1, UPDATES + 1):
            self.together.wait(30)
            received = 10 if asked_at is not None and update >= asked_at else None
            signal = self.ranks[rank].stop_after(update, received)
            if signal is not None:
                self.stopped[rank] = (update, signal)
                return

    def run(self, asked):
        for rank in self.ranks:
            rank.start()
        threads = [
            threading.Thread(target=self.train, args=[rank, asked.get(rank)], daemon=True)
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        for rank in self.ranks:
            rank.stop()
        return self.stopped


def test_nobody_stops_unasked():
    assert Training(3).run({}) == [None] * 3


def test_rank_0_asked_all_stop_after_the_next_update():
    assert Training(3).run({0: 5}) == [(6, 10)] * 3


@pytest.mark.parametrize("asked", [{2: 5}, {1: 7, 2: 5}, {0: 6, 1: 6, 2: 7}, {1: 1}])
@pytest.mark.parametrize("repetition", range(3))
def test_whoever_is_asked_all_stop_after_one_update(asked, repetition):
    stopped = Training(3).run(asked)
    assert len(set(stopped)) == 1
    update, signal = stopped[0]
    assert signal == 10
    assert update > min(asked.values())


def test_a_rank_that_is_done_is_not_waited_for():
    job = Training(2)
    job.ranks[0].start()
    job.ranks[1].start()
    job.ranks[1].stop()
    assert job.ranks[0].stop_after(1, 10) is None
    assert job.ranks[0].stop_after(2, 10) == 10
    job.ranks[0].stop()
