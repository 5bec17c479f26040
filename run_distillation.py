"""Pre-trains a smaller BERT with a larger one as its teacher."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["distill"].run()
