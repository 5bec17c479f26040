"""Pre-trains BERT on records, in one process or on all ranks of a job."""

from bert_tf.commands.pretrain import run

if __name__ == "__main__":
    run()
