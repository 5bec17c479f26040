"""Pre-trains BERT on records, in one process or on all ranks of a job."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["pretrain"].run()
