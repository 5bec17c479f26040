"""run_features.py as a user runs it: ranks, a kill, google's flags, the page."""

import contextlib
import json
import re
import signal
import subprocess

import numpy as np
import pytest

from tests.helpers.programs import ROOT, environment, mpirun, python, requires_horovod, run
from tests.unit.checkpoint.tiny_models import save_google

SCRIPT = "run_features.py"
FORMS = {
    "tokens.jsonl": ["--layers=-1,-2"],
    "tokens.npy": ["--layers=-1,-2", "--output_dtype=float16"],
    "texts.npy": ["--pooling=mean", "--normalize"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model with 12,000 texts, which are several pieces."""
    path = tmp_path_factory.mktemp("features") / "model"
    save_google(path, "BertModel")
    (path / "tokenizer_config.json").unlink()  # its casing is not that of these words
    rng = np.random.RandomState(0)
    rows = [
        " ".join(f"w{n}" for n in rng.randint(0, 35, rng.randint(1, 20))) for _ in range(12_000)
    ]
    (path / "texts.txt").write_text("\n".join(rows) + "\n")
    return path


@pytest.fixture(scope="module")
def flags(model):
    return [
        f"--init_checkpoint={model}",
        f"--input_file={model / 'texts.txt'}",
        "--max_seq_length=16",
        "--num_threads=1",
    ]


@pytest.fixture(scope="module")
def single(flags, tmp_path_factory):
    """The directory with the outputs of a single process."""
    directory = tmp_path_factory.mktemp("single")
    for name, form in FORMS.items():
        done = run(SCRIPT, *flags, *form, f"--output_file={directory / name}")
        assert "of 12,000 texts were longer than --max_seq_length=16 and were cut" in done.stdout
        assert "Traceback" not in done.stderr
    return directory


def same_files(directory, other):
    expected = {path.name: path.read_bytes() for path in directory.iterdir()}
    found = {path.name: path.read_bytes() for path in other.iterdir()}
    assert found.keys() == {name for name in expected if name in found}
    assert all(found[name] == expected[name] for name in found)
    return set(found)


@pytest.mark.slow
@requires_horovod
@pytest.mark.parallel
@pytest.mark.parametrize(
    "name",
    [
        pytest.param("tokens.jsonl", marks=pytest.mark.exhaustive),
        pytest.param("tokens.npy", marks=pytest.mark.exhaustive),
        "texts.npy",
    ],
)
def test_two_ranks_write_the_bytes_of_one(single, flags, tmp_path, name):
    done = mpirun(2, SCRIPT, "--horovod", *flags, *FORMS[name], f"--output_file={tmp_path / name}")
    assert done.stdout.count("were cut") == 1, "rank 0 alone prints"
    assert {name, f"{name}.json"} <= same_files(single, tmp_path)


@pytest.mark.exhaustive
def test_a_killed_run_resumes_to_the_same_bytes(single, flags, tmp_path):
    output = tmp_path / "tokens.jsonl"
    command = [SCRIPT, *flags, *FORMS[output.name], f"--output_file={output}"]
    env = environment()
    process = subprocess.Popen(
        [*python(env), *command], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    directory = output.with_name(f"{output.name}.partial")
    while process.poll() is None and not list(directory.glob("part-*.npz")):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not output.exists()
    assert list(directory.glob("part-*.npz"))
    assert re.search(r"resumes; \d+ of \d+ pieces were made before", run(*command).stdout)
    assert same_files(single, tmp_path) == {output.name, f"{output.name}.json"}


def test_the_published_command_of_googles_script(model, tmp_path):
    """With sentences of this vocabulary."""
    page = (ROOT / "docs/howto/coming_from_other_scripts.md").read_text(encoding="utf-8")
    [command] = re.findall(r"python run_features\.py (.*?)```", page, flags=re.DOTALL)
    (tmp_path / "input.txt").write_text("w1 w2 w3 w4 ? ||| w1 w2 w5 w6 w7\n")
    command = command.replace("/tmp", str(tmp_path)).replace("$BERT_BASE_DIR", str(model))
    # The network has two layers of 16 positions.
    words = command.replace("\\\n", " ").replace("-1,-2,-3,-4", "-1,-2").replace("=128", "=16")
    run(SCRIPT, *words.split())
    [line] = (tmp_path / "output.jsonl").read_text().splitlines()
    features = json.loads(line)["features"]
    tokens = "[CLS] w1 w2 w3 w4 [UNK] [SEP] w1 w2 w5 w6 w7 [SEP]"
    assert [feature["token"] for feature in features] == tokens.split()
    assert [[layer["index"] for layer in feature["layers"]] for feature in features] == [
        [-1, -2]
    ] * len(features)


@pytest.mark.slow
def test_the_program_of_the_page(model, tmp_path):
    page = (ROOT / "docs/howto/vectors.md").read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(program.splitlines()) <= 6
    program = program.replace('"model"', repr(str(model)))
    program += "assert vectors.shape == (2, 12) and str(vectors.dtype) == 'float32'\n"
    run("-c", program, fresh=True)
