"""Computes perplexities of masked language models on texts."""

from bert_tf.commands.scripts import SCRIPTS

run = SCRIPTS["evaluate"].run

if __name__ == "__main__":
    run()
