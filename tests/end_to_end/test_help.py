"""Help, and what is said of wrong flags, must not wait for TensorFlow."""

import pytest

from tests.helpers.programs import run

# Runs a script as a user would, and says at its end what it has loaded.
PROGRAM = """
import atexit, runpy, sys
sys.argv = sys.argv[1:]
slow = {"tensorflow", "horovod", "numpy"}
atexit.register(lambda: print("loaded:", sorted(slow & set(sys.modules))))
runpy.run_path(sys.argv[0], run_name="__main__")
"""
TRAINING = [
    *("run_pretraining.py", "run_squad.py", "run_classifier.py", "run_ner.py"),
    *("run_multiple_choice.py", "run_distillation.py", "run_electra.py"),
]
# A flag of its own for each script that does not train.
OTHERS = {"run_evaluation.py": "--text_column", "run_features.py": "--pooling"}
SCRIPTS = [*TRAINING, *OTHERS]


def last_words(*command):
    """What the program printed, how it ended, and what it had loaded by then."""
    done = run("-c", PROGRAM, *command, check=False, fresh=True)
    *text, loaded = done.stdout.splitlines()
    return "\n".join(text), done, loaded


@pytest.mark.parametrize(
    "flag",
    [
        "--help",
        pytest.param("--helpfull", marks=pytest.mark.exhaustive),
        pytest.param("--helpshort", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script, flag):
    text, done, loaded = last_words(script, flag)
    assert done.returncode == 0
    names = ["--bert_config_file", "--precision_policy"]
    names.append(OTHERS.get(script, "--num_train_steps"))
    for name in names:
        assert f"{name}:" in text
    assert loaded == "loaded: []"


@pytest.mark.parametrize("script", TRAINING)
@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--no_such_flag"], "error: --no_such_flag is not a flag of this command"),
        (["--precision=fp8"], "fp8"),
        (["--do_train"], "error: --"),
        (["--output_dir=out", "--bert_config_file=nowhere.json", "--do_train"], "error: --"),
    ],
    ids=["unknown", "no choice", "required", "missing file"],
)
def test_wrong_flags(script, flags, sentence):
    _, done, loaded = last_words(script, *flags)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert loaded == "loaded: []"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "error: --output_dir is required"),
        (["--metrics=perplexity"], "'perplexity' is none of masked, pseudo"),
        (["--sample=0"], "--sample=0 must be in (0, 1]"),
        (["--max_seq_length=2"], "--max_seq_length=2 must be at least 3"),
        (["--num_draws=0"], "--num_draws=0 must be at least 1"),
        (["--input_file=nowhere.txt"], "--input_file: no file matches 'nowhere.txt'"),
        (["--input_file=setup.py,a.tfrecord"], "no file matches 'a.tfrecord'"),
        (["--rank_timeout=1"], "--rank_timeout=1 must be 0"),
    ],
)
def test_wrong_flags_of_an_evaluation(flags, sentence):
    needed = ["--output_dir=out", "--init_checkpoint=model", "--input_file=setup.py"]
    given = [*needed, *flags] if flags else []
    _, done, loaded = last_words("run_evaluation.py", *given)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert loaded == "loaded: []"


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ([], "error: --input_file is required"),
        (["--pooling=sum"], "--pooling=sum: sum is not one of none, mean, cls, max, mean_sqrt_len"),
        (["--layers=last"], "--layers=last: give whole numbers separated by commas"),
        (["--max_seq_length=2"], "--max_seq_length=2 must be at least 3"),
        (["--batch_size=0"], "--batch_size=0 must be at least 1"),
        (["--input_file=nowhere.txt"], "--input_file: nowhere.txt does not exist"),
        (["--output_file=docs"], "--output_file: docs is a directory"),
        (["--output_dtype=float16"], "--output_dtype=float16 is for a .npy file, but"),
    ],
)
def test_wrong_flags_of_vectors(flags, sentence):
    needed = ["--output_file=out.jsonl", "--init_checkpoint=model", "--input_file=setup.py"]
    given = [*needed, *flags] if flags else []
    _, done, loaded = last_words("run_features.py", *given)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert loaded == "loaded: []"
