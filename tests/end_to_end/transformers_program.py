"""What transformers makes of model directories: ids, and the results of pipelines.

    python tests/end_to_end/transformers_program.py JOBS

JOBS is a JSON list of [directory, names of steps below, inputs]. Prints a JSON list: the
results of each job. Needs transformers and torch, and nothing of this project.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import transformers


def ids(directory, texts):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def pairs(directory, inputs):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return [dict(tokenizer(*pair)) for pair in inputs]


def special(directory, inputs):
    del inputs
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    roles = ("pad", "unk", "cls", "sep", "mask")
    return [
        [tokenizer.model_max_length, *(getattr(tokenizer, f"{role}_token_id") for role in roles)]
    ]


def decoded(directory, inputs):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    return [tokenizer.decode(i, skip_special_tokens=True) for i in inputs]


def spans(directory, questions):
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(directory).eval()
    found = []
    for question in questions:
        outputs = model(**tokenizer(*question.values(), return_tensors="pt"))
        found.append([outputs.start_logits[0].tolist(), outputs.end_logits[0].tolist()])
    return found


def answers(directory, questions):
    """None for each question in versions (from 5 on) that have no such pipeline."""
    try:
        return pipeline("question-answering")(directory, questions)
    except KeyError:
        return [None for _ in questions]


def pipeline(task, **options):
    def results(directory, inputs):
        run = transformers.pipeline(task, model=directory, **options)
        return [run(**i) if isinstance(i, dict) else run(i) for i in inputs]

    return results


STEPS = {
    "ids": ids,
    "pairs": pairs,
    "special": special,
    "decoded": decoded,
    "text-classification": pipeline("text-classification", top_k=None),
    "token-classification": pipeline("token-classification", ignore_labels=[]),
    "fill-mask": pipeline("fill-mask", top_k=3),
    "spans": spans,
    "question-answering": answers,
    "feature-extraction": pipeline("feature-extraction"),
}

if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    results = [STEPS[name](directory, inputs) for directory, name, inputs in jobs]
    print(json.dumps(results, default=float))
