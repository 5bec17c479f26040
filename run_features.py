"""Computes vectors of texts: of every token, as google-research/bert does, or one per text."""

from bert_tf.commands.features import run

if __name__ == "__main__":
    run()
