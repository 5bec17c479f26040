"""Fine-tunes BERT to label tokens (NER, POS), predicts labels and scores them."""

from bert_tf.commands.scripts import SCRIPTS

run = SCRIPTS["ner"].run

if __name__ == "__main__":
    run()
