"""Other names of the namespaces of files, categories and media that MediaWiki accepts.

A dump names each namespace once, in the wiki's language. MediaWiki accepts older and other names
besides: [[Bild:...]] is the same as [[Datei:...]] in German. These are from ``$namespaceAliases``
in MediaWiki 1.39's languages/messages/Messages*.php, with those of each language's fallbacks and
written variants.
"""

from __future__ import annotations

_CHINESE = (
    "媒體, 媒體檔案, 媒體文件, 檔案, 文件, 圖像, 圖片, 分類, "
    "媒体, 媒体文件, 媒体档案, 档案, 图像, 图片, 分类"
)

# The languages' codes, separated by blanks -> the names, separated by commas.
_ALIASES = {
    "ab kv mhr mrj": "Медиа, Файл, Категория, Изображение",
    "abs ban bbc-latn btm bug gor id mad nia su": "Gambar",
    "ace bjn min": "Berkas, Gambar, Kategori",
    "aeb-arab ar arq arz": "وسائط, صورة",
    "af": "Beeld",
    "aln sq": "Figura, Kategori",
    "alt av cv gld inh koi krc kum lbe ru sjd sty": "Изображение",
    "ami cdo gan gan-hans gan-hant hak hsn ii lzh nan pwn szy tay trv wuu za": _CHINESE,
    "zh zh-cn zh-hans zh-hant zh-hk zh-mo zh-my zh-sg zh-tw": _CHINESE,
    "an arn ay cbk-zam es es-formal gn guc qu qug": "Imagen",
    "ang": "Biliþ",
    "ary": "ملف, وسائط, صورة",
    "as": "चित्र, চিত্র, श्रेणी, শ্রেণী",
    "ast": "Imaxe, Imaxen, Archivu, Imagen",
    "avk": "Mamind, Ewava, Imagen, Изображение",
    "az": "Şəkil, Mediya",
    "azb bqi fa lki luz sdh": "رسانه, رسانه‌ای, تصویر",
    "ba": "Рәсем, Төркөм, Изображение",
    "bar": "Medium, Bild",
    "bcc": "مدیا, تصویر, رده, رسانه, رسانه‌ای",
    "be be-tarask": "Выява",
    "bg": "Картинка",
    "bgn": "میڈیا, اکس, رسانه, رسانه‌ای, تصویر",
    "br": "Skeudenn",
    "bs": "Medija, Slika",
    "bxr mdf myv tyv": "Категория, Изображение",
    "ca oc": "Imatge",
    "ce": "Медйа, Сурт, Хlум, Тоба, Кадегар, Изображение",
    "ceb": "Imahen",
    "co egl eml fur it lld pms rgn roa-tara sdc sro": "Immagine",
    "crh": "Категория, Fayl, Kategoriya, Медиа, Файл",
    "crh-cyrl": "Kategoriya, Изображение",
    "crh-latn kbd kbd-cyrl": "Категория",
    "cs sk": "Obrázok",
    "csb pl": "Grafika",
    "cu": "Срѣдьства, Ви́дъ, Видъ",
    "da jut": "Billede",
    "de de-at de-ch de-formal frr gsw hrx lb pdt se-se sli stq sv vmf": "Bild",
    "diq": "Kategori, Kategoriye",
    "dsb hsb": "Wobraz, Bild",
    "dtp ms ms-arab": "Imej",
    "dv": "ފައިލް",
    "el": "Μέσον, Εικόνα",
    "et liv vep vro": "Pilt",
    "eu": "Irudi",
    "ext": "Categoria, Imagen",
    "ff": "Média, Fichier, Catégorie",
    "fi fit krl olo smn vot": "Kuva",
    "frp": "Émâge",
    "ga": "Rang",
    "gag kiu lzz": "Medya, Dosya, Kategori, Resim",
    "gl": "Imaxe, Imagem, Arquivo",
    "glk": "پرونده, رده, رسانه, رسانه‌ای, تصویر",
    "gom gom-deva": "श्रेणी, मिडिया",
    "haw": "Kiʻi",
    "he": "תמונה",
    "hr": "Slika",
    "ht": "Imaj",
    "hu hu-formal": "Kép",
    "ia": "Imagine",
    "ig": "Nká, Ákwúkwó orünotu, Ébéonọr",
    "io": "Imajo",
    "ja": "画像",
    "jv map-bms": "Gambar, Medhia",
    "ka xmf": "სურათი",
    "kaa kk kk-arab kk-cn kk-latn kk-tr": (
        "Таспа, Сурет, Санат, تاسپا, سۋرەت, سانات, Taspa, Swret, Sanat"
    ),
    "kea tet vmw": "Imagem, Arquivo",
    "khw skr-arab ur": "وسیط, زریعہ, تصویر, ملف",
    "kk-cyrl kk-kz": "Taspa, Swret, Sanat, تاسپا, سۋرەت, سانات",
    "kl": "Fil, Billede, Kategori",
    "km": "មីឌា, រូបភាព, ចំណាត់ថ្នាក់ក្រុម, ចំណាត់ក្រុម, ចំនាត់ថ្នាក់ក្រុម",
    "ko ko-kp": "그림",
    "ksh": (
        "Medium, Meedije, Meedijum, Beld, Belld, Sachjrop, Saachjrop, "
        "Saachjropp, Kattejori, Kategorie, Katejori, Bild"
    ),
    "kw": "Class",
    "la": "Imago",
    "lad": "Archivo, Categoría, Meddia, Dossia, Katēggoría, Imagen",
    "lez": "Категория, Изображение, Şəkil, Mediya",
    "li": "Kategorie, Aafbeilding, Afbeelding",
    "lij nap": "Immagine, Categoria",
    "lmo": "Immagine, Categuria, Categoria, Imàjine",
    "lo": "ສື່ອ",
    "lrc": "أسگ, رسانه, رسانه‌ای, تصویر",
    "mg": "Média, Catégorie",
    "mk ruq-cyrl": "Медија, Слика",
    "ml": "ചി, ചിത്രം, പ്ര, വി, വ, വിഭാഗം, വർഗ്ഗം",
    "mn": "Зураг",
    "mo rmy ro rup ruq ruq-latn": "Imagine, Fişier",
    "mt": "Midja",
    "mwl": "Ficheiro, Imagem, Categoria, Arquivo",
    "mzn": "مه‌دیا, مدیا, تصویر, پرونده, رده, رسانه, رسانه‌ای",
    "nah": "Imagen, Categoría",
    "nb nn se-no": "Bilde",
    "nds": "Datei, Kategorie, Bild",
    "nds-nl": "Ofbeelding, Categorie, Kattegerie, Afbeelding",
    "nl nl-informal vls zea": "Afbeelding",
    "or": "ବିଭାଗ",
    "os": "Ныв, Изображение",
    "pdc": "Medium, Datei, Kategorie, Bild",
    "pfl": "Medium, Datei, Kategorie, Kadegorie, Bild",
    "pnb": "تصویر",
    "pnt": "Εικόναν, Μέσον, Εικόνα",
    "ps": "انځور",
    "pt pt-br": "Imagem, Arquivo, Ficheiro",
    "rsk sr-ec": "Kategorija, Медија, Слика",
    "rue uk": "Зображення, Медиа, Категория, Изображение",
    "sa": "माध्यम, चित्रं, चित्रम्",
    "sah": "Ойуу, Изображение",
    "sc": "Immàgini",
    "scn": "Mmàggini, Immagine",
    "sd": "عڪس",
    "se": "Bilde, Kuva",
    "se-fi": "Kuva, Bild",
    "sgs": "Vaizdas, Kategorija",
    "sh sr-el": "Medija, Slika, Категорија",
    "sh-latn": "Medija, Slika, Категорија, Kategorija, Медија, Слика",
    "si": "රූපය",
    "sr": (
        "Kategorija, Медија, Слика, Медиј, Датотека, Категорија, Medija, Slika, Medij, Datoteka"
    ),
    "srn": "Afbeelding, Categorie",
    "sw": "Picha",
    "szl": "Kategoria, Grafika",
    "te": "బొమ్మ, ఫైలు",
    "th": "ภาพ",
    "tl": "Kaurian",
    "tr": "Medya, Resim",
    "tt": "Изображение, Рәсем, Категория, Räsem, Törkem, Медиа, Файл, Төркем, Fayl",
    "tt-cyrl": "Изображение, Рәсем, Категория, Räsem, Törkem",
    "tt-latn": "Räsem",
    "udm": "Суред, Изображение",
    "uz": "Mediya, Tasvir, Kategoriya",
    "vec": "Imàjine, Immagine",
    "vi": "Hình",
    "vo": "Magod",
    "war": "Fayl",
    "wo": "Catégorie",
    "xal": "Зург, Янз, Изображение",
    "yi": "בילד, קאטעגאריע, תמונה",
    "yo": "Àwòrán",
}


def namespace_aliases(language: str) -> frozenset[str]:
    """The names in a language, such as ``de``; empty if it has none or is unknown."""
    return frozenset(
        alias
        for languages, aliases in _ALIASES.items()
        if language in languages.split()
        for alias in aliases.split(", ")
    )
