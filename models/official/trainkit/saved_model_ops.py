"""Finds the ops by which the graph of a SavedModel could do more than compute.

A SavedModel is a program: TensorFlow has ops that read and write any file, run Python or talk to
other machines. TensorFlow marks ops with effects as stateful, but for those that only read.
"""

import re
from typing import Any

from tpudet.trainkit.errors import listing, shorten

# Of the stateful ops, those that variables, calls and conditions need.
_ALLOWED = re.compile(
    "Assert|AssignVariableOp|Case|DisableCopyOnRead|If|ReadVariableOp|ResourceGather(Nd)?"
    "|StatefulPartitionedCall|VarHandleOp|VarIsInitializedOp|VariableShape|While"
)
# Of the others, those that read files, run something else than their own kernel, wait or abort.
_REFUSED = re.compile(
    ".*(Dataset|Debug|File|PyFunc|Queue|Reader|Sleep|Snapshot|T[Pp][Uu]|Xla).*|_.*|Abort|Batch"
    "|BatchFunction|Copy|CopyHost|CustomAggregator|DecodeProtoV2|EncodeProto|ImmutableConst"
    "|GenerateVocabRemapping|MatchingFiles|MlirPassthroughOp|Unbatch"
)
_OF_SAVERS = frozenset(("MergeV2Checkpoints", "RestoreV2", "SaveV2", "ShardedFilename"))


class RefusedGraphError(ValueError):
    """A graph may do more than compute; the message lists the ops, each with its function."""


def check_graph(contents: bytes) -> None:
    """Refuses a saved_model.pb whose graph may do more than compute.

    The ops that save and restore variables are allowed in functions that nothing calls but the
    nodes of the graph itself, which `tf.saved_model.load` does not run: so they are where
    TensorFlow wrote them, for loaders of TensorFlow 1.

    Raises:
        RefusedGraphError: it may.
        ValueError: it is damaged, or not of TensorFlow 2.
    """
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel  # late, and imported already

    try:
        graphs = SavedModel.FromString(contents).meta_graphs
    except Exception as error:  # protobuf's DecodeError is not one of the builtins
        raise ValueError(f"its graph is damaged: {error}") from error
    # Without its objects TensorFlow would run the graph itself, as TensorFlow 1 did.
    if [graph.HasField("object_graph_def") for graph in graphs] != [True]:
        raise ValueError("it is not a model of TensorFlow 2: it has no objects")
    refused = _refused_ops(graphs[0])
    if refused:
        raise RefusedGraphError(shorten(listing(refused), 500))


def _refused_ops(graph: Any) -> list[str]:
    functions = graph.graph_def.library.function
    refused = _refused_of(graph.graph_def.node, frozenset(), "the graph")
    savers = []
    for function in functions:
        name = function.signature.name
        refused += _refused_of(function.node_def, _OF_SAVERS, name)
        if any(node.op in _OF_SAVERS for node in function.node_def):
            savers.append(name)
    # Whatever refers to a function has the bytes of its name. Names may come twice: no dictionary.
    users = [(f.signature.name, f.SerializeToString()) for f in functions] if savers else []
    users.append(("the objects", graph.object_graph_def.SerializeToString()))
    for saver in savers:
        for user, content in users:
            if user != saver and saver.encode() in content:
                refused.append(f"a call that saves or restores, in {user}")
    return refused


def _refused_of(nodes: Any, allowed: frozenset[str], place: str) -> list[str]:
    ops = {node.op for node in nodes} - allowed
    return [f"{op} in {place}" for op in sorted(ops) if not _is_allowed(op)]


def _is_allowed(op: str) -> bool:
    from tensorflow.python.framework import op_def_registry  # late, and imported already

    if _ALLOWED.fullmatch(op):
        return True
    definition = op_def_registry.get(op)  # None of a call by name: functions have their own check
    is_stateful = definition is not None and definition.is_stateful
    return not is_stateful and not _REFUSED.fullmatch(op)
