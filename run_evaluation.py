"""Evaluates masked language models on texts: perplexity and pseudo-perplexity."""

from bert_tf.commands.evaluate import run

if __name__ == "__main__":
    run()
