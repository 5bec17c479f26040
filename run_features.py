"""Computes vectors of texts: of every token, as google-research/bert does, or one per text."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["features"].run()
