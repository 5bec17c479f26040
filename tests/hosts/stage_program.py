"""Runs a stage of the data preparation as ``python -m`` does, in small blocks, a step at a time.

    python stage_program.py MODULE FLAGS

It says which block it takes next, and waits for a line on its standard input before some of them:
those in the environment variable STOPS.
"""

import os
import runpy
import sys

from data_prep.stages import journal
from data_prep.text import documents as module

group_documents = module.group_documents


def small_blocks(documents, *, block_bytes):
    stops = os.environ.get("STOPS", "").split()
    for block in group_documents(documents, block_bytes=block_bytes >> 6):
        print(f"block {block.number} of process {os.getpid()}", flush=True)
        if str(block.number) in stops:
            sys.stdin.readline()
        yield block


if __name__ == "__main__":
    journal.SECONDS_BETWEEN_ENTRIES = 0.0
    module.group_documents = small_blocks
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
