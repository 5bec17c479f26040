"""Pre-trains BERT by replaced-token detection, as ELECTRA does."""

from bert_tf.commands.scripts import SCRIPTS

if __name__ == "__main__":
    SCRIPTS["electra"].run()
