"""Computes perplexities of masked language models on texts."""

from bert_tf.commands.evaluate import run

if __name__ == "__main__":
    run()
