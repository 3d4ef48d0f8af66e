"""Every statistic by name: the function that returns it, and a description. `gt stats --describe` prints them, the reference
contains them as a table, and a test compares them with the functions."""

from __future__ import annotations

from collections.abc import Iterable

Described = dict[str, str]

WORKER: Described = {
    "index": "the worker's number: the order in which it joined",
    "engine": "the library of the worker's kernels",
    "device": "the device it computes on",
    "base": "the engine of all ops that this one lacks; empty where it runs all ops itself",
    "fell_back": "backends that were asked for and not available, each with the reason",
    "ops": "how often each op ran, by name; ops inside programs included",
    "instructions": "all of these together",
    "kernels": "the same by way: `own`, `decomposed` or `bridged` to the base engine",
    "tensors": "tensors that lie on this worker",
    "clients": "clients that have values on this worker",
    "bytes": "memory in use on the device; on a CPU, by the process",
    "bytes_total": "memory that there is",
    "traces": "statistics of programs, by name: the next table",
    "failures": "instructions that failed",
    "dropped": "messages that could not be carried out",
    "runs": "messages with instructions that the worker received",
    "over_quota": "instructions refused because a memory quota was reached",
    "skipped": "instructions of clients that had left, not executed",
    "host_bytes": "bytes of tensors that lie in host memory because the device was full",
    "moved_to_host": "buffers that were moved there",
    "moved_back": "buffers that were moved back to the device",
    "bytes_to_host": "bytes that were moved there",
    "bytes_back": "bytes that were moved back",
    "no_room": "instructions for which neither the device nor the host had room",
    "collectives": "collectives by way: `nccl`, `memory`, `gloo`, `hosts`, `mail in two levels` or `mail`",
    "mailed": "bytes of tensors that went by mail to workers of its `own host` and of `other hosts`",
    "idle": "the share of time in which the worker had nothing to do",
    "busy_seconds": "seconds in which it had",
    "queue": "instructions that waited when this was asked",
    "preemptions": "programs left in their middle because another client waited",
    "short_runs": "short runs that were executed during another client's long kernel on a CPU",
    "lane_runs": "messages of the dispatcher that came over its lane, past ZMQ",
    "spins": "waits for messages that ended before the worker slept, as it looked again and again (GT_SPIN)",
    "lane_answers": "answers to clients that went over lanes",
    "memory_returns": "how often unused memory was returned to the system after a client had left, by the allocator's function",
    "segments": "clients' large shared memory, for a GPU `locked`, `past the limit` of 1 GB or `refused` by the system",
    "shares": "for each client, its share of this worker: the table below",
}
TRACES: Described = {
    "traces": "programs made of traces",
    "calls": "calls of those",
    "units": "programs made of `GT_WORKER_BATCH_SIZE` instructions in a row",
    "unit_calls": "calls of those",
    "launches_saved": "instructions that ran inside of programs, less one for each call",
    "sharded_programs": "programs with collectives inside",
    "sharded_calls": "calls of those",
    "sharded_collectives": "collectives that ran inside of them",
    "collective_graph_calls": "of these calls, the ones that ran as one CUDA graph with the collectives inside",
    "numpy_calls": "calls that NumPy ran for a worker on PyTorch",
    "compiling": "programs that a compiler has at this moment",
    "compiled": "programs with a compiled form",
    "compilations": "compiled forms that were built",
    "compiled_calls": "calls that ran by a compiled form or a CUDA graph",
    "compile_seconds": "seconds spent on building them",
    "compile_cache_hits": "compiled forms found on disk",
    "inputs_copied": "inputs copied because a compiled form wanted other strides",
    "graph_captures": "CUDA graphs that were recorded",
    "fallbacks": "programs that were to be compiled and were not; `fallback: REASON` counts each reason",
}
SHARES: Described = {
    "seconds": "device seconds that the client has used",
    "share": "these as a share of all since it came",
    "weight": "its weight",
    "turns": "how often it was served",
    "entitled": "device seconds that were its due while it had work",
    "total": "device seconds of all clients since it came",
    "queue": "its instructions that wait",
    "wait_p50": "seconds that its work waited to begin: the median of the last 512",
    "wait_p99": "the same, exceeded by one in a hundred",
    "bytes": "memory of its tensors, each buffer once",
    "memory": "its quota; 0 for none",
    "moved": "bytes of its tensors that lie in host memory",
    "stream_priority": "on a GPU, of the stream that its kernels are on: below 0 they go first",
}
REPLAY: Described = {
    "traces_found": "stretches of this script's stream that were found to repeat",
    "hits": "calls sent in place of their instructions",
    "misses": "stretches that began like a trace and ended otherwise, by reason",
    "miss_lines": "for each reason the line of an op that differed",
    "instructions_saved": "instructions that did not have to be sent",
    "early_calls_sent": "calls sent with the first instruction of a step",
    "early_calls_right": "of these, those whose step came",
    "early_calls_wrong": "of these, those whose step did not come",
    "early_calls_inputs_not_there": "calls not sent early because an input was not on the workers",
    "early_calls_no_gain": "calls not sent early because steps on CPUs took no less time with early calls in the last trial",
    "early_calls_trials": "comparisons of steps on CPUs with and without early calls",
    "traces": "programs that the worker made of traces",
    "calls": "calls of those",
    "units": "programs made of instructions in a row",
    "unit_calls": "calls of those",
    "sharded_calls": "calls of programs with collectives inside",
    "collective_graph_calls": "of these, the ones that ran as one CUDA graph with the collectives inside",
    "numpy_calls": "calls that NumPy ran for a worker on PyTorch",
    "compiling": "programs that a compiler has at this moment",
    "compiled": "programs with a compiled form or a CUDA graph",
    "compiled_executions": "calls that ran by one of these",
    "fallbacks": "programs that were to be compiled and were not, by reason",
    "launches_saved": "instructions that ran inside of programs, less one for each call",
    "compile_seconds": "seconds spent on compiling",
}
DISPATCHER: Described = {
    "clients": "clients that are connected",
    "dropped": "messages, or instructions of one, that could not be carried out",
    "drained": "workers that left after passing on their tensors",
    "moved": "tensors that were passed on so",
    "lane_messages": "messages of clients that came over lanes, past ZMQ",
    "trims": "how often free memory was returned to the system, when peers had left and none had sent anything for a second",
    "short_slices": "whether Linux wakes it on a busy core before the end of the other program's time slice (6.12 and later)",
}
CLIENTS: Described = {
    "number": "the client's number, for `gt kill`",
    "user": "the user of the pool; empty without users",
    "process": "its host and process",
    "weight": "its weight",
    "memory": "its quota on each worker, in bytes; 0 for none",
    "tensors": "tensors that it has",
    "held": "its instructions that wait at the dispatcher",
    "wanted": "the share of device time that was its due while it had work",
    "got": "the share that it had",
    "seconds": "device seconds that it has used",
    "turns": "how often workers served it",
    "queue": "its instructions that wait at workers",
    "bytes": "memory of its tensors on all workers",
    "moved": "bytes of its tensors that lie in host memory",
    "wait_p50": "seconds that its work waited to begin: the median, on the worker where it is longest",
    "wait_p99": "the same, exceeded by one in a hundred",
}
IN_FLIGHT: Described = {
    "instructions": "instructions sent and not known to be executed",
    "seconds": "device seconds that they are estimated to take",
    "bytes": "bytes of arrays on their way",
    "waits": "how often an op waited because too much was in flight",
}
HOST_COPIES: Described = {
    "tensors": "tensors of which this client keeps a copy because they are read element by element",
    "bytes": "bytes of these copies",
    "served": "reads that they answered",
}
STATISTICS: dict[str, Described] = {
    "gt.debug.get_worker_stats()[WORKER]": WORKER,
    'gt.debug.get_worker_stats()[WORKER]["traces"]': TRACES,
    'gt.debug.get_worker_stats()[WORKER]["shares"][CLIENT]': SHARES,
    'gt.debug.get_worker_stats()[WORKER]["replay"]': REPLAY,
    'gt stats --json, "dispatcher"': DISPATCHER,
    "gt.debug.clients(), gt ps": CLIENTS,
    "gt.debug.in_flight()": IN_FLIGHT,
    "gt.debug.host_copies()": HOST_COPIES,
}


def described() -> Iterable[tuple[str, str, str]]:
    """The function, name and description of each statistic."""
    return ((where, name, doc) for where, names in STATISTICS.items() for name, doc in names.items())
