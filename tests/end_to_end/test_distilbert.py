"""A DistilBERT of transformers where a BERT is taken: masked words, training, answers, back."""

import dataclasses
import json

import numpy as np
import pytest
import tensorflow.compat.v1 as tf
import torch
import transformers

from bert_tf.tasks.pretraining import run as pretraining
from tests.helpers.programs import run
from tests.helpers.settings import with_values
from tests.helpers.squad_files import ENTRIES, LENGTHS, write_squad
from tests.helpers.tensors import variables_of
from tests.helpers.tiny_pretraining import V, pretraining_settings

TEXT = "Anna lives in Paris. Bob lives in Rome, a town of the old friend."
QUESTION = "Where does Anna live?"


def save_distilbert(directory, *, vocab_size):
    config = transformers.DistilBertConfig(
        vocab_size=vocab_size,
        dim=32,
        n_layers=2,
        n_heads=2,
        hidden_dim=64,
        max_position_embeddings=48,
        initializer_range=0.3,
    )
    torch.manual_seed(2)
    model = transformers.DistilBertForMaskedLM(config).eval()
    model.save_pretrained(directory)
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("distilbert")
    save_distilbert(directory / "model", vocab_size=len(ENTRIES))
    (directory / "model/vocab.txt").write_text("\n".join(ENTRIES) + "\n")
    (directory / "model/tokenizer_config.json").write_text('{"do_lower_case": true}')
    write_squad(directory / "train.json", 8, seed=1)
    write_squad(directory / "dev.json", 3, seed=2)
    return directory


def test_masked_words_are_those_of_transformers(files):
    done = run(
        "-m",
        "bert_tf.commands.fill_mask",
        f"--model_dir={files / 'model'}",
        "--text=Anna lives in [MASK] , the old [MASK] .",
        "--top=3",
    )
    tokenizer = transformers.BertTokenizer(files / "model/vocab.txt")
    ids = tokenizer("Anna lives in [MASK] , the old [MASK] .", return_tensors="pt")["input_ids"]
    model = transformers.DistilBertForMaskedLM.from_pretrained(files / "model").eval()
    with torch.no_grad():
        probabilities = torch.softmax(model(ids).logits[ids == tokenizer.mask_token_id], dim=-1)
    assert len(probabilities) == 2
    best = torch.topk(probabilities, 3)
    expected = [
        "  ".join(f"{ENTRIES[i]} {p:.3f}" for p, i in zip(*row))
        for row in zip(best.values.tolist(), best.indices.tolist())
    ]
    assert done.stdout.splitlines() == expected


@pytest.fixture(scope="module")
def answering(files):
    """A fine-tuned model, what its training printed, and the model converted for transformers."""
    done = run(
        "run_squad.py",
        f"--init_checkpoint={files / 'model'}",
        f"--train_file={files / 'train.json'}",
        f"--predict_file={files / 'dev.json'}",
        f"--output_dir={files / 'squad'}",
        *LENGTHS,
        "--do_train",
        "--do_predict",
        "--precision=fp32",
        "--train_batch_size=8",
        "--num_train_epochs=1",
        "--learning_rate=1e-3",
    )
    converted = run(
        "-m",
        "bert_tf.commands.convert",
        f"--input={files / 'squad'}",
        f"--output_dir={files / 'converted'}",
        "--format=huggingface",
    )
    return done.stdout, converted.stdout


@pytest.mark.slow
def test_a_fine_tuning_starts_from_it(files, answering):
    printed, _ = answering
    assert "model.safetensors: 36 variables restored" in printed
    config = json.loads((files / "squad/bert_config.json").read_text())
    assert (config["type_vocab_size"], config["hidden_act"]) == (0, "gelu_erf")
    stored = variables_of(files / "squad")
    assert "cls/squad/output_weights" in stored
    assert not any("token_type" in name or "pooler" in name for name in stored)
    assert json.loads((files / "squad/predictions.json").read_text())


@pytest.mark.slow
def test_what_was_trained_opens_in_transformers(files, answering):
    _, printed = answering
    assert "38 variables converted" in printed
    model, loading = transformers.DistilBertForQuestionAnswering.from_pretrained(
        files / "converted", output_loading_info=True
    )
    assert not any(loading.values()), loading
    stored = variables_of(files / "squad")
    for ours, theirs in (
        ("cls/squad/output_weights", "qa_outputs.weight"),
        ("bert/embeddings/position_embeddings", "distilbert.embeddings.position_embeddings.weight"),
    ):
        np.testing.assert_array_equal(stored[ours], model.state_dict()[theirs].numpy())


@pytest.mark.slow
def test_both_forms_give_the_answer_of_transformers(files, answering):
    del answering
    (files / "document.txt").write_text(TEXT)
    found = [
        run(
            "-m",
            "bert_tf.commands.ask",
            f"--model_dir={files / directory}",
            f"--file={files / 'document.txt'}",
            f"--question={QUESTION}",
            "--json",
        ).stdout
        for directory in ("squad", "converted")
    ]
    assert found[0] == found[1]
    [answer] = json.loads(found[0])["answers"]
    tokenizer = transformers.BertTokenizer(files / "model/vocab.txt")
    batch = tokenizer(QUESTION, TEXT, return_tensors="pt")
    first = batch["token_type_ids"][0].tolist().index(1)
    path = files / "converted"
    model = transformers.DistilBertForQuestionAnswering.from_pretrained(path).eval()
    with torch.no_grad():
        output = model(batch["input_ids"], batch["attention_mask"])
    start, end = (x[0, first:-1].numpy() for x in (output.start_logits, output.end_logits))
    scores = np.where(np.triu(np.ones([len(start)] * 2)), start[:, None] + end, -np.inf)
    i, j = divmod(scores.argmax().item(), len(end))
    ids = batch["input_ids"][0, first:-1][i : j + 1].tolist()
    assert tokenizer.convert_tokens_to_ids(tokenizer.tokenize(answer["text"])) == ids
    assert answer["score"] == pytest.approx(scores[i, j], abs=1e-5)


@pytest.mark.exhaustive
def test_pretraining_continues_without_next_sentences(tmp_path, capsys):
    model = save_distilbert(tmp_path / "start", vocab_size=V)
    settings = pretraining_settings(tmp_path)
    settings = dataclasses.replace(
        settings,
        bert_config_file=None,
        next_sentence=False,
        run=with_values(settings.run, init_checkpoint=str(tmp_path / "start")),
    )
    with tf.Graph().as_default():
        pretraining.run(settings)
    assert "model.safetensors: 41 variables restored" in capsys.readouterr().out
    config = json.loads((tmp_path / "model/bert_config.json").read_text())
    assert config["type_vocab_size"] == 0
    before = model.distilbert.embeddings.word_embeddings.weight.detach().numpy()
    change = np.abs(variables_of(tmp_path / "model")["bert/embeddings/word_embeddings"] - before)
    assert 0 < change.max() < 0.01
