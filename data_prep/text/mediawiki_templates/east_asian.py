"""What templates show in the Japanese, Chinese and Vietnamese wikis.

A row is a rule, in most cases a pattern, and the names of templates that it holds for.
"""

from __future__ import annotations

from data_prep.text.mediawiki_templates import dates
from data_prep.text.mediawiki_templates.arguments import joined, table
from data_prep.text.mediawiki_templates.table import nihongo

_AMOUNT = joined(" ", 2)

JAPANESE = table(
    (
        dates.year_first,
        "生年月日と年齢|生年月日|生年月|生日|没年月日|死亡年月日|開始日|終了日|日付|発売日|公開日|設立日",
    ),
    (dates.second_date, "没年齢|死亡年月日と没年齢|没年月日と没年齢|没年月日と年齢"),
    ("{1}世紀", "世紀"),
    ("{label|1}", "仮リンク|日本語版にない記事リンク|ill2|未作成記事リンク"),
    ("{1}（{2}<、{3}>）", "読み仮名|読み仮名 ruby不使用|ruby|ルビ|ruby-ja|rubyja|"
     "ふりがな|振り仮名|読み|よみがな|フリガナ"),
    ("{1}", "jis2004フォント|jis90フォント|補助漢字フォント|unicodeフォント|拡張漢字|cjk拡張漢字|"
     "フォント|補助漢字|"
     "要出典範囲|独自研究範囲|疑問点範囲|誰範囲|いつ範囲|要検証範囲|要説明範囲|"
     "内容過剰範囲|正確性範囲|要ページ番号範囲|"
     "圏点|傍点|下線|縦書き|ピン音|ハングル|smallsup|行内引用|黒帯|半角|全角|漢字|スペル|訳語疑問点範囲|"
     "ko-hani|big2|太字|斜体|取り消し線|人物の名前|国名"),
    ("\n{1|quote|text}\n", "引用|引用文|枠線引用|squote"),
    ("『{1}』", "二重鉤括弧"),
    ("「{1}」", "鉤括弧|引用符"),
    (_AMOUNT, "単位|数"),
    ("{1}円", "円"),
    ("{1}ドル", "ドル"),
)  # fmt: skip

CHINESE = table(
    (dates.dates_of_life, "bd|生卒|生死"),
    (
        dates.year_first,
        "生日|出生日期|出生日期和年龄|出生日期和年齡|出生日期及年龄|出生日期及年齡|出生年月|死亡日期|"
        "死亡日期和年龄|死亡日期和年齡|死亡日期及年龄|死亡日期及年齡|逝世日期|逝世日期和年龄|"
        "开始日期|開始日期|结束日期|結束日期|成立日期|日期|卒日",
    ),
    ("{1}世纪", "世纪"),
    ("{1}世紀", "世紀"),
    ("{3|display|d|1}", "le|lj|lk|link|ld|lf|lr|li"),
    ("{4|display|d|3}", "tsl|translink|ilh|ill-wd"),
    ("{display|d|1}", "internal link helper|interlanguage link helper|illx|跨语言链接|"
     "跨語言連結|綠鏈|绿链"),
    ("{1}（{2}）", "ruby|注音|ruby-zh|ruby-zh-b|ruby-zh-p|rubyzh|拼音注"),
    ("{1}", "僻字|!-|漢字|汉字|cjk-new-char|cjk字|拼音|zy|zhuyin|專名號|专名号|"
     "書名號|书名号|來源請求範圍|"
     "来源请求范围|who|when|where|clarify|vague|dubious|fact-span|原創研究範圍|粗体|粗體|注释文字|下劃線|"
     "whom|which|需要解释|需要解釋|古字|罕用字|缺字|造字|标题|標題"),
    ("\n{1|text|quote}\n", "引文|引言|引用|cquote|quotation|quote"),
    ("NT${1}", "nt$|ntd|twd|新台幣|新臺幣"),
    ("HK${1}", "hk$|hkd"),
    ("¥{1}", "rmb|cny|人民币|人民幣"),
    (_AMOUNT, "单位|單位|数量|數量"),
    ("{j|1}", "jpn|日語|日语"),
    ("{k|hg|hangul|1}", "kor|韓語|韩语"),
    ("{v|1}", "vie"),
)  # fmt: skip

VIETNAMESE = table(
    (dates.year_first, "ngày sinh|ngày sinh và tuổi|ngày mất|ngày mất và tuổi|ngày bắt đầu"),
    ("thế kỷ {1}", "thế kỷ"),
    (_AMOUNT, "số|đơn vị"),
    ("{1}", "cần dẫn nguồn đoạn|làm rõ đoạn"),
    (nihongo, "tiếng nhật"),
)
