"""The words of running text."""

import pytest

from bert_tf.tasks.tagging.tagger import spans_in_text

WORDS = {
    "It's Anna-Lena, in 1843.": "It ' s Anna - Lena , in 1843 .",
    "फूल और फल।": "फूल और फल ।",
    "cafe\u0301s a\u0300": "cafe\u0301s a\u0300",
    "شُكْرًا": "شُكْرًا",
    "क्\u200dष": "क्\u200dष",
    "我在Paris。": "我 在 Paris 。",
    "石川は川": "石 川 は 川",
    "영화가 아주": "영화가 아주",
    "a\u3000b\u00a0c\u0085d": "a b c d",
    "snake_case": "snake_case",
    "": "",
}


@pytest.mark.parametrize(("text", "words"), WORDS.items())
def test_words_of_running_text(text, words):
    assert [text[start:end] for start, end in spans_in_text(text)] == words.split(
        " " if words else None
    )
