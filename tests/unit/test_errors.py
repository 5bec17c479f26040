"""One sentence on the terminal for what a user can mend, and a stack trace for all else."""

import socket

import pytest

from bert_tf import errors
from bert_tf.errors import UserError, exit_on_user_error, first_line


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


def test_other_errors_keep_their_stack_trace():
    with pytest.raises(ZeroDivisionError):
        exit_on_user_error(lambda: 1 // 0)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (ValueError("first\nsecond"), "first"),
        (ValueError("\n  \n  indented\nsecond"), "indented"),
        (ValueError(), "ValueError"),
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
