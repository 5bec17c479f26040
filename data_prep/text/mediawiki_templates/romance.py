"""What templates show in the French, Spanish, Portuguese and Italian wikis.

A row is a rule, in most cases a pattern, and the names of templates that it holds for.
"""

from __future__ import annotations

from data_prep.text.mediawiki_templates import dates, quantities
from data_prep.text.mediawiki_templates.arguments import joined, table
from data_prep.text.mediawiki_templates.italian_lives import first_sentence
from data_prep.text.mediawiki_templates.table import nihongo

_AMOUNT = joined(" ", 2)
_FRENCH_ABBREVIATIONS = (
    *("M.", "MM.", "Mme", "Mmes", "Mlle", "Mlles", "Dr", "Drs", "Pr", "Me", "Mgr", "Sr", "Vve"),
    *("St", "Ste", "Sts", "Cie", "p.", "pp.", "vol.", "t.", "chap.", "art.", "fol.", "col.", "éd."),
    *("fig.", "pl.", "§"),
)

FRENCH = table(
    # Dates and centuries
    (
        dates.day_first,
        "date|date-|date de naissance|date de naissance-|naissance|date de décès|date de décès-|"
        "décès|date rapide|date sport|date de fondation|date de sortie",
    ),
    (joined(" ", 3), "date républicaine|date républicaine-"),
    (dates.french_century(), "s|s-|siècle|siècle-"),
    (dates.french_century(after=""), "siècle2|s1|siècle sans mot"),
    (dates.french_century(after=" siècle av. J.-C."), "-s|-s-|s av. j.-c.|siècle av. j.-c."),
    (dates.french_century(after=" millénaire"), "millénaire|m-|millénaire-"),
    (dates.french_century(after=" millénaire av. J.-C."), "-m|-m-|-millénaire"),
    (dates.french_centuries("-"), "sp|sp-"),
    (dates.french_centuries("-", " av. J.-C."), "-sp|-sp-"),
    (dates.french_centuries(" et "), "s2|s2-"),
    (dates.french_centuries(" et ", " av. J.-C."), "-s2|-s2-"),
    (lambda arguments: " ".join(["1er", *filter(None, arguments.positional())]), "1er"),
    ("années {1}", "années|décennie"),
    ("{1} h< {2}>< min {3} s>", "heure|h"),
    ("<{1} h ><{2} min ><{3} s>", "durée"),
    ("av. J.-C.", "av jc|av. jc|avjc|av. j.-c.|av j.-c.|av. j-c"),
    ("ap. J.-C.", "ap jc|ap. jc|apjc|ap. j.-c.|ap j.-c."),
    ("J.-C.", "jc|j.-c."),
    # Quantities
    (quantities.french_quantity, "unité|unite|unité/2|formatnum2"),
    (_AMOUNT, "nombre|nb|nobr2"),
    ("{1:roman}", "rom|rom-maj|nombre romain|romain|romains|chiffre romain|chiffres romains"),
    ("{1} €", "euro|euros|€"),
    ("×10{1:super}", "x10|e10|fois10"),
    ("{1:super}", "exp|exposant"),
    ("{1:sub}", "ind|indice"),
    (quantities.chemical_formula, "fchim|formule chimique|formule brute|chimie"),
    ("n°< {1}>", "n°|no|nº|numéro|num"),
    ("nos< {1}>< {2}>", "nos|n°s"),
    *((f"<{{1}} >{unit}", unit.lower()) for unit in ("km", "km/h", "cm", "mm", "kg", "ha", "m/s")),
    # Titles and abbreviations
    *((f"{short}< {{1}}>< {{2}}>", short.lower()) for short in _FRENCH_ABBREVIATIONS),
    (joined(" ", 2), "souverain|souverain-|souverain2|souverain3"),
    ("c'est-à-dire", "c'est-à-dire|càd"),
    ("c.-à-d.", "cad|c.-à-d."),
    ("etc.", "etc|etc."),
    ("er", "er"),
    ("re", "re"),
    ("e", "e|ème|ieme"),
    ("nd", "nd"),
    ("de", "nde"),
    # Words
    (
        "« {1|texte} »",
        "citation|guil|guillemets|citation nécessaire|cita|guillemets français|« »|"
        "citation en ligne",
    ),
    ("« {2|texte} »", "citation étrangère|citation étrangere"),
    ("\n« {1|texte} »\n", "citation bloc|début citation|citation longue"),
    ("– {1} –", "incise|tirets"),
    ("–", "tiret"),
    ("{texte|fr|1|trad}", "lien"),
    (
        "{1|texte}",
        "refnec|référence nécessaire|référence souhaitée|référence à confirmer|"
        "référence insuffisante|source insuffisante|source à lier|à sourcer|pas clair|"
        "passage non neutre|passage problématique|passage à préciser|passage promotionnel|"
        "passage évasif|quand|qui|où|précision nécessaire|préciser|interprétation personnelle|"
        "travail inédit|non neutre|pertinence|citation à confirmer|clarifier|incohérence|"
        "c'est-à-dire ?|abréviation|abréviation discrète|abrd|abr|graphie|nobr romains|"
        "petites capitales|pc|pt|petit|italique|souligner|texte inversé|terme défini|"
        "titre en langue|échelle|grec ancien|latin|ancre visible|corr|corrigé|nom japonais",
    ),
    ("[sic]", "sic"),
    ("{2|texte}", "langue2|lang2|citation langue"),
    (nihongo, "japonais|japonais2|coréen|russe|arabe|hébreu|grec|thaï|persan|ukrainien"),
    ("{t|s|1}< ({p|2})>", "chinois"),
)


def _siglo(number: str = "", era: str = "", word: str = "", *_: str) -> str:
    """{{siglo|III|a|s}}: siglo III a. C.; without the letter s, the number."""
    before = {"s": "siglo ", "S": "Siglo "}.get(word, "")
    after = {"a": " a. C.", "d": " d. C."}.get(era, "")
    return f"{before}{number}{after}" if number else ""


SPANISH = table(
    (
        dates.day_first,
        "fecha|fecha de nacimiento|fecha de nacimiento y edad|fecha de fallecimiento|"
        "fecha de defunción|fecha de inicio|fecha de fin|fecha de lanzamiento|fecha de publicación|"
        "fecha de estreno|fecha de fundación|fecha de inicio y edad|date",
    ),
    (lambda arguments: _siglo(*arguments.positional()), "siglo|sigloo"),
    ("a. C.", "ac|a. c.|a.c.|a.c|adc"),
    ("d. C.", "dc|d. c.|d.c.|ddc"),
    (_AMOUNT, "unidad|unidades|cantidad|nb|número|num|medida"),
    (quantities.convert, "convertir|conversión"),
    ("{1} °C", "temperatura|grados celsius"),
    ("{1} €", "eur|euro|euros"),
    ("{1} US$", "usd|us$"),
    ("n.º< {1}>", "n.º|nº|n°|no"),
    ("{1}.{2}", "ord|ordinal"),
    (
        "{1|texto}",
        "esd|versalita|versalitas|cita requerida|cr|sin referencias en línea|aclarar|aclaración|"
        "aclaración requerida|quién|¿quién?|¿cuándo?|¿cuál?|dudoso|discutido|verificar|"
        "referencia requerida|fuente requerida|romanos|abreviatura|abr|redondas|negrita|cursiva|"
        "subrayado|unicode2|lj|letra griega|no ref|enlace externo incierto|bandera2|bandera3|"
        "geonombre",
    ),
    ("\n{1|texto|cita}\n", "cita|cita2|caja de cita|cita destacada|cita inicial"),
    ("«{1}»", "comillas|cita en línea"),
    ("[sic]", "sic"),
    (nihongo, "japonés|coreano"),
)

PORTUGUESE = table(
    (
        dates.day_first,
        "data|dtlink|dtext|dni|dnibr|nascimento|data de nascimento|morte|morte e idade|date|"
        "data de nascimento e idade|falecimento e idade|falecimento|data de morte|início|fim|"
        "data de início|data de lançamento",
    ),
    ("século {1:roman}", "século|séc|sec"),
    ("a.C.", "ac|a.c.|a. c."),
    ("d.C.", "dc|d.c.|d. c."),
    (_AMOUNT, "fmtn|unidade|número|num|quantidade"),
    (quantities.convert, "converter"),
    ("R$ {1}", "r$|brl|real"),
    ("{1|texto}", "ilc|ilt|carece de fontes2|esclarecer|quem?|quando?|versalete|"
     "precisa de fontes|citação necessária|dúvida|pbpt|ptbr|flagu2"),
    ("{1} (português brasileiro) ou {2} (português europeu)", "pbpe"),
    ("{1} (português europeu) ou {2} (português brasileiro)", "pepb"),
    ("\n{1|texto|citação}\n", "citação2|quote1|citação bloco|citar"),
    ("“{1}”", "citação|aspas|quote"),
    ("[sic]", "sic"),
)  # fmt: skip

ITALIAN = table(
    (first_sentence, "bio"),
    (dates.day_first, "data|data nascita|data di nascita|data morte|data di morte|date"),
    ("{1:roman} secolo", "secolo|sec"),
    ("{1:roman} secolo a.C.", "secolo ac|sec ac"),
    ("a.C.", "ac|a.c."),
    ("d.C.", "dc|d.c."),
    ("{1}< {u|ul|um|unità|3}>", "m"),
    (_AMOUNT, "unità|numero|quantità"),
    (quantities.convert, "converti"),
    ("{1|testo|contenuto}", "ta|tutto attaccato|senza fonte|citazione necessaria|chiarire|"
     "cita necessaria|maiuscoletto|simbolo|dubbio|sf|cn|evidenziato|no citazione|barrato"),
    ("\n{1|testo}\n", "citazione|quote|cit"),
    ("«{1}»", "virgolette|citazione in linea"),
    ("[sic]", "sic"),
    (nihongo, "giapponese|coreano"),
)  # fmt: skip
