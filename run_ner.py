"""Fine-tunes BERT to label tokens (NER, POS), predicts labels and scores them."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["ner"].run()
