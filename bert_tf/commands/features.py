"""Computes vectors of texts: of every token, as google-research/bert does, or one per text.

    python run_features.py --init_checkpoint=model --input_file=texts.txt --pooling=mean \\
        --output_file=vectors.npy
"""

from bert_tf.commands.scripts import SCRIPTS

run = SCRIPTS["features"].run

if __name__ == "__main__":
    run()
