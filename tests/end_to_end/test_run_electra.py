"""run_electra.py from flags to files, and what is fine-tuned from its output."""

import json
import shutil

import numpy as np
import pytest

from bert_tf.checkpoint.tensorflow_file import write_checkpoint
from tests.helpers.glue_files import write_data
from tests.helpers.programs import run
from tests.helpers.tensors import variables_of

SCRIPT = "run_electra.py"
STEPS = 12


@pytest.fixture(scope="module")
def common(flags):
    """Flags of a run that learns how many words are replaced."""
    return [
        *flags,
        "--do_train",
        "--deterministic",
        "--generator_hidden_size=0.5",
        f"--num_train_steps={STEPS}",
        "--save_checkpoints_steps=6",
    ]


@pytest.fixture(scope="module")
def trained(common, tmp_path_factory):
    """The directory of a run, and what the program printed."""
    output_dir = tmp_path_factory.mktemp("electra")
    return output_dir, run(SCRIPT, *common, "--do_eval", f"--output_dir={output_dir}")


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_it_learns_and_is_evaluated(trained):
    output_dir, done = trained
    assert done.stderr == ""
    section = json.loads((output_dir / "run.json").read_text())["ledger"]["replaced_tokens"]
    assert section["generator_hidden_size"] == 16
    assert section["discriminator_weight"] == 50
    steps = lines_of(output_dir / "log.jsonl")
    for line in steps:
        parts = line["masked_lm_loss"] + line["discriminator_loss"]
        assert line["loss"] == pytest.approx(parts, rel=1e-4)
        cross_entropy = line["discriminator_cross_entropy"]
        assert line["discriminator_loss"] == pytest.approx(50 * cross_entropy, rel=1e-4)
    assert steps[-1]["loss"] < steps[0]["loss"]
    results = json.loads((output_dir / "eval_results.json").read_text())
    assert results["global_step"] == STEPS
    for name in ("masked_lm_accuracy", "discriminator_accuracy", "discriminator_recall"):
        assert 0 <= results[name] <= 1
    assert not any("pooler" in name or "seq_relation" in name for name in variables_of(output_dir))


@pytest.mark.exhaustive
def test_resumed_it_ends_in_the_same_bits(trained, common, tmp_path):
    for path in trained[0].glob("model.ckpt-6.*"):
        shutil.copy(path, tmp_path)
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-6"\n')
    done = run(SCRIPT, *common, f"--output_dir={tmp_path}")
    assert "(step 6)" in done.stdout
    expected, found = (variables_of(d / f"model.ckpt-{STEPS}") for d in (trained[0], tmp_path))
    assert expected.keys() == found.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.exhaustive
def test_an_evaluation_replaces_the_same_words_in_any_batches(trained, common):
    """Held-out records do not fill up all batches: what fills them up does not count."""
    output_dir = trained[0]
    expected = json.loads((output_dir / "eval_results.json").read_text())
    evaluates = [flag for flag in common if flag != "--do_train"]
    run(SCRIPT, *evaluates, "--do_eval", "--eval_batch_size=3", f"--output_dir={output_dir}")
    found = json.loads((output_dir / "eval_results.json").read_text())
    assert found == {name: pytest.approx(value, rel=1e-4) for name, value in expected.items()}
    assert found["discriminator_replaced"] == expected["discriminator_replaced"]


@pytest.mark.slow
def test_another_generator_cannot_resume(trained, common):
    output_dir = trained[0]
    wider = ["--generator_hidden_size=1", f"--output_dir={output_dir}"]
    done = run(SCRIPT, *common, *wider, check=False)
    assert done.returncode == 2
    assert f"cannot resume from {output_dir / f'model.ckpt-{STEPS}'}: generator/" in done.stderr
    assert "give the flags that the checkpoint was made with" in done.stderr


@pytest.mark.slow
def test_it_starts_from_a_bert(trained, common, tmp_path):
    """As run_pretraining.py saves it; here its encoder is that of a discriminator."""
    bert = tmp_path / "bert"
    bert.mkdir()
    shutil.copy(trained[0] / "vocab.txt", bert)
    values = variables_of(trained[0] / f"model.ckpt-{STEPS}")
    kept = {
        name: value
        for name, value in values.items()
        if name.startswith("bert/") and not name.endswith(("adam_m", "adam_v"))
    }
    kept["cls/predictions/output_bias"] = np.zeros(600, np.float32)
    write_checkpoint(str(bert / "model.ckpt-6"), {**kept, "global_step": np.int64(6)})
    (bert / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-6"\n')
    steps = ["--num_train_steps=1", "--num_warmup_steps=0"]
    more = [*steps, f"--init_checkpoint={bert}", f"--output_dir={tmp_path / 'out'}"]
    done = run(SCRIPT, *common, *more)
    assert "the checkpoint has no generator, so it starts from random weights" in done.stdout
    assert "the checkpoint has no discriminator head" in done.stdout
    assert "of the checkpoint, unused: cls/predictions/output_bias" in done.stdout


@pytest.mark.slow
def test_what_is_fine_tuned_is_the_discriminator(trained, tmp_path):
    """Its vocabulary comes with it; the pooler is as new as the head, and nobody has to say so."""
    data, output_dir = tmp_path / "SST-2", tmp_path / "tuned"
    write_data(data)
    done = run(
        "run_classifier.py", "--task_name=SST-2", f"--data_dir={data}", "--max_seq_length=16",
        "--precision=fp32", "--train_batch_size=16", "--num_train_steps=3", "--do_train",
        "--do_eval", f"--init_checkpoint={trained[0]}", f"--output_dir={output_dir}",
    )  # fmt: skip
    assert "the checkpoint has no classification head, so it starts from random" in done.stdout
    assert "fresh: bert/pooler/dense/kernel, bert/pooler/dense/bias, output_weights" in done.stdout
    assert "cls/discriminator/output_weights, generator/* (" in done.stdout
    assert (output_dir / "eval_results.json").is_file()
    assert not any(name.startswith(("generator", "cls")) for name in variables_of(output_dir))


def test_both_networks_are_converted(trained, tmp_path):
    command = ["-m", "bert_tf.commands.convert", f"--input={trained[0]}", "--format=huggingface"]
    done = run(*command, f"--output_dir={tmp_path / 'discriminator'}")
    assert "of the generator, left out (--generator converts it instead)" in done.stdout
    run(*command, f"--output_dir={tmp_path / 'generator'}", "--generator")
    found = {
        name: json.loads((tmp_path / name / "config.json").read_text())
        for name in ("discriminator", "generator")
    }
    assert [config["model_type"] for config in found.values()] == ["electra"] * 2
    assert found["discriminator"]["architectures"] == ["ElectraForPreTraining"]
    assert found["generator"]["architectures"] == ["ElectraForMaskedLM"]
    assert [config["hidden_size"] for config in found.values()] == [32, 16]
