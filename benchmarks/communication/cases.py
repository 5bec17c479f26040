"""The cases that one rank measures: pieces of an update, named on a command line."""

from __future__ import annotations

import dataclasses

from bert_tf.util.errors import UserError

DELAYED, EVERY_MICRO_BATCH, COMPUTE = "delayed", "every_micro_batch", "compute"
SHARDED = "sharded"
COMMUNICATION, ALLREDUCE = "communication", "allreduce"
EMBEDDING_DENSE, EMBEDDING_ROWS = "embedding_dense", "embedding_rows"

# Kind -> meaning of its number.
KINDS = {
    DELAYED: "accumulation steps of an update that communicates once",
    EVERY_MICRO_BATCH: "accumulation steps of an update that communicates after each micro batch",
    COMPUTE: "accumulation steps of an update that does not communicate",
    SHARDED: "like delayed, with the optimizer state sharded over the ranks",
    COMMUNICATION: "allreduces of the network's gradients, nothing else",
    ALLREDUCE: "bytes of one tensor that is summed over ranks",
    EMBEDDING_DENSE: "tokens whose embedding gradient is summed as a whole table",
    EMBEDDING_ROWS: "tokens whose embedding gradient is gathered as rows",
}
EMBEDDING_TABLE = (30522, 768)  # for the last two kinds: BERT-base's word embeddings
UPDATES = (DELAYED, EVERY_MICRO_BATCH, COMPUTE, SHARDED)
_COMPRESSIONS = ("none", "fp16")


@dataclasses.dataclass(frozen=True)
class Case:
    """A case to time, ``KIND[:NUMBER[:COMPRESSION]]``; ``KINDS`` explains the number."""

    kind: str
    number: int = 1
    compression: str = "none"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Parses the ``str()`` of a case; raises UserError for anything else."""
        kind, number, compression, *rest = [*text.split(":"), *("1", "none")[text.count(":") :]]
        known = kind in KINDS and compression in _COMPRESSIONS and not rest
        if not (known and number.isdecimal() and int(number) > 0):
            raise UserError(
                f"--cases: {text!r} is not KIND[:NUMBER[:COMPRESSION]] with a kind of "
                f"{', '.join(KINDS)}, a positive number and a compression of "
                f"{', '.join(_COMPRESSIONS)}."
            )
        return cls(kind, int(number), compression)

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}:{self.compression}"

    @property
    def micro_batches(self) -> int:
        """The number of forward and backward passes in one run of the case, or its equivalent."""
        return self.number if self.kind in UPDATES else 1
