"""Fine-tunes BERT on SQuAD v1.1 or v2.0, answers questions and scores the answers."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["squad"].run()
