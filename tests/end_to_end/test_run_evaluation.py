"""run_evaluation.py as a user runs it: ranks, a directory in use, a published model."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.antibody_chains import antiberty_chains
from tests.helpers.programs import holder_of, mpirun, requires_horovod, run
from tests.unit.checkpoint.tiny_models import save_google

SCRIPT = "run_evaluation.py"
# Mean loss and right guesses of AntiBERTy on its own two chains, by a forward pass in numpy.
ANTIBERTY_NATS, ANTIBERTY_TOKENS = 0.2644, 234


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluation") / "model"
    save_google(path, "BertForMaskedLM")
    (path / "tokenizer_config.json").unlink()  # its casing is not that of these words
    rng = np.random.default_rng(0)
    rows = [" ".join(f"w{n}" for n in rng.integers(0, 35, size)) for size in range(1, 40)]
    text = "id\ttext\n" + "".join(f"{number}\t{row}\n" for number, row in enumerate(rows))
    (path / "texts.tsv").write_text(text)
    return path


@pytest.fixture(scope="module")
def flags(model):
    return [
        f"--init_checkpoint={model}",
        f"--input_file={model / 'texts.tsv'}",
        "--text_column=text",
        "--max_seq_length=16",
        "--batch_tokens=100",
        "--precision=fp32",
    ]


@pytest.fixture(scope="module")
def single(flags, tmp_path_factory):
    """The directory of a single process, and what it printed."""
    output_dir = tmp_path_factory.mktemp("single")
    return output_dir, run(SCRIPT, *flags, f"--output_dir={output_dir}")


def test_what_it_prints_and_writes(single):
    output_dir, done = single
    content = json.loads((output_dir / "perplexity.json").read_text())
    tokens = sum(range(1, 40))
    assert content["counts"]["tokens"] == content["counts"]["words"] == tokens
    assert content["results"][0]["pseudo"]["tokens"] == tokens
    assert f"39 of 39 texts to score\n75 sequences (25 texts cut into several), {tokens} tok" in (
        done.stdout
    )
    assert "Salazar et al. 2020" in done.stdout
    assert "tokens read/s" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@requires_horovod
@pytest.mark.parallel
@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.exhaustive)])
def test_several_ranks_write_the_bytes_of_one(single, flags, tmp_path, ranks):
    done = mpirun(ranks, SCRIPT, "--horovod", *flags, f"--output_dir={tmp_path}")
    assert done.stdout.count("texts to score") == 1, "rank 0 alone prints"
    for path in single[0].rglob("*.tsv"):
        other = tmp_path / path.relative_to(single[0])
        assert other.read_bytes() == path.read_bytes()
    name = "perplexity.json"
    assert (tmp_path / name).read_bytes() == (single[0] / name).read_bytes()


def test_a_directory_in_use(flags, tmp_path):
    with holder_of(tmp_path):
        done = run(SCRIPT, *flags, f"--output_dir={tmp_path}", check=False)
    assert done.returncode == 2
    assert f"error: --output_dir: {tmp_path} is in use by process" in done.stderr


@pytest.mark.exhaustive
def test_antiberty_has_its_known_loss(tmp_path):
    spec = importlib.util.find_spec("antiberty")
    if spec is None:
        pytest.skip("needs the package antiberty")
    directory = Path(spec.submodule_search_locations[0], "trained_models")
    (tmp_path / "chains.txt").write_text("\n".join(map(" ".join, antiberty_chains())))
    run(
        SCRIPT,
        f"--init_checkpoint={directory / 'AntiBERTy_md_smooth'}",
        f"--vocab_file={directory / 'vocab.txt'}",
        "--do_lower_case=false",
        f"--input_file={tmp_path / 'chains.txt'}",
        "--metrics=pseudo",
        "--precision=fp32",
        f"--output_dir={tmp_path / 'out'}",
        timeout=800,
    )
    content = json.loads((tmp_path / "out" / "perplexity.json").read_text())
    assert content["counts"]["tokens"] == ANTIBERTY_TOKENS
    assert content["results"][0]["pseudo"]["nats_per_token"] == pytest.approx(
        ANTIBERTY_NATS, abs=5e-5
    )
