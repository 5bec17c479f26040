"""The rules of SQuAD's official scripts, v1.1 and v2.0, a character and a word at a time."""

import unicodedata
from pathlib import Path

from bert_tf.tasks.question_answering.examples import Answer, Example, SquadFile


def squad_of(golds, *, is_v2):
    """Questions 0, 1, ... with these true answers; in v2.0, one without is unanswerable."""
    examples = [
        Example(str(i), "?", "", "", 0, tuple(Answer(t, 0) for t in texts), is_v2 and not texts)
        for i, texts in enumerate(golds)
    ]
    return SquadFile(Path("squad.json"), tuple(examples))


def naive_words(text):
    """Words of a text: lower case, no ASCII punctuation, no article, split at white space."""
    kept = [c for c in text.lower() if c not in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"]
    # Runs of letters, digits and their like are words that can be an article.
    runs = []
    for c in kept:
        is_word = c.isalnum() or c == "_"
        if runs and runs[-1][0] and is_word:
            runs[-1][1] += c
        else:
            runs.append([is_word, c])
    words = [""]
    for c in "".join(" " if run in ("a", "an", "the") else run for _, run in runs):
        if c.isspace():
            words.append("")
        else:
            words[-1] += c
    return [word for word in words if word]


def naive_characters(text):
    """Tokens as MLQA's script has them in Chinese: ideographs, and what else blanks separate."""
    tokens = [""]
    for c in text.lower():
        if c in "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~" or unicodedata.category(c).startswith("P"):
            continue
        if "\u4e00" <= c <= "\u9fa5":
            tokens += [c, ""]
        elif c.isspace():
            tokens.append("")
        else:
            tokens[-1] += c
    return [token for token in tokens if token]


def naive_f1(gold, answer, *, is_v2):
    if is_v2 and (not gold or not answer):
        return float(gold == answer)
    left, common = list(gold), 0
    for word in answer:
        if word in left:
            left.remove(word)
            common += 1
    if common == 0:
        return 0.0
    precision, recall = common / len(answer), common / len(gold)
    return (2 * precision * recall) / (precision + recall)


def naive_scores(golds, answer, *, is_v2, split=naive_words):
    words = [split(gold) for gold in golds]
    if is_v2:
        words = [gold for gold in words if gold] or [[]]
    answer = split(answer)
    f1s = [naive_f1(gold, answer, is_v2=is_v2) for gold in words]
    return float(any(gold == answer for gold in words)), max(f1s)


def naive_result(golds, answers, odds, limit, *, is_v2):
    """``golds`` by question, ``answers`` and ``odds`` by id."""
    scores = {}
    for i, texts in enumerate(golds):
        if str(i) in answers:
            scores[str(i)] = naive_scores(texts, answers[str(i)], is_v2=is_v2)
        elif not is_v2:
            scores[str(i)] = (0.0, 0.0)
    total = len(scores)
    if not is_v2:
        exact, f1 = map(one_by_one, zip(*scores.values()))
        return {"exact_match": 100.0 * exact / total, "f1": 100.0 * f1 / total, "total": total}
    has_answer = {str(i): bool(texts) for i, texts in enumerate(golds)}
    result = {}
    for which, name in enumerate(("exact", "f1")):
        used = {key: pair[which] for key, pair in scores.items()}
        if odds is not None:
            best, threshold = naive_best(used, answers, odds, has_answer)
            result[f"best_{name}"], result[f"best_{name}_thresh"] = best, threshold
            used = {k: float(not has_answer[k]) if odds[k] > limit else v for k, v in used.items()}
        for prefix, wanted in (("", {True, False}), ("HasAns_", {True}), ("NoAns_", {False})):
            values = [value for key, value in used.items() if has_answer[key] in wanted]
            if values:
                result[prefix + name] = 100.0 * one_by_one(values) / len(values)
                result[prefix + "total"] = len(values)
    return {**result, "exact_match": result["exact"]}


def one_by_one(values):
    """Their sum; the built-in one rounds otherwise since Python 3.12."""
    total = 0.0
    for value in values:
        total += value
    return total


def naive_best(scores, answers, odds, has_answer):
    """The threshold is moved up, a question at a time."""
    current = best = sum(not has for has in has_answer.values())
    threshold = 0.0
    for key in sorted(odds, key=odds.get):
        if key in scores:
            if has_answer[key]:
                current += scores[key]
            elif answers[key] != "":
                current -= 1
            if current > best:
                best, threshold = current, odds[key]
    return 100.0 * best / len(scores), threshold
