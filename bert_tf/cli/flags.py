"""Parsing of the command line, --help, and messages about wrong flags, for all commands.

Define numbers with ``flags.DEFINE(Number(), name, default, help)`` in the module to which they
belong: absl records the calling module, by which a run identifies this project's flags.
"""

from __future__ import annotations

import difflib
import functools
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, NoReturn

from absl import app, flags

from bert_tf.util.errors import UserError, exit_on_user_error
from bert_tf.util.options import LARGEST_FLOAT32

_RECIPES = "recipes/"

# Flags that contain free text or addresses. All other string flags are treated as paths.
NO_PATHS = frozenset({
    "before_training", "master", "mirror", "question", "scheduler", "text", "tpu_name",
    "triton_server_url", "url",
})  # fmt: skip

_HELP = frozenset({"help", "helpshort", "helpfull", "h", "?"})
_DASHES = "\N{HYPHEN}\N{NON-BREAKING HYPHEN}\N{EN DASH}\N{EM DASH}\N{MINUS SIGN}"
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOME = re.compile(r"^(\s*[\"']?)~(?=/|$)")
_FLAG_AND_VALUE = re.compile(r"--(\w+)=([^\s,;()]*[^\s,;():.])")
_CHOICES = re.compile(r"^<[^>]{60,}>")
_PLACES = {
    "gs": "in Google Cloud Storage",
    "s3": "in Amazon S3",
    "s3a": "in Amazon S3",
    "hdfs": "in HDFS",
    "http": "on the web",
    "https": "on the web",
    "hf": "on the Hugging Face hub",
}
_LEAST_LIKENESS = 0.7
_LIKENESS_OF_A_TIE = 0.1
_HELP_WIDTH = 100

if TYPE_CHECKING:
    from typing import ParamSpec

    Arguments = ParamSpec("Arguments")


class Number(flags.FloatParser):
    """Parses a float and rejects NaN, which would satisfy all bounds of absl's own parser.

    Args:
      infinite: whether inf and -inf are allowed; otherwise the value must be finite in float32.
    """

    def __init__(self, *, infinite: bool = False) -> None:
        super().__init__()
        self._infinite = infinite

    def convert(self, argument: int | float | str) -> float:
        """Returns the value; raises ValueError with the reason if it is invalid."""
        value = super().convert(argument)
        if math.isnan(value):
            raise ValueError("must be a number")
        if not self._infinite and abs(value) > LARGEST_FLOAT32:
            raise ValueError("must be a finite number")
        return value


def flag_group(heading: str) -> Callable[[Callable[Arguments, None]], Callable[Arguments, None]]:
    """Decorates a function that defines flags, so that --help lists them under ``heading``.

    The flags are those of the program, or of the function's ``values`` argument. A group that is
    defined within another keeps its own heading.
    """

    def decorate(define_flags: Callable[Arguments, None]) -> Callable[Arguments, None]:
        @functools.wraps(define_flags)
        def define(*args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
            values = next((a.values for a in args if hasattr(a, "values")), flags.FLAGS)
            before = set(values)
            define_flags(*args, **kwargs)
            for name in set(values) - before:
                flag: Any = values[name]  # takes attributes that absl does not know
                if not hasattr(flag, "heading"):
                    flag.heading = heading

        return define

    return decorate


def run_command(
    main: Callable[[Sequence[str]], object],
    define_flags: Callable[[], object] = lambda: None,
    *,
    takes_words: bool = False,
) -> NoReturn:
    """Defines the flags of a command and runs ``main`` like ``app.run``.

    A wrong flag ends the process like any UserError. Words that are neither flags nor their values
    are errors, too, unless ``takes_words``.
    """
    define_flags()
    parser = functools.partial(parse_flags, takes_words=takes_words)

    def run(arguments: Sequence[str]) -> object:
        try:
            return main(arguments)
        except UserError as error:
            error.args = (as_typed(str(error), flags.FLAGS),)
            raise

    exit_on_user_error(functools.partial(app.run, run, flags_parser=parser))


def as_typed(sentence: str, values: flags.FlagValues) -> str:
    """A sentence about settings, with the names of the flags that were actually used.

    Marks every ``--flag=value`` that was not typed as "(the default)".
    """
    for name in values:
        # Set when a flag is defined under another name, or one that differs from the setting's.
        usual = getattr(values[name], "stands_for", None)
        if usual is not None and _is_used(name, usual, values):
            sentence = re.sub(rf"{re.escape(usual)}\b", f"--{name}", sentence)

    def marked(found: re.Match[str]) -> str:
        name, text = found.groups()
        if name not in values or values[name].present:
            return found[0]
        value = values[name].value
        forms = {str(value), str(value).lower()}
        forms |= {f"{value:g}"} if isinstance(value, float) else set()
        return f"{found[0]} (the default)" if text in forms else found[0]

    return _FLAG_AND_VALUE.sub(marked, sentence)


def _is_used(name: str, usual: str, values: flags.FlagValues) -> bool:
    """Whether a flag was used instead of the one named in messages."""
    other = usual.lstrip("-").partition("=")[0]
    return other not in values or bool(values[name].present and not values[other].present)


def parse_flags(arguments: Sequence[str], *, takes_words: bool = False) -> list[str]:
    """Returns the program and the words; UserError for wrong flags and unexpected words.

    A help flag prints the help and ends the process.
    """
    values = flags.FLAGS
    program, *given = arguments
    _, words = _parse(program, given, values, takes_words=takes_words)
    return [program, *words]


def parse_flag_file(path: str, values: flags.FlagValues) -> set[str]:
    """Sets the flags of a file in ``values``; returns their names.

    Raises a UserError that names the file for wrong flags.
    """
    try:
        read, _ = _parse("", [f"--flagfile={path}"], values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    named = {item.flag for item in read if item.flag is not None}
    return {name if name in values else name.removeprefix("no") for name in named}


def _parse(
    program: str, given: Sequence[str], values: flags.FlagValues, *, takes_words: bool = False
) -> tuple[list[_Item], list[str]]:
    """Sets the given flags; returns everything read, including flag files, and the words."""
    try:
        given = read_flag_files(given, values)
        read = list(_read(given, values))
        if any(item.flag in _HELP for item in read):
            print(help_text(values, sys.modules["__main__"].__doc__))
            sys.exit(0)
        _, *words = values([program, *given])
    except (flags.Error, ValueError) as error:
        raise UserError(_explain_error(error, values)) from error
    if not takes_words:
        # An empty shell variable in quotes results in an empty word.
        wrong = [item for item in read if item.flag is None and item.text]
        if wrong:
            raise UserError(_explain_word(wrong[0], values))
    _settle_paths(values)
    return read, words


def read_flag_files(arguments: Sequence[str], values: flags.FlagValues) -> list[str]:
    """Returns the arguments, with the contents of flag files in place of --flagfile.

    Raises UserError if a file cannot be read or contains characters that no argument can have.
    """
    try:
        found = values.read_flags_from_files(list(_read_recipes(arguments)))
    except flags.CantOpenFlagFileError as error:
        cause = error.__context__
        assert isinstance(cause, OSError), "absl raises it while it handles one"
        path, reason = cause.filename, cause.strerror
        _check_place("flagfile", str(path))
        raise UserError(
            f"--flagfile: {path} cannot be read ({reason}); give an existing file."
        ) from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"a --flagfile is not UTF-8 text (byte {error.start}); give a file with one flag per "
            "line."
        ) from error
    if any("\0" in argument for argument in found):
        raise UserError(
            "a --flagfile contains NUL characters, as UTF-16 text does; save it as UTF-8, with one "
            "flag per line."
        )
    return found


def _read_recipes(arguments: Iterable[str]) -> Iterator[str]:
    """Replaces --flagfile=recipes/NAME by the flags of the installed recipe.

    absl would look for files named in a recipe in the working directory.
    """
    rest = iter(arguments)
    for argument in rest:
        flag, equals, path = argument.partition("=")
        is_file = flag in ("--flagfile", "-flagfile")
        if is_file and not equals:
            path = next(rest, "")
        lines = None
        if is_file and path.startswith(_RECIPES):
            from bert_tf.util.recipes import flags_of_recipe

            lines = flags_of_recipe(path)
        if lines is not None:
            yield from _read_recipes(lines)
        elif is_file and path:
            yield f"--flagfile={path}"
        else:
            yield argument


def project_flags(values: flags.FlagValues) -> list[flags.Flag]:
    """All flags except those of absl and TensorFlow, in order of definition."""
    foreign = {
        flag.name
        for module, defined in values.flags_by_module_dict().items()
        if module.partition(".")[0] in ("absl", "tensorflow")
        for flag in defined
    }
    # A flag with a short name is listed twice.
    return [values[name] for name in values if name == values[name].name and name not in foreign]


def help_text(values: flags.FlagValues, about: str | None) -> str:
    """The description of the command and its flags, grouped under their headings."""
    groups: dict[str, list[str]] = {}
    for flag in project_flags(values):
        groups.setdefault(getattr(flag, "heading", "Flags"), []).append(_describe(flag))
    groups["All commands"] = [
        _wrapped("  --flagfile: File with one flag per line; flags after it take precedence."),
        _wrapped("  --help: Show this help."),
    ]
    parts = [f"{heading}:\n" + "\n".join(lines) for heading, lines in groups.items()]
    return "\n\n".join([*filter(None, [(about or "").strip()]), *parts])


def _describe(flag: flags.Flag) -> str:
    name = f"[no]{flag.name}" if flag.boolean else flag.name
    default = ""
    if isinstance(flag.default, bool):
        default = f" (default: {str(flag.default).lower()})"
    elif isinstance(flag.default, float):
        default = f" (default: {flag.default:g})"
    elif flag.default not in (None, "", []):
        given = flag.default
        default = f" (default: {','.join(given) if isinstance(given, list) else given})"
    # absl starts with all choices as one word, which may be too long for a line.
    text = _CHOICES.sub(lambda found: found[0].replace("|", " | "), flag.help)
    return _wrapped(f"  --{name}: {text}{default}")


def _wrapped(text: str) -> str:
    return textwrap.fill(text, _HELP_WIDTH, subsequent_indent=" " * 6, break_on_hyphens=False)


class _Item(NamedTuple):
    """An argument: the name of a flag, or a word and the preceding flag."""

    flag: str | None
    text: str
    before: str | None = None


def _read(arguments: Iterable[str], values: flags.FlagValues) -> Iterator[_Item]:
    """Reads arguments like absl; the value after a flag is not a separate item."""
    rest, before = iter(arguments), None
    for argument in rest:
        if argument == "--":
            yield from (_Item(None, word) for word in rest)
            return
        name, equals, _ = argument[2 if argument.startswith("--") else 1 :].partition("=")
        if not argument.startswith("-") or not name:
            yield _Item(None, argument, before)
            continue
        yield _Item(name, argument)
        takes_word = name in values and not values[name].boolean
        if takes_word and not equals:
            next(rest, None)
        # A word after ``--boolean=value`` does not belong to that flag.
        before = name if takes_word or not equals else None


def _explain_word(item: _Item, values: flags.FlagValues) -> str:
    word, before = item.text, item.before or ""
    name = word.lstrip(_DASHES)
    if not word.strip():
        return (
            "the command line contains a lone space; a backslash that continues a line must be its "
            "last character."
        )
    if name != word:
        return f"{word} begins with a dash that is not a hyphen: write --{name}."
    if word.partition("=")[0] in values and "=" in word:
        return f"{word} lacks the hyphens of a flag: write --{word}."
    if before in values and values[before].boolean:
        try:
            values[before].parser.parse(word)
        except ValueError:
            return f"{word} is neither a flag nor a flag's value: flags begin with two hyphens."
        return (
            f"--{before} does not take the word {word} as its value without an equals sign: write "
            f"--{before}={word.lower()}."
        )
    if before in values and "string" in values[before].flag_type():
        return (
            f"unexpected word {word} after --{before}, which takes a single one: separate several "
            "by commas, and quote patterns and text that contains spaces."
        )
    return f"{word} is neither a flag nor a flag's value: flags begin with two hyphens."


def _explain_error(error: Exception, values: flags.FlagValues) -> str:
    if isinstance(error, flags.UnrecognizedFlagError):
        return _explain_unknown(error.flagname, values)
    text = " ".join(str(error).split()).rstrip(" .").removeprefix("flag ")
    missing = re.search(r"Flag --(\w+) must have a value other than None", text)
    if missing:
        return f"--{missing[1]} is required; --help lists the flags."
    text = re.sub(r"invalid literal for int\(\) with base 10: .*", "must be a whole number", text)
    text = re.sub(r"could not convert string to float: .*", "must be a number", text)
    text = re.sub(r"\('Non-boolean argument .*", "must be true or false", text)
    text = re.sub(r"Missing value for flag -*(.*)", r"--\1 needs a value", text)
    return f"{text}; --help lists the flags."


def _explain_unknown(given: str, values: flags.FlagValues) -> str:
    name, _, value = given.partition(" ")
    if name in values and value:  # a line of a flag file is a single argument
        return f"'--{given}' lacks an equals sign: write --{name}={value.strip()}."
    known = [flag.name for flag in project_flags(values)]
    known += [f"no{name}" for name in known if values[name].boolean]
    likeness = {
        other: difflib.SequenceMatcher(None, given.replace("-", "_"), other).ratio()
        for other in known
    }
    best = max(likeness.values(), default=0.0)
    near = [
        other
        for other in sorted(likeness, key=likeness.__getitem__, reverse=True)
        if likeness[other] >= max(_LEAST_LIKENESS, best - _LIKENESS_OF_A_TIE)
    ]
    if not near:
        near = [other for other in known if f"_{given}" in f"_{other}"]
    meant = f"; did you mean {' or '.join(f'--{other}' for other in near[:3])}?" if near else ";"
    return f"--{given} is not a flag of this command{meant} --help lists the flags."


def _settle_paths(values: flags.FlagValues) -> None:
    """Expands ~ at the start of paths, and ``recipes/NAME`` if only an installed one exists.

    A shell does not expand ~ after an equals sign. Raises UserError if a path is a URL or an
    address of remote storage.
    """
    for flag in project_flags(values):
        if not flag.present or flag.name in NO_PATHS:
            continue
        given = flag.value if isinstance(flag.value, list) else [flag.value]
        for part in ",".join(text for text in given if isinstance(text, str)).split(","):
            _check_place(flag.name, part.strip())
        if isinstance(flag.value, str):
            completed = ",".join(
                _HOME.sub(lambda found: found[1] + os.path.expanduser("~"), _with_recipe(part))
                for part in flag.value.split(",")
            )
            if completed != flag.value:
                flag.value = completed


def _with_recipe(path: str) -> str:
    if not path.startswith(_RECIPES):
        return path
    from bert_tf.util.recipes import with_recipe  # few commands name one

    return with_recipe(path)


def _check_place(flag: str, path: str) -> None:
    found = _SCHEME.match(path)
    if not found:
        return
    scheme = found[1].lower()
    if scheme == "file":
        raise UserError(f"--{flag}={path} is a URL; give only the path: {path[found.end() :]}.")
    place = _PLACES.get(scheme, f"a {scheme}:// address")
    what = (
        "give a local path, and copy the output afterwards"
        if flag.startswith(("output", "export", "features", "dllog"))
        else "copy it to a disk, and give its path there"
    )
    raise UserError(
        f"--{flag}={path} is {place}, but only files on local and shared disks can be used; {what}."
    )
