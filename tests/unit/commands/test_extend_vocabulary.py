"""Model directories with new words, against NumPy and transformers."""

import json

import numpy as np
import pytest
import sentencepiece
import torch
import transformers

from bert_tf.checkpoint.formats import open_source
from bert_tf.commands.extend_vocabulary import Choice, extend_vocabulary
from bert_tf.model_directory.complete import find_model
from bert_tf.util.errors import UserError
from tests.helpers.files import content_of
from tests.helpers.programs import run
from tests.unit.checkpoint.tiny_models import SIZES, huggingface_model, save_google

LETTERS = "abcdefghij"
ENTRIES = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[unused0]", "[unused1]"),
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *("the", "bad", "dig", "fig"),
]
TEXT = "The cafeid, the cafeid: dig fig! " * 5 + "beachhead " * 4 + "decide cafeid decide 123\n"
EMBEDDINGS, BIAS = "bert/embeddings/word_embeddings", "cls/predictions/output_bias"


@pytest.fixture(name="directory", params=["BertForPreTraining", "BertModel"])
def model_directory(request, tmp_path):
    """A published directory: 31 entries and a table of 40 rows, nine of which are padding."""
    path = tmp_path / "model"
    state = {"bert/pooler/dense/bias/adam_m": np.zeros(12, np.float32), "global_step": np.int64(9)}
    save_google(path, request.param, extra=state)
    (path / "vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    (path / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return path


@pytest.fixture(name="text")
def text_file(tmp_path):
    path = tmp_path / "domain.txt"
    path.write_text(TEXT)
    return path


def extended(directory, output_dir, *, target=None, **choice):
    model = find_model(init_checkpoint=directory)
    return extend_vocabulary(model, output_dir, Choice(**choice), target=target)


def words_of(directory):
    lines = (directory / "added_words.tsv").read_text().splitlines()
    assert lines[0] == "id\tword\tcount\tpieces"
    rows = (line.split("\t") for line in lines[1:])
    return {word: (int(index), pieces.split()) for index, word, _, pieces in rows}


def test_new_rows_are_the_means_of_their_pieces(directory, text, tmp_path):
    lines = extended(directory, tmp_path / "out", text=str(text), most=3, min_count=2)
    assert "  11  cafeid  (c ##a ##f ##e ##i ##d)" in lines
    assert any("2 of them replace [unused] entries and 1 are new rows" in line for line in lines)
    # 5 x (2 the, 2 cafeid, dig, fig, 3 marks), 4 beachhead, 2 decide, cafeid, 123 (unknown).
    assert any("the text has 53 words, 150 tokens before" in line for line in lines)
    assert any("and 53 after (1.000)" in line for line in lines)
    before, after = open_source(directory), open_source(tmp_path / "out")
    words = words_of(tmp_path / "out")
    assert {word: index for word, (index, _) in words.items()} == {
        "cafeid": 5, "beachhead": 6, "decide": 31
    }  # fmt: skip
    for name in before.shapes:
        if name in ("global_step", "bert/pooler/dense/bias/adam_m"):
            assert name not in after.shapes
            continue
        values = before.read(name)
        if name in (EMBEDDINGS, BIAS):
            for index, pieces in words.values():
                rows = [values[ENTRIES.index(piece)].astype(np.float64) for piece in pieces]
                values[index] = sum(rows) / len(rows)
        np.testing.assert_allclose(after.read(name), values, rtol=1e-6, err_msg=name)
    assert "2 of a run's state, left out" in lines


def test_rows_are_added_where_the_table_is_full(directory, text, tmp_path):
    letters = "klmnopqrs"
    (directory / "vocab.txt").write_text("\n".join([*ENTRIES, *letters]) + "\n")
    extended(directory, tmp_path / "out", text=str(text), most=3, min_count=3, use_unused=False)
    config = json.loads((tmp_path / "out/bert_config.json").read_text())
    assert config["vocab_size"] == 42  # cafeid and beachhead; decide occurs only twice
    source = open_source(tmp_path / "out")
    assert source.shapes[EMBEDDINGS] == (42, 12)
    np.testing.assert_array_equal(
        source.read(EMBEDDINGS)[:40], open_source(directory).read(EMBEDDINGS)
    )
    assert find_model(init_checkpoint=tmp_path / "out").tokenizer.vocab_size == 42


def test_transformers_loads_it_and_tokenizes_alike(directory, text, tmp_path):
    out = tmp_path / "out"
    extended(directory, out, text=str(text), most=3, min_count=2)
    ours = find_model(init_checkpoint=out).tokenizer
    for use_fast in (True, False):
        theirs = transformers.AutoTokenizer.from_pretrained(out, use_fast=use_fast)
        for line in (TEXT, "Decided BEACHHEADS, a cafe", "the bad fig"):
            assert theirs.encode(line, add_special_tokens=False) == ours.encode(line)
    model = transformers.AutoModel.from_pretrained(out).eval()
    words = model.get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(words, open_source(out).read(EMBEDDINGS))


def test_texts_without_new_words_have_the_outputs_of_before(tmp_path):
    """Logits of earlier entries are equal; a new word's is the mean of its pieces' logits."""
    model = huggingface_model("BertForPreTraining")
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "model/vocab.txt").write_text("".join(f"{entry}\n" for entry in ENTRIES))
    (tmp_path / "model/tokenizer_config.json").write_text('{"do_lower_case": true}')
    (tmp_path / "text.txt").write_text(TEXT)
    extended(tmp_path / "model", tmp_path / "out", text=str(tmp_path / "text.txt"), most=3)
    after = transformers.BertForPreTraining.from_pretrained(tmp_path / "out").eval()
    ids = torch.tensor([[2, 27, 8, 20, 3]])
    with torch.no_grad():
        expected, found = (one(ids).prediction_logits.numpy() for one in (model, after))
    words = words_of(tmp_path / "out")
    kept = sorted(set(range(SIZES["vocab_size"])) - {index for index, _ in words.values()})
    np.testing.assert_allclose(found[..., kept], expected[..., kept], rtol=1e-5, atol=1e-5)
    for index, pieces in words.values():
        mean = expected[..., [ENTRIES.index(piece) for piece in pieces]].mean(axis=-1)
        np.testing.assert_allclose(found[..., index], mean, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("target", ["google", "bert_tf", "huggingface"])
def test_every_format_is_read_back(directory, text, tmp_path, target):
    out = tmp_path / "out"
    extended(directory, out, target=target, text=str(text), most=2)
    model = find_model(init_checkpoint=out)
    assert model.tokenizer.tokenize("Cafeid") == ["cafeid"]
    assert model.tokenizer.lower_case
    assert model.config.vocab_size == open_source(out).shapes[EMBEDDINGS][0] == 40


def test_the_directory_is_the_same_each_time(directory, text, tmp_path):
    for name in ("one", "two"):
        extended(directory, tmp_path / name, text=str(text), most=3)
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
        for name in ("one", "two")
    )
    assert one == two


def test_own_words_are_added_too(directory, text, tmp_path):
    (tmp_path / "words.txt").write_text("Jade\nthe\nbad fig\nqq\n")
    words = str(tmp_path / "words.txt")
    lines = extended(directory, tmp_path / "out", text=str(text), words=words, most=1)
    assert f"1 of {words} left out, already in the vocabulary: the" in lines
    assert f"1 of {words} left out, not a single word for this tokenizer: bad fig" in lines
    assert list(words_of(tmp_path / "out")) == ["jade", "qq", "cafeid"]
    extended(directory, tmp_path / "alone", text=None, words=words)
    assert words_of(tmp_path / "alone")["qq"] == (6, ["[UNK]"])


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"min_count": 100}, ["at least 100 times", "lower --min_count"]),
        ({"text": "{empty}"}, ["--text=", "contains no words"]),
        ({"text": "{missing}"}, ["--text: no file matches"]),
        ({"most": 0}, ["nothing to add (--add=0 takes none of --text); name words in a file"]),
        ({"text": None, "words": "{known}"}, ["known left out, already in the vocabulary: the)"]),
        ({"text": None, "words": "{lines}"}, ["tokenizer: the the", "the the t...)"]),
        ({"text": None, "words": "{empty}"}, ["nothing to add (--words=", "empty is empty)"]),
        ({"text": None, "words": "{missing}"}, ["--words", "does not exist"]),
    ],
)
def test_bad_input_is_refused_and_nothing_is_written(directory, text, tmp_path, choice, words):
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "known").write_text("the\n")
    (tmp_path / "lines").write_text("the " * 100)
    names = {name: tmp_path / name for name in ("empty", "missing", "known", "lines")}
    given = {n: v.format(**names) if isinstance(v, str) else v for n, v in choice.items()}
    before = content_of(tmp_path)
    with pytest.raises(UserError) as error:
        extended(directory, tmp_path / "out", **{"text": str(text), **given})
    for word in words:
        assert word in str(error.value)
    assert content_of(tmp_path) == before


def test_a_sentencepiece_model_is_refused(directory, text, tmp_path):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 20),
        model_prefix=str(directory / "spm"),
        vocab_size=30,
        pad_id=0,
        unk_id=1,
        bos_id=-1,
        eos_id=-1,
        control_symbols="[CLS],[SEP],[MASK]",
        minloglevel=2,
    )
    (directory / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"of the kind sentencepiece; .*BERT's own rules only"):
        extended(directory, tmp_path / "out", text=str(text))


def test_the_command(directory, text, tmp_path):
    flags = (f"--init_checkpoint={directory}", f"--text={text}", f"--output_dir={tmp_path}/out")
    done = run("-m", "bert_tf.commands.extend_vocabulary", *flags, "--add=2", "--min_count=2")
    assert "2 words added; the first by saved tokens" in done.stdout
    assert "only" not in done.stdout
    assert f"--init_checkpoint={tmp_path}/out" in done.stdout.splitlines()[-1]
    assert (tmp_path / "out/model.safetensors").is_file()
    again = run("-m", "bert_tf.commands.extend_vocabulary", *flags, check=False)
    assert again.returncode == 2
    assert "exists and is not empty" in again.stderr
    missing = run("-m", "bert_tf.commands.extend_vocabulary", *flags[::2], check=False)
    assert "give the domain's --text, or your own words" in missing.stderr
