"""A run as a trace, for Perfetto or OpenTelemetry: its calls and sub-tasks with their times."""

from __future__ import annotations

from itertools import count
from typing import Any

from orchestra.vocabulary import ConfigError

ROUNDING_US = 50  # of a duration on the tape: without it, a call could overlap the next one
ABOUT = "call kind model input_tokens output_tokens cost_usd status error agent backend instruction"
GENAI = {  # attributes of OpenTelemetry's conventions for generative AI, and two of ours
    "model": "gen_ai.request.model", "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens", "call": "orchestra.call",
    "cost_usd": "orchestra.cost_usd",
}  # fmt: skip
NAMED = {"invoke_workflow": "workflow", "invoke_agent": "agent", "execute_tool": "tool"}
Row = dict[str, Any]


def perfetto(run: Row) -> Row:
    """A run, a row of report.run_row, in Chrome's Trace Event Format, which Perfetto opens. Calls
    of a sub-task in parallel get tracks of their own.
    """
    tids, free_us = dict[str, int](), dict[str, int]()  # of a track; the end of its last call
    events = spans(run)
    for e in events:
        tracks = (e["tid"] + f" ({n})" * (n > 1) for n in count(1))
        track = next(name for name in tracks if free_us.get(name, 0) <= e["ts"])
        if e["cat"] != "invoke_agent":  # a sub-task stands around its calls
            free_us[track] = e["ts"] + e["dur"]
        e["tid"] = tids.setdefault(track, len(tids) + 1)
    head = {"ph": "M", "pid": 1, "name": "thread_name"}
    names = [{**head, "tid": tid, "args": {"name": name}} for name, tid in tids.items()]
    return {"traceEvents": names + events, "displayTimeUnit": "ms"}


def spans(run: Row) -> list[Row]:
    """The calls, and around those of a sub-task the sub-task, as complete events by time, in
    microseconds since 1970. `tid`: r1/t2 for sub-task 2 of round 1, else main. `cat`: the operation
    as the GenAI conventions name it. Raises ConfigError where the tape has no times.
    """
    tasks, found, times = dict[str, Row](), list[Row](), ("began_s", "took_s")
    if not all(isinstance(c.get(key), int | float) for c in run["tape"] or [{}] for key in times):
        raise ConfigError(f"{run['name']}: its tape has no times of calls; record the run again")
    for e in run["events"]:
        if e["event"] in ("subtask", "result"):
            row = e["subtask"] if e["event"] == "subtask" else e
            tasks.setdefault("r{}/t{}".format(*e["at"]), {}).update(row)
    for c in run["tape"]:
        ts, us = round(c["began_s"] * 1e6), round(c["took_s"] * 1e6) - ROUNDING_US
        task, last = "/".join(c["call"].split("/")[:2]), c["call"].rpartition("/")[2]
        what = ("chat", c["model"]) if c["kind"] == "chat" else ("execute_tool", last)
        row = {**c, "status": "failed" if c["failed"] else "done"}
        found.append(_span(task if task in tasks else "main", *what, ts, max(us, 0), row))
    for task, row in tasks.items():
        if own := [e for e in found if e["tid"] == task]:
            ts, end = min(e["ts"] for e in own), max(e["ts"] + e["dur"] for e in own)
            found.insert(0, _span(task, "invoke_agent", row["id"], ts, end - ts, row))
    return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def _span(track: str, operation: str, name: str, ts: int, us: int, row: Row) -> Row:
    args = {key: row[key] for key in ABOUT.split() if row.get(key) not in (None, "")}
    event = {"ph": "X", "pid": 1, "tid": track, "cat": operation, "name": name}
    return {**event, "ts": ts, "dur": us, "args": args}


def send(run: Row) -> int:
    """Send the spans to the OpenTelemetry collector of the OTEL_EXPORTER_OTLP_* variables, without
    any prompt or reply. Returns how many. Raises ConfigError.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider, export, sampling
    except ImportError as error:
        raise ConfigError(f"--otel: {error}; pip install '.[otel]'") from None
    tracer = TracerProvider(sampling.ALWAYS_ON).get_tracer("orchestra-min")
    events, parents, sent = spans(run), dict[str, Any](), list[Any]()
    begin, end = events[0]["ts"], max(e["ts"] + e["dur"] for e in events)
    for e in [_span("main", "invoke_workflow", run["method"], begin, end - begin, {}), *events]:
        args, kind = e["args"], NAMED.get(e["cat"])
        about = {name: args[key] for key, name in GENAI.items() if key in args}
        about["gen_ai.operation.name"] = e["cat"]
        about |= {f"gen_ai.{kind}.name": e["name"]} if kind else {"gen_ai.provider.name": "openai"}
        parent = parents.get(e["tid"]) or parents.get("main", trace.INVALID_SPAN)
        how = trace.SpanKind.INTERNAL if kind else trace.SpanKind.CLIENT
        span = tracer.start_span(
            f"{e['cat']} {e['name']}", trace.set_span_in_context(parent), how, about,
            start_time=e["ts"] * 1000,
        )  # fmt: skip
        if args.get("status") == "failed":
            span.set_attribute("error.type", "_OTHER")
            span.set_status(trace.StatusCode.ERROR)
        span.end((e["ts"] + e["dur"]) * 1000)
        parents |= {e["tid"]: span} if e["cat"].startswith("invoke") else {}
        sent.append(span)
    if OTLPSpanExporter().export(sent) is not export.SpanExportResult.SUCCESS:
        raise ConfigError("--otel: no collector took the spans; see OTEL_EXPORTER_OTLP_ENDPOINT")
    return len(sent)
