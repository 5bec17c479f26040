"""Computes perplexities of masked language models on texts."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["evaluate"].run()
