"""Fine-tuning makes the updates of AdamW with transformers on torch: the same losses."""

import json

import pytest
import torch
import transformers

from tests.helpers.programs import run

WORDS = "where does anna live ? in paris , the old town of a friend . un ##able ##s"
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(" ")]
UPDATES, RATE, DECAY = 20, 3e-3, 0.01
SENTENCES = [
    ["anna", "live", "in", "old", "paris", "."],
    ["where", "does", "a", "friend", "live", "?"],
    ["the", "towns", ",", "unable", "friends"],
    ["paris"],
]
TAGS = [["B-PER", "O", "O", "O", "B-LOC", "O"], ["O"] * 6, ["O", "B-LOC", "O", "O", "O"], ["B-LOC"]]
CLASSES = ["long", "long", "short", "short"]


def write_start(directory, class_name, labels):
    """Writes a small network without dropout, the head of a class, and a tokenizer."""
    directory.mkdir()
    (directory / "vocab.txt").write_text("\n".join(VOCABULARY))
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.1,
        id2label=dict(enumerate(labels)),
        label2id={label: number for number, label in enumerate(labels)},
    )
    getattr(transformers, class_name)(config).save_pretrained(directory)
    transformers.BertTokenizerFast(str(directory / "vocab.txt")).save_pretrained(directory)
    return directory


def losses_of_torch(model, batch):
    """The losses before each update, all of them with the same batch."""
    weights = dict(model.named_parameters())
    plain = {name for name in weights if "bias" in name or "LayerNorm" in name}
    groups = [
        {"params": [weights[name] for name in weights if name not in plain], "weight_decay": DECAY},
        {"params": [weights[name] for name in plain], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, eps=1e-6)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, 0, UPDATES)
    losses = []
    for _ in range(UPDATES):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def losses_of(script, start, output_dir, *flags):
    """The losses of our script with its own settings, but without warm-up."""
    run(
        script,
        f"--init_checkpoint={start}",
        *flags,
        "--do_train",
        f"--train_batch_size={len(SENTENCES)}",
        f"--num_train_epochs={UPDATES}",
        f"--learning_rate={RATE}",
        "--warmup_proportion=0",
        "--max_seq_length=16",
        "--precision=fp32",
        "--display_loss_steps=1",
        f"--output_dir={output_dir}",
    )
    lines = (output_dir / "log.jsonl").read_text().splitlines()
    return [row["loss"] for row in map(json.loads, lines) if "loss" in row]


def test_tagging(tmp_path):
    labels = ["B-LOC", "B-PER", "O"]
    directory = write_start(tmp_path / "start", "BertForTokenClassification", labels)
    columns = zip(SENTENCES, TAGS)
    blocks = ["".join(f"{w} {t}\n" for w, t in zip(words, tags)) for words, tags in columns]
    (tmp_path / "train.txt").write_text("\n".join(blocks))
    found = losses_of(
        "run_ner.py", directory, tmp_path / "out", f"--train_file={tmp_path}/train.txt"
    )

    tokenizer = transformers.BertTokenizerFast.from_pretrained(directory)
    batch = tokenizer(SENTENCES, is_split_into_words=True, padding=True, return_tensors="pt")
    batch["labels"] = torch.full_like(batch["input_ids"], -100)
    for number, tags in enumerate(TAGS):
        words = batch.word_ids(number)
        for word, tag in enumerate(tags):
            batch["labels"][number, words.index(word)] = labels.index(tag)
    model = transformers.BertForTokenClassification.from_pretrained(directory)
    assert found == pytest.approx(losses_of_torch(model, batch), rel=1e-3)
    assert found[-1] < found[0] / 3


def test_classification(tmp_path):
    labels = ["long", "short"]
    directory = write_start(tmp_path / "start", "BertForSequenceClassification", labels)
    texts = [" ".join(words) for words in SENTENCES]
    rows = "".join(f'"{text}",{label}\n' for text, label in zip(texts, CLASSES))
    (tmp_path / "train.csv").write_text(f"text,label\n{rows}")
    flags = [f"--train_file={tmp_path}/train.csv"]
    found = losses_of("run_classifier.py", directory, tmp_path / "out", *flags)

    tokenizer = transformers.BertTokenizerFast.from_pretrained(directory)
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    batch["labels"] = torch.tensor([labels.index(label) for label in CLASSES])
    model = transformers.BertForSequenceClassification.from_pretrained(directory)
    assert found == pytest.approx(losses_of_torch(model, batch), rel=1e-3)
    assert found[-1] < found[0] / 3


def test_multiple_choice(tmp_path):
    """SWAG's table; the head has one output, and its name alone tells it from a rating's."""
    directory = write_start(tmp_path / "start", "BertForMultipleChoice", ["unused"])
    endings = [["paris .", "friends"], ["towns", "live ?"], ["old", "in"], ["?", "."]]
    labels = [0, 1, 1, 0]
    rows = [[" ".join(words), "the", *of_row] for words, of_row in zip(SENTENCES, endings)]
    lines = [",".join(f'"{cell}"' for cell in [*row, label]) for row, label in zip(rows, labels)]
    table = "\n".join(["sent1,sent2,ending0,ending1,label", *lines])
    (tmp_path / "train.csv").write_text(table)
    flags = [f"--train_file={tmp_path}/train.csv"]
    found = losses_of("run_multiple_choice.py", directory, tmp_path / "out", *flags)

    tokenizer = transformers.BertTokenizerFast.from_pretrained(directory)
    first = [row[0] for row in rows for _ in range(2)]
    second = [f"the {ending}" for of_row in endings for ending in of_row]
    inputs = tokenizer(first, second, padding=True, return_tensors="pt")
    batch = {name: value.view(len(rows), 2, -1) for name, value in inputs.items()}
    batch["labels"] = torch.tensor(labels)
    model = transformers.BertForMultipleChoice.from_pretrained(directory)
    assert found == pytest.approx(losses_of_torch(model, batch), rel=1e-3)
    assert found[-1] < found[0] / 2
