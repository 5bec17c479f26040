"""Standard streams that cannot be written, and text that they have no characters for.

Small programs of their own, as it is about their file descriptors; none loads TensorFlow.
"""

import os
import socket
import subprocess
import sys
import threading

import pytest

from bert_tf.util.console import Grade, Note, collected_notes, remark, say, warn
from tests.helpers.programs import ROOT

TRAINING = "from bert_tf.util.console import say\n" + (
    "def run():\n"
    "    for step in range(3):\n"
    "        say(f'step {step}')\n"
    "    open(sys.argv[1], 'w').write('trained')\n"
)
COMMAND = "def run():\n    print('a result')\n    print('another', flush=True)\n"
QUIET_COMMAND = "def run():\n    print('a result')\n"
FULL = "/dev/full"
needs_full = pytest.mark.skipif(not os.path.exists(FULL), reason="there is no /dev/full")


def finish(code, *arguments, stdout=subprocess.PIPE, environment=None, unbuffered=False, **others):
    program = f"import sys\nfrom bert_tf.util.errors import exit_on_user_error\n{code}"
    return subprocess.run(
        [sys.executable, *["-u"] * unbuffered, "-c", f"{program}\nexit_on_user_error(run)\n"]
        + [*arguments],
        cwd=ROOT,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"} | (environment or {}),
        timeout=60,
        check=False,
        **others,
    )


@pytest.fixture(name="nobody_reads")
def pipe_without_reader():
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@pytest.fixture(name="full")
def full_disk():
    with open(FULL, "wb") as file:
        yield file


def test_work_goes_on_without_a_reader_of_its_progress(nobody_reads, tmp_path):
    done = finish(TRAINING, str(tmp_path / "model"), stdout=nobody_reads)
    assert done.returncode == 0
    assert (tmp_path / "model").read_text() == "trained"
    assert done.stderr == (
        b"warning: standard output cannot be written (Broken pipe); continuing without it\n"
    )


@needs_full
def test_work_goes_on_where_its_progress_has_no_room(full, tmp_path):
    done = finish(TRAINING, str(tmp_path / "model"), stdout=full)
    assert done.returncode == 0
    assert (tmp_path / "model").read_text() == "trained"
    assert done.stderr.count(b"\n") == 1
    assert b"No space left on device" in done.stderr


@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("code", [COMMAND, QUIET_COMMAND])
def test_a_command_whose_reader_is_gone_ends_quietly(nobody_reads, code, unbuffered):
    done = finish(code, stdout=nobody_reads, unbuffered=unbuffered)
    assert (done.returncode, done.stderr) == (141, b"")


@needs_full
@pytest.mark.parametrize("unbuffered", [False, True])
@pytest.mark.parametrize("code", [COMMAND, QUIET_COMMAND])
def test_a_command_whose_result_has_no_room_fails(full, code, unbuffered):
    done = finish(code, stdout=full, unbuffered=unbuffered)
    assert done.returncode == 2
    assert done.stderr == (
        b"error: standard output cannot be written (No space left on device); "
        b"redirect it elsewhere.\n"
    )


def test_a_failure_after_the_reader_is_gone_is_still_said(nobody_reads):
    code = (
        "from bert_tf.util import errors\n"
        "def run():\n    print('x')\n    raise errors.UserError('no.')"
    )
    done = finish(code, stdout=nobody_reads)
    assert (done.returncode, done.stderr) == (2, b"error: no.\n")


def test_help_without_a_reader_leaves_no_stack_trace(nobody_reads):
    done = subprocess.run(
        [sys.executable, "run_squad.py", "--help"],
        cwd=ROOT,
        stdout=nobody_reads,
        stderr=subprocess.PIPE,
        check=False,
    )
    assert done.stderr == b""


def test_standard_output_that_was_closed_is_nowhere():
    done = finish(COMMAND, preexec_fn=lambda: os.close(1))
    assert (done.returncode, done.stderr) == (0, b"")


STRICT_POSIX = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.mark.parametrize("locale", [STRICT_POSIX, {"LC_ALL": "POSIX"}, {"LC_ALL": "C.UTF-8"}])
def test_text_in_the_c_locale_is_utf_8(locale):
    code = "def run():\n    print(input())\n    raise UnicodeEncodeError('x', 'a', 0, 1, 'other')"
    done = finish(code, input="Wo ist München?\n".encode(), environment=locale)
    assert done.stdout.decode() == "Wo ist München?\n"
    assert b"other" in done.stderr  # not taken for a name


def test_characters_that_the_terminal_lacks_are_escaped():
    done = finish(
        "def run():\n    print('M\\u00fcnchen \\u6771')",
        environment={"PYTHONIOENCODING": "latin-1"},
    )
    assert (done.returncode, done.stdout) == (0, b"M\xfcnchen \\u6771\n")


@pytest.mark.parametrize("locale", [STRICT_POSIX, {"LC_ALL": "C.UTF-8"}])
def test_names_that_cannot_be_decoded(locale, tmp_path):
    """Nothing that is written, JSON or a checkpoint, could hold such a name."""
    code = "def run():\n    open(sys.argv[1], 'w')"
    name = os.fsencode(tmp_path / "m") + b"\xfc"
    done = finish(code, name, environment=locale)
    assert done.returncode == 2
    assert b"m\\udcfc' is not text in the encoding" in done.stderr
    assert not list(tmp_path.iterdir())
    # A name that the program finds itself:
    os.mkdir(name)
    found = "import json, os\ndef run():\n    open('/dev/null', 'w', encoding='utf-8').write("
    done = finish(f"{found}os.listdir(sys.argv[1])[0])", str(tmp_path), environment=locale)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"m\\udcfc' is not text in the encoding" in done.stderr


STOPPED = """
import os, signal
from bert_tf.util.console import say, stop_blocking
def run():
    signal.signal(signal.SIGALRM, lambda *_: stop_blocking())
    signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
    for _ in range(100):
        say("a line that nobody reads " * 100)
        say("a line that nobody reads " * 100, stream=sys.stderr)
    signal.setitimer(signal.ITIMER_REAL, 0)
    open(sys.argv[1], "w").write("saved")
    sys.exit(143)
"""


@pytest.mark.parametrize("kind", ["pipe", "terminal", "socket"])
def test_a_process_that_is_asked_to_stop_does_not_wait_for_a_reader(tmp_path, kind):
    """It waits in a write when the signal comes, since nobody reads."""
    make = {"pipe": os.pipe, "terminal": os.openpty, "socket": socketpair}[kind]
    reader, writer = make()
    try:
        program = f"import sys\nfrom bert_tf.util.errors import exit_on_user_error\n{STOPPED}"
        done = subprocess.run(
            [sys.executable, "-c", f"{program}\nexit_on_user_error(run)\n", tmp_path / "model"],
            cwd=ROOT,
            stdout=writer,
            stderr=writer,
            timeout=60,
            check=False,
        )
        assert kind == "socket" or os.get_blocking(writer), "others share the open file"
    finally:
        os.close(reader)
        os.close(writer)
    assert done.returncode == 143
    assert (tmp_path / "model").read_text() == "saved"


def socketpair():
    return [end.detach() for end in socket.socketpair()]


def test_lines_for_which_there_is_room_are_written_after_a_stop(tmp_path):
    code = (
        "from bert_tf.util.console import say, stop_blocking\n"
        "def run():\n"
        "    say('first')\n"
        "    stop_blocking()\n"
        "    say('second')\n"
    )
    assert finish(code).stdout == b"first\nsecond\n"
    with open(tmp_path / "log", "wb") as log:  # a file is not opened anew, at its beginning
        finish(code, stdout=log)
    assert (tmp_path / "log").read_bytes() == b"first\nsecond\n"


def test_notes_are_printed_or_collected(capsys):
    def work():
        say("reading")
        remark("this is known.", part="records")
        warn("this is slow.")

    work()
    assert capsys.readouterr().out == "reading\nthis is known.\nwarning: this is slow.\n"
    with collected_notes() as outer:
        with collected_notes() as inner:
            work()
        thread = threading.Thread(target=warn, args=("said by a thread",))
        thread.start()
        thread.join()
    assert inner == [
        Note(Grade.HINT, "records", "this is known."),
        Note(Grade.WARNING, "", "this is slow."),
    ]
    assert [note.sentence for note in outer] == ["said by a thread"]
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ValueError, match="a bug"), collected_notes():
        raise ValueError("a bug")
    say("again")
    assert capsys.readouterr().out == "again\n"
