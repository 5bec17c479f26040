"""run_pretraining.py with a fault in one rank after its third update, or in its input.

Run under mpirun by test_faults.py and tests/hosts: ``python faulty_rank.py FAULT RANK MARKER
--flag ...``. The fault happens unless the file MARKER exists, which is made before: once, however
often the job is started. "killed at 3,7" is a fault after each of these steps, with markers of its
own.
"""

import os
import signal
import sys
import threading
from pathlib import Path

from bert_tf.commands.scripts import SCRIPTS
from bert_tf.util import environment

STEP = 4  # one after a checkpoint, with flags_of_a_short_run
READS = 6


def signal_to(number):
    os.kill(os.getpid(), number)


def hang():
    threading.Event().wait()


def work_for_ever():
    while True:
        sum(range(1000))


def fail():
    raise ZeroDivisionError("a bug")


AFTER_AN_UPDATE = {
    "killed": lambda: signal_to(signal.SIGKILL),
    "stopped": lambda: signal_to(signal.SIGSTOP),
    "hangs": hang,
    "works": work_for_ever,
    "fails": fail,
    "asked": lambda: signal_to(signal.SIGUSR1),
}


def act_once(action, marker):
    if not marker.exists():
        marker.touch()
        action()


def after_an_update(action, marker):
    """Does ``action`` as a part of a hook."""
    from bert_tf.train import progress

    after_update = progress.ProgressHook.after_update

    def and_then(self, *arguments, **named):
        if self.step == STEP:
            act_once(action, marker)
        return after_update(self, *arguments, **named)

    progress.ProgressHook.after_update = and_then


def at_steps(steps, marker):
    """Is killed once after each of the steps, before that of a checkpoint there is written."""
    from bert_tf.train import progress

    after_update = progress.ProgressHook.after_update

    def and_then(self, *arguments, **named):
        if self.step in steps:
            own = marker.with_name(f"{marker.name}_{self.step}")
            act_once(AFTER_AN_UPDATE["killed"], own)
        return after_update(self, *arguments, **named)

    progress.ProgressHook.after_update = and_then


def while_reading(marker):
    """Hangs in one of the threads that read records."""
    from bert_tf.records.tfrecord import RecordSet

    read, reads = RecordSet.read, []

    def then_hang(self, indices):
        reads.append(None)
        if len(reads) > READS:
            act_once(hang, marker)
        return read(self, indices)

    RecordSet.read = then_hang


def while_saving(marker):
    """Is killed when the files of step 6 are written, and the list of checkpoints is not."""
    import tensorflow.compat.v1 as tf

    save = tf.train.Saver.save

    def killed(self, session, prefix, global_step=None, **named):
        if global_step == 6 and not marker.exists():
            marker.touch()
            save(self, session, prefix, global_step=global_step, write_state=False, **named)
            signal_to(signal.SIGKILL)
        return save(self, session, prefix, global_step=global_step, **named)

    tf.train.Saver.save = killed


def while_sending(marker):
    """Is killed when the others wait for its parts of the slots at step 6."""
    from bert_tf.train.shared_slots import SharingSaver

    save = SharingSaver.save

    def killed(self, session, prefix, global_step=None, **named):
        if global_step == 6:
            act_once(AFTER_AN_UPDATE["killed"], marker)
        return save(self, session, prefix, global_step=global_step, **named)

    SharingSaver.save = killed


def prepare(fault, marker):
    if fault == "hangs in reading":
        while_reading(marker)
    elif fault.startswith("killed at "):
        at_steps([int(step) for step in fault.split()[-1].split(",")], marker)
    elif fault == "killed while saving":
        while_saving(marker)
    elif fault == "killed while sending":
        while_sending(marker)
    else:
        after_an_update(AFTER_AN_UPDATE[fault], marker)


def main(fault, rank, marker):
    prepare_environment = environment.prepare_environment

    def then_the_fault(**named):
        prepare_environment(**named)  # before which TensorFlow must not be imported
        prepare(fault, marker)

    if os.environ["OMPI_COMM_WORLD_RANK"] == rank:
        environment.prepare_environment = then_the_fault
    SCRIPTS["pretrain"].run()


if __name__ == "__main__":
    program, fault, rank, marker, *flags = sys.argv
    sys.argv = [program, *flags]
    main(fault, rank, Path(marker))
