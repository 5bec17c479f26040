"""Every collective operation once, as one rank of a job; rank 0 prints what each rank found.

Run under mpirun by test_ranks.py: ``python ranks_program.py ACTION...``, each of them ``exchange``,
``communicate`` or ``mismatch``.
"""

import ctypes
import json
import sys

import tensorflow.compat.v1 as tf

from bert_tf.config.settings import CommunicationSettings
from bert_tf.ranks.agreement import check_same_on_all_ranks
from bert_tf.ranks.connect import connect
from bert_tf.util.errors import UserError, exit_on_user_error


def exchange():
    ranks = connect("horovod")
    found = {
        "type": type(ranks).__name__,
        "rank": ranks.rank,
        "local_rank": ranks.local_rank,
        "sizes": [ranks.world_size, ranks.local_size],
        "is_chief": ranks.is_chief,
        "threads": ranks.threads,
        "yields": yields_when_idle(),
        # Values of different sizes: a short one must not be padded, nor a long one cut.
        "gathered": ranks.gather({"text": "x" * (1 + 100 * ranks.rank)}),
        "gathered_again": ranks.gather(ranks.rank),
        "broadcast": ranks.broadcast(f"from {ranks.rank}" if ranks.is_chief else None),
        **sums(ranks),
    }
    everything = ranks.gather(found)
    if ranks.is_chief:
        print(json.dumps(everything))


def yields_when_idle():
    """Whether Open MPI gives up the core while it waits, as its library holds it in memory."""
    return ctypes.c_bool.in_dll(ctypes.CDLL("libmpi.so.40"), "ompi_mpi_yield_when_idle").value


def sums(ranks):
    """Sums over ranks of float32 and float64, of gradients, and variables after a broadcast."""
    with tf.Graph().as_default():
        variable = tf.get_variable("v", initializer=10.0 + ranks.rank, use_resource=True)
        table = tf.get_variable("table", initializer=tf.zeros([3, 2]), use_resource=True)
        step = tf.train.get_or_create_global_step()
        restore = step.assign(ranks.rank)
        start = tf.train.Scaffold(init_fn=lambda _, session: session.run(restore))
        rows = tf.gather(table, [ranks.rank, ranks.rank])
        # d/dv is rank + 1; d/dtable is 2 in row number `rank`, and would come as rows alone.
        loss = variable * (ranks.rank + 1.0) + tf.reduce_sum(rows)
        own = [tf.convert_to_tensor(g) for g in tf.gradients(loss, [variable, table])]
        gradients = ranks.sum_gradients(own, [variable, table])
        assert [g.shape for g in gradients] == [g.shape for g in own]
        single = ranks.sum_over_ranks(tf.constant([1.0, float(ranks.rank)]), name="single")
        # 2**40 + 1 is no float32.
        double = ranks.sum_over_ranks(tf.constant(2.0**40 + ranks.rank, tf.float64), name="double")
        # Rank 0 contributes nothing; bfloat16 has 8 bits, which 1 + 2**-7 needs.
        own = tf.fill([2 * ranks.rank], ranks.rank + 2.0**-7)
        concatenated = [
            tf.cast(ranks.concatenate(tf.cast(own, dtype), name=f"all_{dtype.name}"), tf.float32)
            for dtype in (tf.float32, tf.bfloat16)
        ]
        with tf.train.MonitoredSession(
            tf.train.ChiefSessionCreator(start), hooks=ranks.broadcast_hooks()
        ) as session:
            fetched = {
                "variable": variable,
                "step": step,
                "gradients": gradients,
                "single": single,
                "double": double,
                "concatenated": concatenated,
            }
            found = session.run(fetched)
    for name in ("gradients", "concatenated"):
        found[name] = [value.tolist() for value in found[name]]
    return {name: v.tolist() if hasattr(v, "tolist") else v for name, v in found.items()}


def combine(ranks, own):
    """The gradients ``own``, combined over ranks, as lists."""
    with tf.Graph().as_default():
        variables = [
            tf.get_variable(f"v{i}", initializer=tf.zeros(len(g)), use_resource=True)
            for i, g in enumerate(own)
        ]
        combined = ranks.sum_gradients([tf.constant(g) for g in own], variables)
        with tf.train.MonitoredSession() as session:
            return [g.tolist() for g in session.run(combined)]


def look_up(communication, *, shape=(5, 2), known=True, **options):
    """A table's gradient, of which ranks look up different rows, some of them twice.

    ``known``: whether the graph knows how many. Returns the first five rows, the sum of all, and by
    which operations they travelled.
    """
    ranks = connect("horovod", communication=communication)
    with tf.Graph().as_default() as graph:
        table = tf.get_variable("table", initializer=tf.zeros(shape), use_resource=True)
        numbers = tf.constant([ranks.rank, 3, 3])
        numbers = numbers if known else tf.placeholder_with_default(numbers, [None])
        rows = tf.nn.embedding_lookup(table, numbers)
        [own] = tf.gradients(tf.reduce_sum(rows) * (1.0 + ranks.rank), [table])
        assert isinstance(own, tf.IndexedSlices)
        [combined] = ranks.sum_gradients([own], [table], **options)
        with tf.train.MonitoredSession() as session:
            found = session.run(combined)
    return {
        "first": found[:5, :2].tolist(),
        "sum": float(found.sum()),
        "types": types_of_collectives(graph),
    }


def types_of_collectives(graph):
    """Types of Horovod's operations in a graph, in the functions that it calls as well."""
    definition = graph.as_graph_def()
    functions = [node.op for function in definition.library.function for node in function.node_def]
    types = {node.op for node in definition.node} | set(functions)
    return sorted(name for name in types if name.startswith("Horovod"))


def communicate():
    """Gradients under each of the settings that Horovod takes when they are combined."""
    kinds = {
        "plain": CommunicationSettings(),
        "fp16": CommunicationSettings(compression="fp16"),
        "groups": CommunicationSettings(groups=2),
        "adasum": CommunicationSettings(adasum=True),
    }
    found = {}
    for name, settings in kinds.items():
        ranks = connect("horovod", communication=settings)
        own = [[1.0 + ranks.rank, 0.1], [3.0 - 4 * ranks.rank, 1e-3, 7.0]]
        found[name] = combine(ranks, own)
    auto = CommunicationSettings()
    found["looked up"] = {
        "as a table": look_up(CommunicationSettings(embedding_rows=False), shape=LARGE),
        "as rows": look_up(CommunicationSettings(embedding_rows=True)),
        "small": look_up(auto),
        "large": look_up(auto, shape=LARGE),
        "large, complete at once": look_up(auto, shape=LARGE, complete_at_once=True),
        "large, number unknown": look_up(auto, shape=LARGE, known=False),
        "large, number limited": look_up(auto, shape=LARGE, known=False, most_rows=4),
    }
    if ranks.is_chief:
        print(json.dumps(found))


# 8 MiB: more than a table needs to be sent as rows.
LARGE = (1 << 14, 128)


def mismatch():
    ranks = connect("horovod")
    facts = {"training data": "abc" if ranks.rank == 0 else "xyz"}
    try:
        check_same_on_all_ranks(ranks, facts)
    except UserError as error:
        sentences = ranks.gather(str(error))
        if ranks.is_chief:
            print(json.dumps(sentences), flush=True)
        ranks.gather(None)  # mpirun ends the others as soon as one rank has failed
        raise


if __name__ == "__main__":
    tf.disable_eager_execution()
    actions = {"exchange": exchange, "communicate": communicate, "mismatch": mismatch}
    for name in sys.argv[1:]:
        exit_on_user_error(actions[name])
