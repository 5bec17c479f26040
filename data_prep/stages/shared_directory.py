"""Several calls of a stage that each add files to one directory, possibly at the same time.

They write to separate ``.partial-*`` directories and take turns to move files into place and to
rewrite the manifest, which in the meantime does not list the files being replaced.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bert_tf.durable.manifest import Manifest
from bert_tf.durable.stage import PARTIAL_NAME, remove_if_empty
from bert_tf.util.console import report
from bert_tf.util.digest import digest_of_json
from bert_tf.util.directory_lock import hold_directory
from bert_tf.util.errors import UserError
from bert_tf.util.files import SIDE_FILE_SUFFIXES
from data_prep.stages.journal import JournaledDirectory


@dataclasses.dataclass(frozen=True)
class SharedDirectory(JournaledDirectory):
    """What a call writes to a directory that it shares with other calls of its stage.

    Attributes:
      flag: the flag that names the files.
      names: the outputs of this call; it replaces an earlier call whose outputs are a subset.
      must_agree: parameters that, like the vocabulary, must be the same in all calls.
      may_differ: parameters that cause a warning if they differ between calls.
      common: outputs other than ``names`` that are byte-identical in every call that has them.
    """

    flag: str = dataclasses.field()  # without the default of the base class
    names: tuple[str, ...]
    must_agree: tuple[str, ...]
    may_differ: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    any_call: bool = True

    def named(self, directory: Path) -> str:
        """The first of the call's outputs."""
        return f"{directory / self.names[0]}"

    def partial(self, directory: Path) -> Path:
        """A directory for this call's outputs, in one that is locked."""
        return directory / f"{PARTIAL_NAME}-{digest_of_json(sorted(self.names))[:16]}" / "files"

    @contextlib.contextmanager
    def building(self, directory: Path) -> Iterator[None]:
        """Locks out other calls that write the same outputs."""
        place = self.partial(directory).parent
        with contextlib.ExitStack() as stack:
            stack.callback(remove_if_empty, place)
            stack.enter_context(hold_directory(place, flag=self.flag))
            yield

    def installing(self, directory: Path) -> AbstractContextManager[object]:
        """Waits for other calls that move files into place."""
        return hold_directory(directory, flag=self.flag, wait=True)

    def others(self, directory: Path, call: Manifest) -> tuple[Manifest, ...]:
        """The other calls, whose files are kept.

        Raises UserError if ``call`` contradicts them, and for a damaged manifest.
        """
        manifest = self.require_stage(directory, call)
        if manifest is None:
            return ()
        replaced = set(self.names)
        kept = []
        for other in manifest.calls:
            names = other.output_names.difference(self.common)
            rest = names - replaced
            if rest and rest != names:
                raise UserError(
                    f"--{self.flag}: {directory / min(replaced & names)} was made in one call with "
                    f"{min(rest)} and cannot be replaced alone; give the same files again, or "
                    "choose another name."
                )
            if rest:
                self._refuse_contradiction(directory, call, other)
                kept.append(other)
        return tuple(kept)

    def say_differences(self, directory: Path, call: Manifest, others: Sequence[Manifest]) -> None:
        """Warns about settings in which other calls differ."""
        for name in self.may_differ:
            now = call.parameters.get(name)
            different = (other for other in others if other.parameters.get(name) != now)
            for other in itertools.islice(different, 1):
                report(
                    f"warning: {directory / _example(other)} was made "
                    f"{_with_setting(name, other.parameters.get(name))}, {self.names[0]} "
                    f"{'without' if now is None else f'with {now}'}"
                )

    def merged(self, calls: Sequence[Manifest]) -> Manifest:
        """The manifest of a directory that these calls filled.

        It does not depend on the order of the calls. Its parameters are those common to all.
        """
        parts = tuple(sorted(calls, key=lambda call: sorted(call.output_names)))
        first = parts[0]
        if len(parts) == 1:
            return first
        names = {name for part in parts for name in part.counts}
        return Manifest(
            first.stage,
            parameters=_shared([part.parameters for part in parts]),
            inputs=tuple(entry for part in parts for entry in part.inputs),
            # A file written by several calls is identical in all of them.
            outputs=tuple({e.name: e for part in parts for e in part.outputs}.values()),
            counts={
                name: sum(part.counts.get(name, 0) for part in parts) for name in sorted(names)
            },
            vocabulary=first.vocabulary,
            parts=parts,
            made_by=_shared([part.made_by for part in parts]),
        )

    def _refuse_contradiction(self, directory: Path, call: Manifest, other: Manifest) -> None:
        """Raises UserError if the files of two calls cannot be used together."""
        compared = [("vocabulary", call.vocabulary, other.vocabulary)]
        compared += [
            (name, call.parameters.get(name), other.parameters.get(name))
            for name in self.must_agree
        ]
        for name, now, before in compared:
            if now != before:
                how = f"with a different {name}"
                if name in self.must_agree:
                    how = f"{_with_setting(name, before)}, not {'without' if now is None else now}"
                raise UserError(
                    f"--{self.flag}: {directory / _example(other)} was made {how}; use the same "
                    "settings for all files in a directory, or choose another directory."
                )


def _shared(mappings: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries common to all mappings."""
    first, *others = mappings
    return {
        name: value
        for name, value in first.items()
        if all(name in other and other[name] == value for other in others)
    }


def _with_setting(name: str, value: Any) -> str:
    """How a call was made; a manifest may omit parameters that are off."""
    return f"without {name}" if value is None else f"with {name} {value}"


def _example(call: Manifest) -> str:
    return min(name for name in call.output_names if not name.endswith(SIDE_FILE_SUFFIXES))
