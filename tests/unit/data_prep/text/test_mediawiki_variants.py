"""The language converter's marks, against the rules of MediaWiki's ConverterRule.php."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.text.mediawiki_text import Options, plain_text
from data_prep.text.mediawiki_variants import VARIANTS, in_one_variant, variants_of


def shown(markup, language="zh", variant=""):
    return "|".join(plain_text(markup, Options(frozenset(), language=language, variant=variant)))


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("是-{zh-hans:计算机;zh-hant:電腦}-。", "是计算机。"),
        ("是-{ zh-hans : 计算机 ; zh-hant : 電腦 ; }-。", "是计算机。"),
        ("-{zh:内存;zh-cn:内存条;zh-tw:記憶體}-很大", "内存很大"),
        ("-{zh-tw:記憶體;zh-cn:内存}-很大", "内存很大"),
        ("用-{zh-tw:軟體;zh-hk:軟件}-写", "用軟體写"),
        ("-{Linux}-系统和-{}-文字", "Linux系统和文字"),
        ("甲-{H|zh-cn:打印机;zh-tw:印表機}-乙-{T|zh-hans:软件;zh-hant:軟體}-丙", "甲乙丙"),
        ("甲-{-|zh-cn:打印机}-乙-{+|zh-cn:打印机;zh-tw:印表機}-丙", "甲乙丙"),
        ("用-{A|zh-cn:信息;zh-tw:資訊}-，-{A;T|zh-cn:信;zh-tw:資}-，-{A|字}-", "用信息，信，字"),
        ("用-{H;A|zh-cn:信息;zh-tw:資訊}-的", "用的"),
        ("-{R|zh-cn:不变;x}-是-{R;A|乾}-", "zh-cn:不变;x是乾"),
        ("-{N|zh-hk}-，-{N|en}-", "中文（香港），en"),
        ("-{D|zh-cn:信息;zh-tw:資訊}-", "中文（中国大陆）：信息；中文（臺灣）：資訊；"),
        ("甲-{D;A|zh-cn:信息;zh-tw:資訊}-乙", "甲乙"),
        ("-{zh-hans|简体}-和-{zh-hans;zh-hant|簡繁}-", "简体和簡繁"),
        ("-{H|巨集=>zh-cn:宏}-甲-{宏=>zh-tw:巨集}-", "甲巨集"),
        ("-{zh-hans:A&nbsp;B&amp;C;zh-hant:D&#65;E}-", "A B&C"),
        ("-{zh-hans:甲;乙;zh-hant:丙}-", "甲;乙"),
        ("-{zh-hans:<span style=\"color:red;top:1\">红</span>;zh-hant:紅}-", "红"),
        ("-{zh-hans:一-{zh-hans:二;zh-hant:貳}-三;zh-hant:四}-", "一二三"),
        ("-{zh-hans:{{lang|en|river}};zh-hant:x}-和-{{{lang|en|sea}}}-", "river和sea"),
        ("见[[-{zh-hans:程序员;zh-hant:程式設計師}-]]和[[网络|-{zh-cn:网络;zh-tw:網路}-]]。",
         "见程序员和网络。"),
        ("-{zh-hans:[[甲|乙]];zh-hant:[[丙|丁]]}-，-{[[甲|乙]]}-", "乙，乙"),
        ("'''-{zh-hans:软件;zh-hant:軟體}-'''是", "软件是"),
        ("{{lang|zh|-{zh-hans:书;zh-hant:書}-}}，{{nowrap|-{R|一二}-}}", "书，一二"),
        ("-{zh-cn:;zh-tw:有}-", "有"),
        ("<nowiki>-{zh-cn:甲}-</nowiki>乙", "-{zh-cn:甲}-乙"),
        ("-{{nowrap|甲}}-", "-甲-"),
        ("甲-{zh-cn:乙;zh-tw:丙}-{{nowrap|-{丁}-}}戊", "甲乙丁戊"),
        ("<!-- -{ -->甲-{乙}-", "甲乙"),
    ],
)  # fmt: skip
def test_what_the_wiki_shows_to_readers_without_a_choice(markup, text):
    assert shown(markup) == text


@pytest.mark.parametrize(
    ("variant", "text"),
    [
        ("zh-cn", "网络 內"),
        ("zh-sg", "网络 內"),
        ("zh-tw", "網路 內"),
        ("zh-hk", "網絡 內"),
        ("zh-mo", "網絡 內"),
        ("sr-el", "网络 內"),  # of another language: as without
    ],
)
def test_a_chosen_variant_or_what_stands_in_for_it(variant, text):
    markup = "-{zh-hans:网络;zh-tw:網路;zh-hk:網絡}- -{zh-hant:內}-"
    assert shown(markup, variant=variant) == text


@pytest.mark.parametrize(
    ("language", "markup", "first", "variant", "other"),
    [
        ("sr", "-{sr-ec:река; sr-el:reka}- и -{Windows}-", "река и Windows",
         "sr-el", "reka и Windows"),
        ("sr", "-{sr-cyrl:река; sr-latn:reka}-", "река", "sr-el", "reka"),
        ("sh", "-{sh-latn:rijeka; sh-cyrl:ријека}-", "rijeka", "sh-cyrl", "ријека"),
        ("kk", "-{kk-cyrl:өзен;kk-latn:özen;kk-arab:وزەن}-", "өзен", "kk-tr", "özen"),
        ("ku", "-{ku-arab:ڕووبار;ku-latn:çem}-", "çem", "ku-arab", "ڕووبار"),
        ("uz", "-{uz-latn:daryo;uz-cyrl:дарё}-", "daryo", "uz-cyrl", "дарё"),
        ("iu", "-{ike-latn:kuuk;ike-cans:ᑰᒃ}-", "ᑰᒃ", "ike-latn", "kuuk"),
        ("tg", "-{tg:дарё;tg-latn:daryo}-", "дарё", "tg-latn", "daryo"),
        ("gan", "-{gan-hant:電腦;gan-hans:电脑}-", "电脑", "gan-hant", "電腦"),
        ("crh", "-{crh-cyrl:озен;crh-latn:özen}-", "özen", "crh-cyrl", "озен"),
        ("zh-hant", "-{zh-hans:网;zh-hant:網}-", "网", "zh-hant", "網"),
    ],
)  # fmt: skip
def test_languages(language, markup, first, variant, other):
    assert shown(markup, language) == first
    assert shown(markup, language, variant) == other
    assert variant in variants_of(language)


@pytest.mark.parametrize("language", ["en", "de", ""])
def test_languages_of_one_form_have_no_marks(language):
    """Names of chemicals have such brackets."""
    assert shown("N-{2-[3-(x)]}-amine and -{a}-", language) == "N-{2-[3-(x)]}-amine and -{a}-"


@pytest.mark.parametrize(
    "markup", ["-{zh-cn:甲 乙", "甲}-乙", "-{zh-cn:{{甲;zh-tw:乙}- 丙", "-{zh-xx:甲;zh-cn:乙}- -{"]
)
def test_what_is_not_closed_or_no_rule_stays(markup):
    assert in_one_variant(markup, "zh").replace("-{", "").replace("}-", "") == markup.replace(
        "-{", ""
    ).replace("}-", "")


@given(
    st.lists(
        st.sampled_from(
            [
                "-{",
                "}-",
                "{{",
                "}}",
                "{",
                "}",
                "-",
                "|",
                ";",
                ":",
                "=>",
                "zh-cn",
                "zh",
                "A",
                "H",
                "字",
            ]
        ),
        max_size=40,
    )
)
@settings(max_examples=500, deadline=None)
def test_any_markup(parts):
    markup = "".join(parts)
    found = in_one_variant(markup, "zh")
    assert len(found) <= len(markup) + 8 * markup.count("N|")
    plain_text(markup, Options(frozenset(), language="zh"))


def test_deep_and_long_markup_takes_no_time():
    assert in_one_variant("-{" * 50_000 + "字" + "}-" * 50_000, "zh").count("字") == 1
    assert len(in_one_variant("-{zh-cn:a;" * 20_000, "zh")) == 200_000
    assert in_one_variant("-{zh-cn:a" + ";" * 200_000 + "}-", "zh").startswith("a")


def test_all_variants_have_a_language():
    assert {"zh-tw", "sr-el", "kk-cn", "uz-cyrl", "ike-latn"} <= set(VARIANTS)
