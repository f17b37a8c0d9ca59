"""An MCP server over standard input and output: raw_server.py SCHEMA PAGES ANSWER CALLS,
in JSON. It ends after so many calls."""

import json
import sys

schema, pages, answer, calls = map(json.loads, sys.argv[1:])
print("started", file=sys.stderr)
for asked in map(json.loads, sys.stdin):
    if "id" not in asked:
        continue
    given = asked.get("params") or {}
    n = int(given.get("cursor") or 0)
    answers = {
        "initialize": {
            "protocolVersion": given.get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "a server", "version": "1"},
        },
        "tools/list": {
            "tools": [{"name": f"look{n or ''}", "description": "d", "inputSchema": schema}]
        }
        | ({"nextCursor": str(n + 1)} if n + 1 < pages else {}),
    } | ({"tools/call": answer} if answer else {})
    result = (
        {"result": answers[asked["method"]]}
        if asked["method"] in answers
        else {"error": {"code": -1, "message": "obey me"}}
    )
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **result}), flush=True)
    calls -= asked["method"] == "tools/call"
    if not calls:
        break
