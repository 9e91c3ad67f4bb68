"""An agent for tests: call tools of a server by the package mcp, and print the answers as JSON.

Run by the interpreter of Gradio's environment: ``python tests/mcp_client.py URL '[["search", {"query": "..."}]]'``.
"""

import asyncio
import json
import sys
from typing import Any


async def call_tools(url: str, calls: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the server's tools by name, then {"error", "texts"} for each call."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with streamablehttp_client(url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        tools = (await session.list_tools()).tools
        answers = [{tool.name: tool.inputSchema for tool in tools}]
        for name, arguments in calls:
            result = await session.call_tool(name, arguments)
            answers.append({"error": result.isError, "texts": [content.text for content in result.content]})
        return answers


if __name__ == "__main__":
    print(json.dumps(asyncio.run(call_tools(sys.argv[1], json.loads(sys.argv[2]))), ensure_ascii=False))
