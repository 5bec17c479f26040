"""Fine-tunes BERT on a GLUE task, predicts classes and scores them."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["classifier"].run()
