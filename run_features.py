"""Computes vectors of texts: of every token, or one per text."""

from bert_tf.commands.features import run

if __name__ == "__main__":
    run()
