"""Fine-tunes BERT to choose among answers or continuations (SWAG, RACE), chooses and scores."""

from bert_tf.commands.multiple_choice import run

if __name__ == "__main__":
    run()
