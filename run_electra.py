"""Pre-trains BERT by replaced-token detection, as ELECTRA does."""

from bert_tf.commands.electra import run

if __name__ == "__main__":
    run()
