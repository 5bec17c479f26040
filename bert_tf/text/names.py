"""Names of a tokenizer's files in a model directory, and of the kinds of tokenizers."""

VOCAB_NAME = "vocab.txt"
SPM_NAME = "spm.model"
TOKENIZER_JSON_NAME = "tokenizer.json"
TOKENIZER_CONFIG_NAME = "tokenizer_config.json"
# The files in a model directory of ours that decide the ids of a text.
TOKENIZER_FILES = (VOCAB_NAME, SPM_NAME, TOKENIZER_JSON_NAME, TOKENIZER_CONFIG_NAME)
ADDED_TOKENS_NAME = "added_tokens.json"  # entries that were added to a vocab.txt, with their ids

WORDPIECE, SENTENCEPIECE = "wordpiece", "sentencepiece"
LIBRARY, JAPANESE = "tokenizer.json", "japanese"
