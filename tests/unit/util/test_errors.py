"""One sentence on the terminal for what a user can mend, and a stack trace for all else."""

import errno
import signal
import socket
import sys

import numpy as np
import pytest
import tensorflow.compat.v1 as tf

from bert_tf.util import errors
from bert_tf.util.errors import UserError, exit_on_user_error, first_line


def test_the_result_of_a_function_that_succeeds():
    assert exit_on_user_error(lambda a, b: a - b, 5, 3) == 2


def test_a_user_error_ends_the_process_with_its_sentence(capsys):
    def fail(name):
        raise UserError(f"--{name} is empty; give a file.")

    with pytest.raises(SystemExit) as ended:
        exit_on_user_error(fail, "input_file")
    assert ended.value.code == 2
    captured = capsys.readouterr()
    assert captured.err == "error: --input_file is empty; give a file.\n"
    assert captured.out == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("a", "'a'"),
        ([3, -1], "[3, -1]"),
        ("a" * 10**6, "'aaaa"),
        ({"a" * 99: ["b" * 99] * 99}, "{'aaaa"),
        (b"a" * 10**6, "b'aaaa"),
    ],
)
def test_short_repr(value, expected):
    found = errors.short_repr(value)
    assert found.startswith(expected)
    assert len(found) <= 80


def test_short_repr_of_a_value_that_contains_another_many_times():
    value = ()
    for _ in range(60):
        value = (value, value)
    assert errors.short_repr(value) == "(((...), (...)), ((...), (...)))"


def test_other_errors_keep_their_stack_trace():
    with pytest.raises(ZeroDivisionError):
        exit_on_user_error(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError("\n  \n  indented\nsecond"), "indented"),
        (ValueError(), "ValueError"),
        (KeyError("k" * 10**6), f"'{'k' * 499}"),
        (OSError("  \n"), "OSError"),
    ],
)
def test_first_line(error, expected):
    assert first_line(error) == expected


def fail(text):
    raise UserError(text)


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK"])
def test_a_rank_gives_rank_0_time_to_say_it_and_then_its_name(monkeypatch, capsys, name):
    said_after = []
    monkeypatch.setattr(errors.time, "sleep", said_after.append)
    monkeypatch.setenv(name, "3")
    with pytest.raises(SystemExit):
        exit_on_user_error(fail, "--x is bad.")
    host = socket.gethostname()
    assert capsys.readouterr().err == f"error: rank 3 on host {host}: --x is bad.\n"
    assert said_after == [errors._SECONDS_FOR_RANK_0]


def test_rank_0_speaks_for_all_at_once(monkeypatch, capsys):
    monkeypatch.setattr(errors.time, "sleep", fail)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    with pytest.raises(SystemExit):
        exit_on_user_error(fail, "--x is bad.")
    assert capsys.readouterr().err == "error: --x is bad.\n"


# What TensorFlow 2.15 says: where the graph was built first, and then what failed.
DAMAGED = """Graph execution error:

Detected at node 'save/RestoreV2' defined at (most recent call last):
    File "run.py", line 14, in <module>
    File "run.py", line 12, in graph
      saver = tf.train.Saver()
Node: 'save/RestoreV2'
{message}
\t [[{{{{node save/RestoreV2}}}}]]

Original stack trace for 'save/RestoreV2':
  File "run.py", line 14, in <module>
"""


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("TensorBundle at m shard 0: Checksum does not match", None),
        (
            "/full/m.data; No space left on device\nHint: If you want to see",
            "/full/m.data; No space left on device",
        ),
        (
            "2 root error(s) found.\n  (0) Data loss: not an sstable\n\t [[{{node a}}]]\n  (1) B",
            "not an sstable",
        ),
        ("1 root error(s) found.\n  (0) DATA_LOSS: not an sstable", "not an sstable"),
    ],
)
def test_first_line_is_the_first_that_says_something(message, expected):
    for text in (
        DAMAGED.format(message=message),
        f"Original error:\n\n{DAMAGED.format(message=message)}",
    ):
        said = first_line(RuntimeError(text))
        assert said == (expected or message)


def test_first_line_of_tensorflow_itself():
    with tf.Graph().as_default(), tf.Session() as session:
        ids = tf.placeholder(tf.int32, [None])
        with pytest.raises(tf.errors.InvalidArgumentError) as raised:
            session.run(tf.gather(tf.zeros([10, 4]), ids), {ids: [3, 11]})
    assert str(raised.value).startswith("Graph execution error:")
    assert first_line(raised.value) == "indices[1] = 11 is not in [0, 10)"
    nothing = tf.errors.UnknownError(None, None, "Graph execution error:\n\n")
    assert first_line(nothing) == "UnknownError"


def test_a_full_disk_is_said_in_one_line(capsys):
    def copy():
        raise OSError(errno.ENOSPC, "No space left on device", "from", None, "best/model.ckpt-3")

    with pytest.raises(SystemExit) as ended:
        exit_on_user_error(copy)
    assert ended.value.code == 2
    assert capsys.readouterr().err == (
        "error: cannot write best/model.ckpt-3 (No space left on device); free space there, then "
        "start again.\n"
    )


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (
            FileNotFoundError(errno.ENOENT, "No such file or directory", "out/log.jsonl"),
            "cannot use out/log.jsonl (No such file or directory); check the path, and leave",
        ),
        (
            PermissionError(errno.EACCES, "Permission denied", b"in\xff"),
            "cannot use in\\udcff (Permission denied); check its permissions and those of its",
        ),
        (OSError(errno.ESTALE, "Stale file handle", "/net/a"), "cannot use /net/a (Stale file"),
        (OSError(errno.EFBIG, "File too large"), "cannot write a file (File too large); free"),
        (
            tf.errors.NotFoundError(
                None, None, "Failed to create a directory: out/eval; No such file or directory"
            ),
            "cannot use out/eval (No such file or directory); check the path",
        ),
        (
            tf.errors.ResourceExhaustedError(None, None, "out/e.v2; No space left on device"),
            "cannot write out/e.v2 (No space left on device); free space there",
        ),
        (
            ModuleNotFoundError("No module named 'tensorflow'", name="tensorflow.compat"),
            f"tensorflow is not installed for {sys.executable}; use the Python of the environment",
        ),
    ],
)
def test_what_a_user_can_mend_is_said_in_one_line(capsys, error, expected):
    def use():
        raise error

    with pytest.raises(SystemExit) as ended:
        exit_on_user_error(use)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {expected}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        OSError(errno.EBADF, "Bad file descriptor", 7),
        ModuleNotFoundError("No module named 'bert_tf.mistyped'", name="bert_tf.mistyped"),
        tf.errors.NotFoundError(None, None, "Key bert/w not found in checkpoint"),
        RuntimeError("out/eval; No such file or directory"),
    ],
)
def test_what_a_programmer_has_to_mend_keeps_its_stack_trace(error):
    def fail():
        raise error

    with pytest.raises(type(error)):
        exit_on_user_error(fail)


def test_an_interrupted_program_says_so_and_lets_the_next_signal_end_it(capsys):
    def interrupted():
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit) as ended:
            exit_on_user_error(interrupted)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended.value.code == 128 + signal.SIGINT
    assert capsys.readouterr().err == "interrupted\n"


def test_a_lack_of_memory_is_said_in_one_line(capsys):
    def take():
        np.empty(2**62, np.int8)

    with pytest.raises(SystemExit) as exit_:
        exit_on_user_error(take)
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("error: out of memory (Unable to allocate 4.00 EiB")
    assert error.endswith("); use a smaller batch, sequence length or network.\n")
