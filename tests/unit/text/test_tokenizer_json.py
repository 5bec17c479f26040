"""The tokenizers library with our tokenizer.json, against our own tokenizers."""

import json
import re
import unicodedata

import pytest
import tokenizers
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from bert_tf.text.tokenizer_files import TokenizerFiles
from bert_tf.text.tokenizer_json import tokenizer_json
from bert_tf.util.errors import UserError
from data_prep.stages.tokenizer_content import TokenizerContent
from tests.helpers.programs import ROOT
from tests.helpers.sentencepiece_models import LINES, train_sentencepiece
from tests.helpers.small_vocabulary import odd_and_plain_texts, write_small_vocabulary

# Names of special tokens are found in a text as they are written; see the test of that.
NAMES = re.compile(r"\[(CLS|SEP|MASK|PAD|UNK)]")
GOLDEN = json.loads((ROOT / "tests/data/google_tokenizer_golden.json").read_text())


def load(files):
    content, reason = tokenizer_json(files)
    assert reason == ""
    return tokenizers.Tokenizer.from_str(json.dumps(content))


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.fixture(
    scope="module",
    name="both",
    params=[
        pytest.param(True, id="uncased"),
        pytest.param(False, id="cased", marks=pytest.mark.exhaustive),
    ],
)
def tokenizers_of_a_casing(request, tmp_path_factory):
    """Our tokenizer and theirs, with the golden vocabulary."""
    path = tmp_path_factory.mktemp("golden") / "vocab.txt"
    path.write_text("".join(f"{entry}\n" for entry in GOLDEN["vocabulary"]), encoding="utf-8")
    files = TokenizerFiles(path, None, request.param)
    return files.load(), load(files)


def test_ids_are_googles(both):
    ours, theirs = both
    name = "ids_uncased" if ours.lower_case else "ids_cased"
    for case in GOLDEN["cases"]:
        if not NAMES.search(case["text"]):
            assert ids(theirs, case["text"]) == case[name], case["text"]


# All that Python's version of Unicode has.
CHARACTERS = [
    char for char in map(chr, range(0x110000)) if unicodedata.category(char) not in ("Cn", "Cs")
]


def words(theirs, text):
    normal = theirs.normalizer.normalize_str(text)
    return [word for word, _ in theirs.pre_tokenizer.pre_tokenize_str(normal)]


def test_every_character_makes_the_same_words(both):
    """But for a few of rare scripts, which versions of Unicode disagree on."""
    ours, theirs = both
    different = []
    for start in range(0, len(CHARACTERS), 2000):
        texts = [f"a{char}b" for char in CHARACTERS[start : start + 2000]]
        if words(theirs, "\n".join(texts)) != ours.basic.words("\n".join(texts)):
            different += [x for x in texts if words(theirs, x) != ours.basic.words(x)]
    assert len(different) < 10
    assert all(ord(text[1]) > 0x10000 for text in different)


INTERESTING = st.sampled_from(
    "aAbeEiInsΣσςİıé\u0301\u0345Å中文가'’.:,-#[] \t\n\x0b\x0c\x1c\x85\u2028\u200b\u00a0\ue000"
)


@settings(max_examples=300, deadline=None)
@given(st.text(st.one_of(INTERESTING, st.sampled_from(CHARACTERS[:60_000])), max_size=40))
def test_any_text_makes_the_same_words(both, text):
    ours, theirs = both
    assert words(theirs, text) == ours.basic.words(text)


@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_of_whole_texts(tmp_path, lower_case):
    path = write_small_vocabulary(tmp_path / "vocab.txt", lower_case=lower_case)
    files = TokenizerFiles(path, None, lower_case)
    ours, theirs = files.load(), load(files)
    for line in NAMES.sub("", "\n".join(odd_and_plain_texts())).splitlines():
        assert ids(theirs, line) == ours.encode(line), line


def test_long_words_are_unknown_from_the_same_length_on(both):
    ours, theirs = both
    for length in (99, 101, 200, 201):
        assert ids(theirs, "x" * length) == ours.encode("x" * length)


def test_texts_and_pairs_have_special_tokens_and_segments(both):
    ours, theirs = both
    encoding = theirs.encode("hello", "the world")
    hello, world = ours.encode("hello"), ours.encode("the world")
    ends = [ours.sep_id]
    assert encoding.ids == [ours.cls_id, *hello, *ends, *world, *ends]
    assert encoding.type_ids == [0] * (len(hello) + 2) + [1] * (len(world) + 1)
    assert theirs.encode("hello").ids == [ours.cls_id, *hello, *ends]


def test_special_tokens_in_a_text_are_found_as_written(both):
    ours, theirs = both
    found = ids(theirs, "hello[MASK] [mask] world")
    assert found[: len(ours.encode("hello")) + 1] == [*ours.encode("hello"), ours.mask_id]
    assert found.count(ours.mask_id) == 1


@pytest.fixture(scope="module", name="model_file")
def sentencepiece_model(tmp_path_factory):
    return train_sentencepiece(tmp_path_factory.mktemp("spm") / "spm.model")


def assert_same_ids(files, lines=LINES):
    ours, theirs = files.load(), load(files)
    for line in lines:
        assert ids(theirs, line) == ours.encode(line), (line, ours.tokenize(line))
    return ours, theirs


@pytest.mark.parametrize("lower_case", [True, False])
def test_ids_are_those_of_sentencepiece(model_file, lower_case):
    assert_same_ids(TokenizerFiles(None, model_file, lower_case))


@pytest.mark.parametrize(
    "options",
    [
        {"normalization_rule_name": "identity"},
        {"normalization_rule_name": "nfkc"},
        {"add_dummy_prefix": False},
        {"split_by_whitespace": False},
        {"user_defined_symbols": "quick,ü,3,1"},
    ],
    ids=str,
)
def test_the_settings_of_a_model_are_followed(tmp_path, options):
    path = train_sentencepiece(tmp_path / "spm.model", **options)
    assert_same_ids(TokenizerFiles(None, path, False))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"model_type": "bpe"}, "it is a BPE model rather than a unigram model"),
        ({"model_type": "char", "vocab_size": 400}, "it is a character model rather than"),
        ({"byte_fallback": True, "vocab_size": 1100}, "it splits unknown characters into bytes"),
        ({"normalization_rule_name": "nfkc_cf"}, "its normalization (nfkc_cf) is neither"),
        ({"remove_extra_whitespaces": False}, "it keeps all white space"),
        ({"treat_whitespace_as_suffix": True}, "it does not mark the beginnings of words"),
    ],
    ids=["bpe", "char", "bytes", "folded", "white space", "suffix"],
)
def test_other_models_are_left_out_with_the_reason(tmp_path, options, reason):
    path = train_sentencepiece(tmp_path / "spm.model", **options)
    content, why = tokenizer_json(TokenizerFiles(None, path, False))
    assert content is None
    assert reason in why


@pytest.fixture(name="theirs")
def directory_of_transformers(tmp_path):
    """A vocab.txt, and a directory with its entries as transformers 5 saves them."""
    vocab_file, directory = tmp_path / "vocab.txt", tmp_path / "theirs"
    write_small_vocabulary(vocab_file, lower_case=True)
    transformers.BertTokenizerFast(str(vocab_file)).save_pretrained(directory)
    (directory / "vocab.txt").unlink()
    return vocab_file, directory


def test_entries_of_a_tokenizer_json_are_read(theirs, tmp_path):
    expected = TokenizerFiles(theirs[0], None, True)
    found = TokenizerFiles.in_directory(theirs[1])
    assert found.file.name == "tokenizer.json"
    assert found.vocabulary().is_same(expected.vocabulary())
    for text in odd_and_plain_texts():
        assert found.load().encode(text) == expected.load().encode(text)
    assert TokenizerContent.of(found).load().vocab_size == expected.load().vocab_size
    found.copy_to(tmp_path)
    assert TokenizerFiles.in_directory(tmp_path).content() == expected.content()


def test_entries_that_were_added_later_are_read(theirs):
    tokenizer = transformers.AutoTokenizer.from_pretrained(theirs[1])
    tokenizer.add_tokens(["lockdown"])
    tokenizer.save_pretrained(theirs[1])
    (theirs[1] / "vocab.txt").unlink(missing_ok=True)
    ours = TokenizerFiles.in_directory(theirs[1]).load()
    assert ours.encode("a lockdown") == tokenizer("a lockdown", add_special_tokens=False).input_ids


def test_ids_of_an_odd_tokenizer_json_are_kept(theirs, tmp_path):
    """Ids without an entry, from a vocab.txt that repeats one, and entries with a line's end."""
    plain = theirs[0].read_text(encoding="utf-8")
    theirs[0].write_text(plain.replace("\n", "\na\nthe\n\n\n", 1), encoding="utf-8")
    transformers.BertTokenizerFast(str(theirs[0])).save_pretrained(theirs[1])
    (theirs[1] / "vocab.txt").unlink()
    path = theirs[1] / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    vocab = values["model"]["vocab"]
    values["model"]["vocab"] = {{"": "x\ny\r\nz"}.get(e, e): index for e, index in vocab.items()}
    path.write_text(json.dumps(values), encoding="utf-8")
    expected = tokenizers.Tokenizer.from_file(str(path))
    found = TokenizerFiles.in_directory(theirs[1])
    found.copy_to(tmp_path)
    for files in (found, TokenizerFiles.in_directory(tmp_path)):
        for text in ("the end of a line", "a b, the x y z."):
            assert files.load().encode(text) == ids(expected, text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda values: values["model"].update(type="Unigram"), "is malformed; restore it"),
        (lambda values: values["model"]["vocab"].update(beyond=10**9), "entries are not 0 to"),
        (lambda values: values["model"].pop("vocab"), "is malformed; restore it"),
        (lambda values: values.update(model=[]), "is malformed; restore it"),
        (lambda values: values["model"].update(vocab=[[1, 0]]), "is malformed; restore it"),
        (lambda values: values.update(added_tokens=[3]), r"json: its added_tokens have 3, not an"),
        (lambda values: values.update(added_tokens=5), r"json: its added_tokens have 5, not an"),
        (lambda values: values["added_tokens"][0].pop("id"), "is malformed; restore it"),
        (lambda values: values["model"]["vocab"].update({"the": 9.5}), "are not 0 to"),
        (
            lambda values: values["model"]["vocab"].update(
                {"a\ud83d": values["model"]["vocab"].pop("a")}
            ),
            r"json: the entry 'a\\ud83d' has half of a surrogate pair",
        ),
    ],
)
def test_other_contents_are_refused(theirs, change, said):
    path = theirs[1] / "tokenizer.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    with pytest.raises(UserError, match=said):
        TokenizerFiles.in_directory(theirs[1]).load()
