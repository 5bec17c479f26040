"""What one rank measures: named pieces of an update, spelt on a command line."""

from __future__ import annotations

import dataclasses

from bert_tf.util.errors import UserError

DELAYED, EVERY_MICRO_BATCH, COMPUTE = "delayed", "every_micro_batch", "compute"
SHARDED = "sharded"
COMMUNICATION, ALLREDUCE = "communication", "allreduce"
EMBEDDING_DENSE, EMBEDDING_ROWS = "embedding_dense", "embedding_rows"

# Kind -> what its number counts.
KINDS = {
    DELAYED: "accumulation steps of an update that communicates once",
    EVERY_MICRO_BATCH: "accumulation steps of an update that communicates after each micro batch",
    COMPUTE: "accumulation steps of an update that does not communicate",
    SHARDED: "as delayed, with the optimizer's state shared out over the ranks",
    COMMUNICATION: "allreduces of the network's gradients, nothing else",
    ALLREDUCE: "bytes of one tensor that is added up over ranks",
    EMBEDDING_DENSE: "tokens whose embeddings' gradient is added up as a whole table",
    EMBEDDING_ROWS: "tokens whose embeddings' gradient is gathered as rows",
}
EMBEDDING_TABLE = (30522, 768)  # of the last two kinds: BERT-base's words
UPDATES = (DELAYED, EVERY_MICRO_BATCH, COMPUTE, SHARDED)
_COMPRESSIONS = ("none", "fp16")


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to time, ``KIND[:NUMBER[:COMPRESSION]]``; ``KINDS`` says what the number is."""

    kind: str
    number: int = 1
    compression: str = "none"

    @classmethod
    def parse(cls, text: str) -> Case:
        """Reads what ``str()`` of a case gives; raises UserError for anything else."""
        kind, number, compression, *rest = [*text.split(":"), *("1", "none")[text.count(":") :]]
        known = kind in KINDS and compression in _COMPRESSIONS and not rest
        if not (known and number.isdecimal() and int(number) > 0):
            raise UserError(
                f"--cases: {text!r} is not KIND[:NUMBER[:COMPRESSION]] with a kind of "
                f"{', '.join(KINDS)}, a number from 1 on and a compression of "
                f"{', '.join(_COMPRESSIONS)}."
            )
        return cls(kind, int(number), compression)

    def __str__(self) -> str:
        return f"{self.kind}:{self.number}:{self.compression}"

    @property
    def micro_batches(self) -> int:
        """How many forward and backward passes one run of the case takes, or about as long."""
        return self.number if self.kind in UPDATES else 1
