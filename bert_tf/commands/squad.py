"""Fine-tunes BERT on SQuAD v1.1 or v2.0, answers questions and scores the answers."""

from bert_tf.commands.scripts import SCRIPTS

run = SCRIPTS["squad"].run

if __name__ == "__main__":
    run()
