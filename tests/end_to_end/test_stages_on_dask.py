"""Every stage from a dump to records, by the workers of a Dask scheduler and without them."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from benchmarks.generated_text import documents
from tests.helpers.files import content_of
from tests.helpers.mediawiki import dump, page
from tests.helpers.programs import ROOT, environment, run
from tests.hosts.program_output import LIMIT, Output

pytestmark = pytest.mark.exhaustive

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """The address of a scheduler with two workers, as users start them."""
    directory = tmp_path_factory.mktemp("dask")
    with contextlib.ExitStack() as stack:

        def start(*command):
            process = subprocess.Popen(
                [sys.executable, "-m", "dask", *map(str, command)],
                cwd=ROOT,
                env=environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(process.wait, LIMIT)
            stack.callback(process.terminate)
            return Output(process)

        started = start("scheduler", "--port=0", "--dashboard-address=:0", "--host=127.0.0.1")
        started.wait_for("Scheduler at: ")
        (line,) = started.matching("Scheduler at: ")
        address = line.split()[-1]
        workers = start(
            *("worker", address, "--nworkers=2", "--nthreads=1", "--no-dashboard"),
            f"--local-directory={directory}",
        )
        workers.wait_for("Registered to: ", 2)
        yield address


@pytest.fixture(scope="module")
def wiki(tmp_path_factory):
    """A dump of 5 MB with some markup."""
    path = tmp_path_factory.mktemp("wiki") / "dewiki-pages-articles.xml"
    texts = enumerate(documents(5 << 20, seed=1))
    pages = (
        page(f"Title {n}", f"'''{text[:20]}''' {{{{Box|a=b}}}}\n== [[Part|One]] ==\n{text[20:]}")
        for n, text in texts
    )
    path.write_bytes(dump(*pages))
    return path


@pytest.mark.parametrize("tokenizer", ["wordpiece", "sentencepiece"])
def test_all_stages_make_the_same_files(tmp_path, scheduler, wiki, tokenizer):
    flags = [f"--input_file={wiki}", "--clean", "--vocab_size=600", f"--tokenizer={tokenizer}"]
    flags += ["--dupe_factor=2", "--num_shards=3", "--compression=gzip", "--language=de"]
    made = {}
    for name, how in {
        "alone": "--num_workers=1",
        "processes": "--num_workers=3",
        "dask": f"--scheduler={scheduler}",
    }.items():
        output = tmp_path / name
        done = run("-m", "data_prep.pipeline", *flags, f"--output_dir={output}", how)
        assert ("2 workers at" in done.stderr) == (name == "dask")
        made[name] = {path.relative_to(output): text for path, text in content_of(output).items()}
    stages = {path.parts[0] for path in made["alone"]}
    assert {"text", "clean", "sentences", "shards", "vocabulary", "records"} <= stages
    assert made["processes"] == made["alone"]
    assert made["dask"] == made["alone"]
