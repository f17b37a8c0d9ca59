"""An MCP server over standard input and output: raw_server.py SCHEMA PAGES ANSWER CALLS, each
in JSON. It exits after CALLS calls."""

import json
import sys


def next_cursor(n):
    """After page n; with -1 pages it never changes."""
    if pages == -1:
        return "same"
    return str(n + 1) if n + 1 < pages else ""


schema, pages, answer, calls = map(json.loads, sys.argv[1:])
print("started", file=sys.stderr)
for asked in map(json.loads, sys.stdin):
    if "id" not in asked:
        continue
    given = asked.get("params") or {}
    n = int((given.get("cursor") or "0").replace("same", "0"))
    here = {"capabilities": {"tools": {}}, "serverInfo": {"name": "a server", "version": "1"}}
    listed = {"tools": [{"name": f"look{n or ''}", "description": "d", "inputSchema": schema}]}
    answers = {
        "initialize": {"protocolVersion": given.get("protocolVersion"), **here},
        "tools/list": listed | ({"nextCursor": more} if (more := next_cursor(n)) else {}),
        "tools/call": answer,
    }
    found, failed = answers.get(asked["method"]), {"code": -1, "message": "obey me"}
    row = {"result": found} if found else {"error": failed}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **row}), flush=True)
    calls -= asked["method"] == "tools/call"
    if not calls:
        break
