"""The compiled operations: their file names, and how they are loaded.

The name contains a hash of everything from which the file was made, so a file made from another
source or for another TensorFlow is never loaded, and several can coexist.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from types import ModuleType

from bert_tf.util.digest import digest_of
from bert_tf.util.errors import first_line
from bert_tf.util.temporary import require_private, user_cache

SOURCE = Path(__file__).with_name("update_ops.cc")
INCLUDED = "*.inc"  # files that sources may include

# Without -march, so that machines can share an environment: the source has specialised functions
# for some processors. The last two flags determine rounding: a square root is one instruction, and
# products are not fused with sums, which only some processors would do.
COMPILER_FLAGS = ("-O3", "-fPIC", "-shared", "-DNDEBUG", "-fno-math-errno", "-ffp-contract=off")

BUILD_COMMAND = "python -m bert_tf.native.build"


class MissingLibrary(Exception):  # noqa: N818 - a state of an environment, not a fault
    """Explains, as a clause in a sentence, why the compiled operations are unavailable."""


def library_path(source: Path = SOURCE) -> Path:
    """The path of the library compiled from ``source``, whether or not it exists.

    It is next to the source, or in the user's cache if that directory is not writable, such as
    that of a package installed for all users.
    """
    import tensorflow.compat.v1 as tf

    made_from = [tf.version.VERSION, platform.machine(), *COMPILER_FLAGS]
    sources = (source, *sorted({*SOURCE.parent.glob(INCLUDED), *source.parent.glob(INCLUDED)}))
    digest = digest_of("\n".join(made_from).encode(), *(path.read_bytes() for path in sources))
    path = source.with_name(f"{source.stem}-{digest[:12]}.so")
    cache = user_cache("native")
    if path.is_file() or cache is None or os.access(path.parent, os.W_OK):
        return path
    return cache / path.name


def load(source: Path = SOURCE) -> ModuleType:
    """The operations as Python functions; raises MissingLibrary if they are not available.

    The module has one function for each operation that ``source`` registers, under its name in
    snake case and with its arguments.
    """
    import tensorflow.compat.v1 as tf

    path = library_path(source)
    if not path.is_file():
        raise MissingLibrary(
            f"the native operations are not built for TensorFlow {tf.version.VERSION} "
            f"('{BUILD_COMMAND}' builds them)"
        )
    if path.parent != source.parent:
        try:
            require_private(path.parent)
        except OSError as error:
            raise MissingLibrary(
                f"the native operations in {path.parent} are not used ({error.strerror})"
            ) from error
    try:
        return tf.load_op_library(str(path))
    except (tf.errors.OpError, RuntimeError) as error:
        raise MissingLibrary(f"{path} cannot be loaded ({first_line(error)})") from error
