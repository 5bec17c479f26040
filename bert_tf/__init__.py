"""Pre-train, distil and fine-tune BERT with TensorFlow 1.x-style graphs and sessions."""

from bert_tf.util.installation import require_always_needed

__version__ = "0.1.0"

require_always_needed()
