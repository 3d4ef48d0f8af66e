"""The state of a cluster in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable

from gt.watch.model import Model

Sample = tuple[dict[str, str], float]


def escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def family(name: str, metric_type: str, help: str, samples: Iterable[Sample]) -> list[str]:
    """One metric with its samples."""
    lines = [f"# HELP {name} {help}", f"# TYPE {name} {metric_type}"]
    for labels, value in samples:
        inside = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
        lines.append(f"{name}{{{inside}}} {value:.10g}" if inside else f"{name} {value:.10g}")
    return lines


def text(model: Model) -> str:
    """All metrics."""
    workers, clients = model.connected_workers(), model.connected_clients()
    states = [(w, w.state) for w in workers if w.state is not None]

    def of(w: object, **more: str) -> dict[str, str]:
        return {"worker": getattr(w, "name", ""), **more}

    lines = [
        *family("gt_workers", "gauge", "Connected workers.", [({}, len(workers))]),
        *family("gt_clients", "gauge", "Connected clients.", [({}, len(clients))]),
        *family("gt_worker_busy_seconds_total", "counter", "Seconds busy.", [(of(w), s.busy) for w, s in states]),
        *family("gt_worker_idle_seconds_total", "counter", "Seconds idle.", [(of(w), s.idle) for w, s in states]),
        *family("gt_worker_queue_instructions", "gauge", "Queued instructions.", [(of(w), s.queue) for w, s in states]),
        *family("gt_worker_memory_bytes", "gauge", "Memory in use, in bytes.", [(of(w), s.nbytes) for w, s in states]),
        *family("gt_worker_memory_total_bytes", "gauge", "Memory in all, in bytes.", [(of(w), s.total) for w, s in states]),
        *family("gt_worker_tensors", "gauge", "Tensors on the worker.", [(of(w), s.tensor_count) for w, s in states]),
        *family("gt_worker_gpu_utilization", "gauge", "GPU utilization of the last second.",
                [(of(w), s.gpu) for w, s in states if s.gpu >= 0]),
        *family("gt_worker_instructions_total", "counter", "Instructions executed.",
                [(of(w), w.instructions) for w in workers]),
        *family("gt_worker_group_seconds_total", "counter", "Seconds by group of ops.",
                [(of(w, group=g), s) for w in workers for g, s in sorted(w.seconds.items())]),
        *family("gt_client_instructions_total", "counter", "Instructions sent.",
                [({"client": c.label}, c.instructions) for c in clients]),
        *family("gt_client_wait_seconds_total", "counter", "Seconds that a client waited for values.",
                [({"client": c.label}, c.waited) for c in clients]),
        *family("gt_client_upload_bytes_total", "counter", "Bytes of arrays that a client sent.",
                [({"client": c.label}, c.uploaded) for c in clients]),
        *family("gt_client_trace_hits_total", "counter", "Calls of traces.", [({"client": c.label}, c.hits) for c in clients]),
        *family("gt_collectives_total", "counter", "Collectives, counted by each worker.", [({}, model.collectives)]),
        *family("gt_program_calls_total", "counter", "Calls of programs.", [({}, model.calls)]),
        *family("gt_compilations_total", "counter", "Compilations, failed ones included.", [({}, model.compilations)]),
        *family("gt_compile_seconds_total", "counter", "Seconds spent on compilations.", [({}, model.compile_seconds)]),
        *family("gt_stalls_total", "counter", "Collectives that did not end in time.", [({}, len(model.stalls))]),
        *family("gt_dropped_events_total", "counter", "Event messages dropped.", [({}, model.dropped)]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"
