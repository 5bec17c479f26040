"""Fine-tunes BERT to choose among answers or endings (SWAG, RACE), chooses and scores."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["multiple-choice"].run()
