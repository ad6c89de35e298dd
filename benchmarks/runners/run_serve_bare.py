"""A bare handler on the same server: reads JSON, answers with a constant, and does nothing else."""

from __future__ import annotations

import json
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def answer(request: Request) -> Response:
    assert "observation" in json.loads(await request.body())
    return Response(json.dumps({"action": 1}).encode(), media_type="application/json")


if __name__ == "__main__":
    app = Starlette(routes=[Route("/act", answer, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="critical", access_log=False)
