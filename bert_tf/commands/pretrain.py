"""Pre-trains BERT on records, in one process or on all ranks of a job."""

from bert_tf.commands.scripts import SCRIPTS

run = SCRIPTS["pretrain"].run

if __name__ == "__main__":
    run()
